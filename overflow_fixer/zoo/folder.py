"""A folder of models with their calibration data beside them, as a zoo."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from pydantic import ValidationError

from overflow_fixer.config import FixConfig
from overflow_fixer.errors import ConfigError
from overflow_fixer.problems import say_problem
from overflow_fixer.zoo.entries import Zoo, ZooEntry

_SUFFIXES = (".npz", ".npy", ".h5", ".hdf5", ".json")
_RESULTS = ("ranges.h5", "plan.json", "outcome.json")
_FOLDERS = ("calib", "calibration", "data")


def read_folder(root: Path, folder: Path | None = None) -> Zoo:
    """Every .onnx file below `root`, however it is spelled, but for hidden files, those in hidden folders, and what this tool makes:
    NAME.fp16.onnx, and models that it fused. A folder with such a name is none, and models in it are.

    The data of DIR/NAME.onnx are the first of these that is there: DIR/NAME.calib, DIR/NAME.npz (or .npy, .h5, .hdf5, .json),
    DIR/calib/NAME (or calibration, data) and, where NAME is the one model in DIR, DIR/calib itself. Raises ConfigError
    that names every model without data, and for a folder that cannot be read.
    """
    out = folder or Path(f"{root.resolve().name}.zoo")
    models = [path for path in sorted(_walk(root)) if path.suffix.lower() == ".onnx" and _is_wanted(path)]
    counts = Counter(model.parent for model in models)
    found = {model: find_data(model, is_alone=counts[model.parent] == 1) for model in models}
    lacking = [str(model) for model, data in found.items() if data is None]
    if lacking or not models:
        what = f"no data was found for {', '.join(lacking)}" if lacking else "it has no .onnx file"
        raise ConfigError(
            f"The folder {root} cannot be used as a zoo: {what}. Expected each model's data beside it: NAME.calib/, NAME.npz "
            "or calib/NAME/, or calib/ where the folder has one model. Move them there, or write a zoo file "
            "(configs/zoo.toml). Nothing was run."
        )
    return Zoo(root, out, tuple(_make_entries(root, out, found)))


def _walk(root: Path) -> Iterator[Path]:
    """Every file and folder below, links followed, but for hidden folders; one that may not be read, for there may be models in
    it, is an error.

    Of several ways to one folder the first is taken. A link to a folder that this one lies in is not: it leads out of the zoo.
    """
    place = Path(os.path.realpath(root))
    seen = set(map(str, (place, *place.parents)))
    for folder, names, files in os.walk(root, onerror=_refuse_unreadable, followlinks=True):
        shown = sorted(name for name in names if not name.startswith("."))
        new = {os.path.realpath(os.path.join(folder, name)): name for name in reversed(shown)}
        names[:] = [new[place] for place in sorted(new.keys() - seen)]
        seen |= new.keys()
        yield from (Path(folder, name) for name in (*names, *files))


def _refuse_unreadable(error: OSError) -> NoReturn:
    raise ConfigError(
        f"The folder {error.filename} cannot be read: {error.strerror or error}. Expected a folder of models that this user may "
        "read, and all below it. Change its permissions (chmod), name another one or write a zoo file (configs/zoo.toml). "
        "Nothing was run."
    ) from error


def find_data(model: Path, *, is_alone: bool) -> Path | None:
    """The model's data beside it; None where there are none."""
    stem = model.stem
    candidates = [model.with_name(f"{stem}.calib"), *(model.with_name(stem + suffix) for suffix in _SUFFIXES)]
    candidates += [model.parent / name / stem for name in _FOLDERS]
    candidates += [model.parent / name for name in _FOLDERS] if is_alone else []
    return next((path for path in candidates if os.path.exists(path)), None)


def _make_entries(root: Path, out: Path, found: dict[Path, Path | None]) -> Iterator[ZooEntry]:
    for model, data in found.items():
        name = model.relative_to(root).with_suffix("").as_posix()
        try:
            config = FixConfig.model_validate({"model": model, "calib": data, "out": out / name})
        except ValidationError as error:
            told = "; ".join(map(say_problem, error.errors()))
            raise ConfigError(
                f"The folder {root} cannot be used as a zoo: {told}. Nothing was run."
            ) from None
        yield ZooEntry(name, config)


def _is_wanted(path: Path) -> bool:
    """Of a path that is in no hidden folder."""
    is_result = path.name.lower().endswith(".fp16.onnx") or _is_fused(path)
    return not path.name.startswith(".") and not is_result and not os.path.isdir(path)


def _is_fused(path: Path) -> bool:
    """Whether --refuse-layernorm made it, in the folder of a run's results."""
    results = path.parent.parent
    is_of_run = results.name.endswith(".fp16") or any((results / name).exists() for name in _RESULTS)
    return path.parent.name == "fused" and is_of_run
