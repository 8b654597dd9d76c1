"""Every setting of a run: defaults < config file < flags. `configs/default.toml` documents each key."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from overflow_fixer.calibration.options import CalibrationOptions, Flag, Number, Whole
from overflow_fixer.errors import ConfigError
from overflow_fixer.files import is_utf8, sha256_of
from overflow_fixer.model_file.unreadable import check_there
from overflow_fixer.problems import say_message, say_problem
from overflow_fixer.records import (
    Accumulators,
    Budget,
    BuildSettings,
    Masks,
    PlanPolicy,
    ShapeRange,
    Tolerance,
)
from overflow_fixer.sessions.providers import Provider

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FROZEN = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
_MOST_MINUTES = 1e6
"""Two years."""
_MOST_GIB = 2.0**20
"""More than any GPU has, and a number of bytes all the same."""
_NO_MODEL = (
    "No model was named. Expected MODEL, the path of an ONNX model, or model in a file given with --config."
)
_NO_CALIB = (
    "No calibration data was named. Expected --calib PATH (a folder or file of real inputs; see docs/calibration.md) or "
    "calib in the config file. There is no silent default; --calib random asks for random data, which proves nothing about "
    "real inputs."
)
_NOT_UTF8 = "path_not_utf8"
Export = Literal["trtexec", "polygraphy-npps", "polygraphy-loader"]


def refuse_nul(value: object) -> object:
    """Raise ValueError for a path that no system call takes."""
    if isinstance(value, (str, os.PathLike)) and "\0" in str(value):
        raise ValueError("it holds a NUL character, which no path can hold")
    return value


def _check_data(value: object) -> object:
    """Before pydantic tries the two types, and tells of both."""
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError('input should be a path, or "random"')
    return refuse_nul(value)


_File = Annotated[Path, BeforeValidator(refuse_nul)]


class ScanOptions(BaseModel):
    """The `[scan]` table."""

    model_config = _FROZEN

    observe: Literal["reductions", "outputs", "optimized"] = "reductions"
    provider: Provider = "cpu"
    small_values: Literal["needed", "all"] = "needed"


class PlanOptions(BaseModel):
    """The `[plan]` table; see records.PlanPolicy."""

    model_config = _FROZEN

    threshold: Number = Field(default=10000.0, gt=0, le=65504)
    include_nodes: tuple[str, ...] = ()
    include_ops: tuple[str, ...] = ()
    exclude_nodes: tuple[str, ...] = ()
    exclude_ops: tuple[str, ...] = ()
    masks: Masks = "auto"
    accumulators: Accumulators = "pin"

    def policy(self, protected: Mapping[str, str] | None = None) -> PlanPolicy:
        return PlanPolicy(**self.model_dump(), protected=protected or {})


class BuildOptions(BaseModel):
    """The `[build]` table; see records.BuildSettings. `profile`: min, opt and max shape of an input."""

    model_config = _FROZEN

    backend: Literal["auto", "tensorrt", "onnx"] = "auto"
    io_types: Literal["keep", "fp16"] = "keep"
    typing: Literal["auto", "weak", "strong"] = "auto"
    tf32: Flag = True
    workspace_gib: Number | None = Field(default=None, gt=0, le=_MOST_GIB)
    optimization_level: Whole | None = Field(default=None, ge=0, le=5)
    tactic_sources: tuple[str, ...] | None = None
    timing_cache: _File | None = None
    plugins: tuple[_File, ...] = ()
    compare: Flag = True
    exports: tuple[Export, ...] = ()
    profile: dict[str, tuple[tuple[Whole, ...], tuple[Whole, ...], tuple[Whole, ...]]] = Field(
        default_factory=dict
    )

    def settings(self, folder: Path, shapes: Mapping[str, ShapeRange]) -> BuildSettings:
        """What a backend is told; `folder` holds the timing cache unless another file is named."""
        return BuildSettings(
            io_types=self.io_types,
            typing=self.typing,
            workspace_bytes=None if self.workspace_gib is None else int(self.workspace_gib * 2**30),
            optimization_level=self.optimization_level,
            tactic_sources=self.tactic_sources,
            tf32=self.tf32,
            timing_cache=self.timing_cache or folder / "timing.cache",
            plugins=self.plugins,
            shapes=shapes,
        )


class VerifyOptions(BaseModel):
    """The `[verify]` table; see records.Tolerance, and calibration.jittered for `jitter`."""

    model_config = _FROZEN

    min_snr_db: Number = 30.0
    min_agreement: Number = Field(default=0.99, ge=0, le=1)
    max_abs_error: Number = Field(default=0.0, ge=0)
    per_output: dict[str, Number] = Field(default_factory=dict)
    parts: tuple[str, ...] = ()
    jitter: Whole = Field(default=0, ge=0)
    """Changed copies of each batch to verify on as well."""

    def tolerance(self) -> Tolerance:
        return Tolerance(**self.model_dump(exclude={"jitter"}))


class RepairOptions(BaseModel):
    """The `[repair]` table; see records.Budget."""

    model_config = _FROZEN

    max_rounds: Whole = Field(default=6, ge=0)
    max_builds: Whole = Field(default=40, ge=1)
    max_minutes: Number = Field(default=120.0, gt=0, le=_MOST_MINUTES)

    def budget(self) -> Budget:
        return Budget(**self.model_dump())


def _check_named(value: object) -> object:
    if value == "":
        raise ValueError("it names no folder; leave it out for MODEL-stem.fp16")
    return refuse_nul(value)


class FixConfig(BaseModel):
    """One run of the main job.

    `calib` is a path, or the string "random". `out` defaults to `MODEL-stem.fp16/` beside the caller.
    """

    model_config = _FROZEN

    model: _File
    calib: Annotated[str | Path, BeforeValidator(_check_data)]
    out: Annotated[Path | None, BeforeValidator(_check_named)] = None
    custom_ops: tuple[_File, ...] = ()
    """Libraries of custom operators for ONNX Runtime."""
    refuse_layernorm: Flag = False
    """Make LayerNorms that are written out LayerNormalization nodes first."""
    calibration: CalibrationOptions = CalibrationOptions()
    scan: ScanOptions = ScanOptions()
    plan: PlanOptions = PlanOptions()
    build: BuildOptions = BuildOptions()
    verify: VerifyOptions = VerifyOptions()
    repair: RepairOptions = RepairOptions()

    @model_validator(mode="after")
    def _check_paths(self) -> FixConfig:
        """ONNX, ONNX Runtime and HDF5 take no other paths."""
        for path in (self.model, self.calib, self.out or "", *self.custom_ops):
            if not is_utf8(path):
                found = {"path": ascii(str(path))}
                raise PydanticCustomError(
                    _NOT_UTF8, "the path {path} is not UTF-8; rename it, or link to it by another name", found
                )
        return self

    @field_serializer("calib", when_used="json")
    def _serialize_calib(self, calib: Path | str) -> str:
        """A folder named random as ./random: JSON tells no path from the word that asks for random data."""
        return os.path.join(os.curdir, calib) if calib == Path("random") else str(calib)

    @property
    def folder(self) -> Path:
        return self.out if self.out is not None else Path(f"{self.model.stem}.fp16")

    def hash_libraries(self) -> str:
        """The SHA-256 of the libraries of custom operators and TensorRT plug-ins that are there, in hexadecimal.

        Raises ConfigError for one that cannot be read.
        """
        found = [path for path in (*self.custom_ops, *self.build.plugins) if os.path.isfile(path)]
        try:
            return sha256_of(found)
        except OSError as error:
            raise ConfigError(
                f"The library {error.filename} cannot be read: {error.strerror or error}. Expected a shared library that this user "
                "may read. Change its permissions (chmod), or leave it out."
            ) from error

    def with_files_below(self, folder: Path) -> FixConfig:
        """The same with libraries, plug-ins and the timing cache that are relative paths taken from `folder`."""
        cache = self.build.timing_cache
        changed = {
            "plugins": tuple(folder / path for path in self.build.plugins),
            "timing_cache": None if cache is None else folder / cache,
        }
        build = self.build.model_copy(update=changed)
        libraries = tuple(folder / path for path in self.custom_ops)
        return self.model_copy(update={"custom_ops": libraries, "build": build})

    def with_model(self, model: Path) -> FixConfig:
        """The same for another model, in the same folder."""
        return self.model_copy(update={"model": model, "out": self.folder})


def check_folders(folder: Path, calib: Path | str) -> None:
    """Raise ConfigError where results would be written among the calibration data, and be taken for data the next time."""
    data = Path(os.path.realpath(calib))
    if calib != "random" and os.path.isdir(data) and Path(os.path.realpath(folder)).is_relative_to(data):
        raise ConfigError(
            f"The output folder {folder} lies in the folder of the calibration data, {data}. Expected it elsewhere, "
            "since what is written there would be taken for data by the next run. Name another one with --out. Nothing was "
            "written."
        )


SECTIONS = ("calibration", "scan", "plan", "build", "verify", "repair")


def read_config_file(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, with a byte order mark or without. Raises ConfigError for one that cannot be read or is not
    TOML.
    """
    try:
        tables: dict[str, Any] = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
        return tables
    except OSError as error:
        raise ConfigError(
            f"The config file {path} cannot be read: {error.strerror or error}. Expected a TOML file. Check the path."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The config file {path} is not TOML: {error}. Expected the layout of configs/default.toml. Correct it there; text "
            "stands in quotes, and the file is UTF-8."
        ) from error


def make_config(
    path: Path | None, flags: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> FixConfig:
    """Merge a config file (None: none) and flags; a flag that is None is not set.

    `flags` is nested like the file: {"model": ..., "plan": {"threshold": ...}}; `names` are what the user calls them:
    {"threshold": "--threshold"}. Raises ConfigError naming every unknown key and every value that does not fit, and where it
    came from; and ModelError where no data were named for a model that is not there.
    """
    merged: dict[str, Any] = read_config_file(path) if path is not None else {}
    for key, value in flags.items():
        if isinstance(value, Mapping):
            table = merged.setdefault(key, {})
            given = {name: item for name, item in value.items() if item is not None}
            merged[key] = {**table, **given} if isinstance(table, dict) else table
        elif value is not None:
            merged[key] = value
    try:
        return FixConfig.model_validate(merged)
    except ValidationError as error:
        if all(item["type"] == "missing" and len(item["loc"]) == 1 for item in error.errors()):
            raise _refuse_lack(merged) from None
        for item in error.errors():
            if item["type"] == _NOT_UTF8:
                raise ConfigError(_refuse_path(item["ctx"]["path"])) from None
        origins = _Origins(path, flags, names or {})
        raise ConfigError(_explain(error, origins)) from error


def _refuse_lack(settings: Mapping[str, Any]) -> ConfigError:
    """Of settings without a model, or without data. Raises ModelError where the model is named, and not there."""
    if "model" not in settings:
        return ConfigError(_NO_MODEL)
    check_there(Path(settings["model"]))
    return ConfigError(_NO_CALIB)


def _refuse_path(path: str) -> str:
    return (
        f"The path {path} is not UTF-8. Expected the names of the model, the calibration data, the output folder and libraries in "
        "UTF-8, since ONNX takes no others, and reports could not tell them. Rename the file or folder that is not, or make a symbolic "
        "link to it with another name and go by that."
    )


@dataclass(frozen=True)
class _Origins:
    """Where settings came from: see make_config."""

    path: Path | None
    flags: Mapping[str, Any]
    names: Mapping[str, str]

    def find(self, item: ErrorDetails) -> str:
        """The flag that gave what is wrong, or else the config file, as far as is known."""
        key, *inner = map(str, item["loc"] or ("",))
        given = self.flags.get(key)
        if isinstance(given, Mapping):
            # of a table as a whole the message begins with the key that is wrong in it
            key = inner[0] if inner else say_message(item).split()[0]
            given = given.get(key)
        if given is None and self.path is not None:
            return f"the config file {self.path}"
        return self.names.get(key, "a flag")


def _explain(error: ValidationError, origins: _Origins) -> str:
    told: dict[str, list[str]] = {}
    for item in error.errors():
        told.setdefault(origins.find(item), []).append(say_problem(item))
    problems = (f"from {origin}: {'; '.join(said)}" for origin, said in told.items())
    return (
        f"Settings that cannot be used, {'; '.join(problems)}. Expected the keys and values that "
        "configs/default.toml documents. Correct or remove them."
    )
