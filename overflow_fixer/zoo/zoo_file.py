"""ZOO.toml: defaults, then the models; read whole, and refused with every problem in it at once."""

from __future__ import annotations

import glob
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from overflow_fixer.calibration.options import Flag, Number, Whole
from overflow_fixer.config import SECTIONS, FixConfig, refuse_nul
from overflow_fixer.errors import ConfigError
from overflow_fixer.problems import say_problem
from overflow_fixer.zoo.entries import Zoo, ZooEntry
from overflow_fixer.zoo.toml_lines import Key, find_lines, line_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_FROZEN = ConfigDict(extra="forbid", frozen=True)
_OF_THE_RUN = frozenset({"custom_ops", "refuse_layernorm", *SECTIONS})
"""What an entry hands on to FixConfig as it is."""


_Text = Annotated[str, BeforeValidator(refuse_nul)]


class EntryOptions(BaseModel):
    """One `[[model]]` table with the defaults under it; the tables of a run are FixConfig's."""

    model_config = _FROZEN

    path: _Text
    """Of a model, or a glob of several; relative to the zoo file."""
    calib: _Text
    """Path of the data, or "random". "{stem}" and "{folder}" stand for those of the model's file, "{name}" for its name."""
    name: _Text | None = Field(default=None, min_length=1)
    priority: Whole = 0
    expected_minutes: Number | None = Field(default=None, gt=0, allow_inf_nan=False)
    timeout_minutes: Number = Field(default=240.0, gt=0, allow_inf_nan=False)
    memory_gib: Number | None = Field(default=None, gt=0, allow_inf_nan=False)
    retries: Whole = Field(default=1, ge=0)
    custom_ops: tuple[str, ...] = ()
    refuse_layernorm: Flag = False
    calibration: dict[str, Any] = Field(default_factory=dict)
    scan: dict[str, Any] = Field(default_factory=dict)
    plan: dict[str, Any] = Field(default_factory=dict)
    build: dict[str, Any] = Field(default_factory=dict)
    verify: dict[str, Any] = Field(default_factory=dict)
    repair: dict[str, Any] = Field(default_factory=dict)


def read_zoo_file(path: Path, folder: Path | None = None) -> Zoo:
    """Read and check a zoo file; results go to `folder`, or else to the file's `out`, or else to
    `FILE-stem.zoo` beside the caller.

    Raises ConfigError that names every problem with its line: keys that are unknown, values that do not fit, models,
    data and libraries that are not there, names that two models share.
    """
    text = _read(path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"The zoo file {path} is not TOML: {error}. Expected the layout of configs/zoo.toml. Correct it there; text stands "
            "in quotes."
        ) from error
    reader = _Reader(path, find_lines(text))
    options = list(reader.read_options(document))
    own = document.get("out")
    out = folder or (path.parent / str(own) if own else Path(f"{path.stem}.zoo"))
    entries = [entry for index, one in options for entry in reader.make_entries(index, one, out)]
    reader.check_names(entries)
    reader.refuse_problems()
    return Zoo(path, out, tuple(entry for _, entry in entries))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"The zoo file {path} cannot be read: {reason}. Expected a TOML file as configs/zoo.toml. Check the path."
        ) from error


def _find_errors(values: Mapping[str, Any]) -> Iterator[ErrorDetails]:
    """What does not fit an entry, or the settings that it makes for a run."""
    run = {key: value for key, value in values.items() if key in _OF_THE_RUN}
    for model, given in ((EntryOptions, values), (FixConfig, {"model": "-", "calib": "-", **run})):
        try:
            model.model_validate(given)
        except ValidationError as error:
            yield from error.errors()


def _find_files(pattern: str) -> list[Path]:
    """The files that a glob matches, which folders of such names are not; or the one of that name to the letter."""
    matched = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []
    files = [Path(found) for found in matched if not os.path.isdir(found)]
    return files or ([Path(pattern)] if os.path.isfile(pattern) else [])


@dataclass
class _Reader:
    """Reads one file and gathers what is wrong with it."""

    path: Path
    lines: dict[Key, int]
    problems: list[tuple[int, str]] = field(default_factory=list)

    def read_options(self, document: Mapping[str, Any]) -> Iterator[tuple[int, EntryOptions]]:
        """Each `[[model]]` whose files can be looked for, with its number."""
        for key in document.keys() - {"out", "defaults", "model"}:
            self._add((key,), f"{key}: unknown key")
        if not isinstance(document.get("out", ""), str):
            self._add(("out",), "out: input should be a path")
        defaults, models = document.get("defaults", {}), document.get("model", [])
        if not isinstance(defaults, dict) or not isinstance(models, list):
            self._add(("defaults",), "expected [defaults] as a table, and each model as [[model]]")
            return
        usable = self._check_defaults(defaults)
        if not models:
            self._add((), "no [[model]] is in it")
        for index, given in enumerate(models):
            options = self._read_one(index, given, usable)
            if options is not None:
                yield index, options

    def _check_defaults(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Those that are right, so that what is wrong with them is told once, and not of each model."""
        for key in defaults.keys() & {"path", "name"}:
            self._add(("defaults", key), f"defaults.{key}: a model's own, which has no default")
        usable = {key: value for key, value in defaults.items() if key not in ("path", "name")}
        errors = list(_find_errors({"path": "-", "calib": "-", **usable}))
        self._add_all(("defaults",), errors)
        return {
            key: value for key, value in usable.items() if key not in {error["loc"][0] for error in errors}
        }

    def _read_one(self, index: int, given: Any, defaults: Mapping[str, Any]) -> EntryOptions | None:
        if not isinstance(given, dict):
            self._add(("model", index), f"model {index + 1}: expected a table")
            return None
        merged = {**defaults, **given}
        for section in SECTIONS:
            tables = defaults.get(section, {}), given.get(section, {})
            if all(isinstance(table, dict) for table in tables):
                merged[section] = {**tables[0], **tables[1]}
        return self._validate(("model", index), merged)

    def _validate(self, place: Key, values: Mapping[str, Any]) -> EntryOptions | None:
        """The options, without those that do not fit, so that files are looked for all the same; None without path or data."""
        errors = list(_find_errors(values))
        self._add_all(place, errors)
        wrong = {error["loc"][0] for error in errors}
        right = {key: value for key, value in values.items() if key not in wrong}
        return EntryOptions.model_validate(right) if {"path", "calib"} <= right.keys() else None

    def make_entries(self, index: int, options: EntryOptions, out: Path) -> Iterator[tuple[int, ZooEntry]]:
        """One for each file that the path stands for."""
        place, pattern = ("model", index), str(self.path.parent / options.path)
        files = _find_files(pattern)
        if not files:
            self._add((*place, "path"), f"path: {pattern} is no file, and no file matches it")
        if options.name is not None and len(files) > 1:
            self._add((*place, "name"), f"name: one name for the {len(files)} models that match the path")
            return
        for file in files:
            entry = self._make_entry(place, options, file, out)
            if entry is not None:
                yield index, entry

    def _make_entry(self, place: Key, options: EntryOptions, file: Path, out: Path) -> ZooEntry | None:
        name = options.name or file.stem
        if Path(name).is_absolute() or ".." in Path(name).parts:
            self._add((*place, "name"), f"name: {name!r} leads out of the zoo's folder")
            return None
        calib = self._find_data(
            place, options.calib, {"stem": file.stem, "name": name, "folder": str(file.parent)}
        )
        if calib is None:
            return None
        run = {
            key: value for key, value in options.model_dump(exclude_unset=True).items() if key in _OF_THE_RUN
        }
        try:
            config = FixConfig.model_validate({**run, "model": file, "calib": calib, "out": out / name})
        except ValidationError as error:
            self._add_all(place, error.errors())
            return None
        config = config.with_files_below(self.path.parent)
        self._check_libraries((*place, "custom_ops"), config.custom_ops)
        self._check_libraries((*place, "build", "plugins"), config.build.plugins)
        own = ("priority", "expected_minutes", "timeout_minutes", "memory_gib", "retries")
        return ZooEntry(name, config, **{key: getattr(options, key) for key in own})

    def _find_data(self, place: Key, calib: str, places: Mapping[str, str]) -> Path | str | None:
        """The path of the data; None, and a problem, where nothing is there."""
        if calib == "random":
            return calib
        filled = calib
        for key, value in places.items():
            filled = filled.replace(f"{{{key}}}", value)
        found = Path(filled) if "{folder}" in calib else self.path.parent / filled
        if not os.path.exists(found):
            self._add((*place, "calib"), f"calib: {found} is not there")
            return None
        return found

    def _check_libraries(self, place: Key, libraries: Iterable[Path]) -> None:
        for library in libraries:
            if not os.path.exists(library):
                self._add(place, f"{place[-1]}: {library} is not there")

    def check_names(self, entries: list[tuple[int, ZooEntry]]) -> None:
        counts = Counter(entry.name for _, entry in entries)
        for index, entry in entries:
            if counts[entry.name] > 1:
                self._add(
                    ("model", index, "name"),
                    f"name: {entry.name!r} is the name of {counts[entry.name]} models",
                )

    def _add(self, key: Key, problem: str) -> None:
        found = (line_of(key, self.lines) or 1, problem)
        if found not in self.problems:
            self.problems.append(found)

    def _add_all(self, place: Key, errors: Iterable[ErrorDetails]) -> None:
        for item in errors:
            self._add((*place, *item["loc"]), say_problem(item))

    def refuse_problems(self) -> None:
        """Raise ConfigError where there is one."""
        if self.problems:
            told = "; ".join(f"line {line}: {problem}" for line, problem in sorted(self.problems))
            raise ConfigError(
                f"The zoo file {self.path} cannot be used: {told}. Expected the keys and values that configs/zoo.toml "
                "documents, and paths relative to the file. Nothing was run."
            )
