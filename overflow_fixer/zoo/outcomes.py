"""What became of a model of a zoo, and whether that still holds: outcome.json in its folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import onnxruntime
from pydantic import BaseModel, ConfigDict, ValidationError

from overflow_fixer import __version__
from overflow_fixer.errors import OutputError
from overflow_fixer.files import is_there, write_text
from overflow_fixer.model_file.external_data import list_data_files
from overflow_fixer.zoo.entries import ZooEntry

Kind = Literal["fixed", "not_verified", "failed", "crashed", "out_of_memory", "timed_out"]

OUTCOME_FILE = "outcome.json"
_KEPT = ("ranges.h5", "plan.json", "report.json", "report.html")
"""What the main job leaves beside the artifact, and users and later stages read."""
_MODEL = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
_LIMITED = frozenset({"out_of_memory", "timed_out"})


class InputFile(BaseModel):
    """A file or folder that an outcome depends on, as it was then: size in bytes, and when it was last written, in ns."""

    model_config = _MODEL

    path: Path
    size_bytes: int
    written_ns: int

    @staticmethod
    def of(path: Path) -> InputFile:
        """Of a path that is not there, with a size of -1."""
        try:
            found = path.stat()
        except OSError:
            return InputFile(path=path, size_bytes=-1, written_ns=0)
        return InputFile(path=path, size_bytes=found.st_size, written_ns=found.st_mtime_ns)


class Basis(BaseModel):
    """What an outcome rests on. `content` is the SHA-256 of model, data and libraries; "" where it was never come to.

    `calib` names the data as FixConfig does in JSON; "" in an outcome of an earlier version, which did not tell.
    """

    model_config = _MODEL

    settings: str
    versions: dict[str, str]
    timeout_minutes: float
    memory_gib: float | None
    calib: str = ""
    content: str = ""
    files: tuple[InputFile, ...] = ()


class ZooResult(BaseModel):
    """The numbers of a model that was built: those of its report.json.

    SNR in dB, of the worst output in the worst batch, NaN where an output has none; mismatched are elements, as TensorError
    counts them; latencies are medians, None for a typed model. `warnings` are the report's, that of random data among them.
    """

    model_config = _MODEL

    backend: str
    artifact: Path
    size_bytes: int
    pins: tuple[str, ...]
    clamp_count: int
    naive_snr_db: float | None
    naive_mismatched: int | None
    fixed_snr_db: float
    fixed_mismatched: int
    fp16_node_share: float
    fp16_flops_share: float
    latency_ms: dict[str, float]
    stage_seconds: dict[str, float]
    warnings: tuple[str, ...] = ()


class ZooOutcome(BaseModel):
    """How it ended with one model. `message` is the verdict, or one paragraph on what was found, expected, and to do.

    `exit_code` is that of fix-fp16, None where the process did not come to one. `built` are the names of the artifact's files, in
    its folder, with their sizes in bytes. `attempts` counts the runs, `seconds` are those of the last one's process and
    `peak_memory_bytes` its resident memory; `is_earlier` tells an outcome that an earlier run of the zoo came to; it is said,
    and not kept in the file.
    """

    model_config = _MODEL

    name: str
    model: Path
    folder: Path
    kind: Kind
    message: str
    basis: Basis
    exit_code: int | None = None
    result: ZooResult | None = None
    built: dict[str, int] = {}
    attempts: int = 1
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    is_earlier: bool = False

    @property
    def passed(self) -> bool:
        return self.kind == "fixed"


def make_outcome(
    entry: ZooEntry, basis: Basis, kind: Kind, message: str, exit_code: int | None = None, **measured: Any
) -> ZooOutcome:
    """How it ended with an entry; `measured` are attempts, seconds and peak_memory_bytes."""
    return ZooOutcome(
        name=entry.name,
        model=entry.config.model,
        folder=entry.folder,
        kind=kind,
        message=message,
        basis=basis,
        exit_code=exit_code,
        **measured,
    )


def describe_basis(entry: ZooEntry) -> Basis:
    """What is known of the basis before the model is read."""
    settings = entry.config.model_dump_json(exclude={"model", "calib", "out"})
    return Basis(
        settings=hashlib.sha256(settings.encode()).hexdigest(),
        versions=find_versions(),
        timeout_minutes=entry.timeout_minutes,
        memory_gib=entry.memory_gib,
        calib=entry.config.model_dump(mode="json", include={"calib"})["calib"],
        files=tuple(map(InputFile.of, list_inputs(entry))),
    )


def add_weights(entry: ZooEntry, basis: Basis) -> Basis:
    """The basis; where no worker read the model, with the files that it names for its weights, missing ones too."""
    if basis.content:
        return basis
    files = tuple(map(InputFile.of, list_inputs(entry, list_data_files(entry.config.model))))
    return basis.model_copy(update={"files": files})


def list_inputs(entry: ZooEntry, more: Iterable[Path] = ()) -> list[Path]:
    """The model, its data with the folders that they lie in, behind links too, libraries, and `more`."""
    config = entry.config
    found = [config.model, *config.custom_ops, *config.build.plugins, *more]
    if config.calib != "random":
        root = Path(config.calib)
        inside = sorted((*root.glob("*"), *root.glob("*/*"))) if os.path.isdir(root) else []
        found += [root, *inside]
    return list(dict.fromkeys(found))


def save_outcome(outcome: ZooOutcome) -> None:
    """Write it to its folder, whole or not at all. Raises OutputError where that cannot be done."""
    kept = outcome.model_copy(update={"is_earlier": False})
    write_text(kept.folder / OUTCOME_FILE, kept.model_dump_json(indent=1))


def load_outcome(entry: ZooEntry) -> ZooOutcome | None:
    """The outcome in the entry's folder; None where there is none, or what is there is no outcome of this version.

    The folder may have been moved or copied since, renamed, or gone by another path: name and paths are those of now.
    """
    try:
        found = ZooOutcome.model_validate_json((entry.folder / OUTCOME_FILE).read_bytes())
    except (OSError, ValidationError):
        return None
    result = found.result
    if result is not None:
        result = result.model_copy(update={"artifact": entry.folder / result.artifact.name})
    return found.model_copy(update={"name": entry.name, "folder": entry.folder, "result": result})


def find_current(entry: ZooEntry, versions: Sequence[dict[str, str]]) -> ZooOutcome | None:
    """The outcome that an earlier run came to, if nothing that it rests on changed since: files by size and time.

    `versions` are those that it would be run with now, any of them. Model and data that go by other paths now are not known
    to be the same before a worker has hashed them.
    """
    found, basis = load_outcome(entry), describe_basis(entry)
    if found is None or found.basis.versions not in versions:
        return None
    if (found.model, found.basis.calib) != (entry.config.model, basis.calib):
        return None
    if not has_same_settings(found, basis.model_copy(update={"versions": found.basis.versions})):
        return None
    if any(InputFile.of(known.path) != known for known in found.basis.files):
        return None
    is_complete = {file.path for file in basis.files} <= {file.path for file in found.basis.files}
    return found if is_complete and is_settled(found) else None


def is_settled(found: ZooOutcome) -> bool:
    """Whether what was built is still there as it was, by its size, if something was, and what tells of it; never where the
    folder was in the way: full, or in use.
    """
    if found.exit_code == OutputError.exit_code:
        return False
    is_whole = (InputFile.of(found.folder / name).size_bytes == size for name, size in found.built.items())
    is_told = (is_there(found.folder / name) for name in _KEPT)
    return found.result is None or (bool(found.built) and all(is_whole) and all(is_told))


def has_same_settings(found: ZooOutcome, basis: Basis) -> bool:
    """Whether settings and versions are the same, and the limits too where the outcome came of them."""
    limits = found.basis.timeout_minutes, found.basis.memory_gib
    if found.kind in _LIMITED and limits != (basis.timeout_minutes, basis.memory_gib):
        return False
    return (found.basis.settings, found.basis.versions) == (basis.settings, basis.versions)


def find_versions() -> dict[str, str]:
    """The versions here of this tool and of the libraries that an outcome depends on, where they are installed."""
    return dict(_find_versions())


@cache
def _find_versions() -> dict[str, str]:
    found = {"overflow_fixer": __version__, "onnxruntime": onnxruntime.__version__}
    for package in ("tensorrt", "tensorrt-cu12", "tensorrt-cu13"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
