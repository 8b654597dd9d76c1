"""Files of a model carried to a machine that does not see them, and what came of it carried back.

There they lie below a root, each where it lies here below "/", so that what is written there about a path is right
here once the root is taken out of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from overflow_fixer.errors import PlanError
from overflow_fixer.files import make_folder, refuse_os_errors, replace_file
from overflow_fixer.ranges.store import load_recording, save_recording
from overflow_fixer.records import Array
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.outcomes import ZooOutcome
from overflow_fixer.zoo.worker import PROGRESS_FILE

Parcel = Mapping[str, Array | None]
"""Absolute paths with their bytes (uint8); None is a folder."""

_TEXTS = frozenset({".json", ".html", ".txt", ".csv", ".py", ".sh"})
_RANGES = "ranges.h5"
TOKEN = ".ray-"
"""How the files begin that tell a node whether it shares the results' folder."""


def pack(paths: Iterable[Path]) -> Parcel:
    """The files and folders (not what is in them) that are there, by absolute path; mapped, not read."""
    return {os.path.abspath(path): _map(path) for path in paths if os.path.exists(path)}


def unpack(parcel: Parcel, root: Path = Path("/")) -> None:
    """Write each file below `root`, whole or not at all. Raises OutputError where that cannot be done."""
    for name, content in parcel.items():
        path = place_below(root, Path(name))
        if content is None:
            make_folder(path)
            continue
        with replace_file(path) as temporary, refuse_os_errors(path):
            temporary.write_bytes(content.data)


def place_below(root: Path, path: Path) -> Path:
    """Where an absolute path is below a root; one that is relative stays, for it is below the folder worked in."""
    return root / path.relative_to(path.anchor) if path.is_absolute() else path


def move_entry(entry: ZooEntry, root: Path) -> ZooEntry:
    """The same entry with every file of it below `root`."""
    config = entry.config
    build = config.build.model_copy(
        update={
            "plugins": _move_all(root, config.build.plugins),
            "timing_cache": config.build.timing_cache and place_below(root, config.build.timing_cache),
        }
    )
    moved = {
        "model": place_below(root, config.model),
        "calib": config.calib if config.calib == "random" else place_below(root, Path(config.calib)),
        "out": config.out and place_below(root, config.out),
        "custom_ops": _move_all(root, config.custom_ops),
        "build": build,
    }
    return replace(entry, config=config.model_copy(update=moved))


def list_results(entry: ZooEntry) -> list[Path]:
    """What a run of the entry leaves, or goes on from: what is in its folder, and a timing cache that lies elsewhere."""
    inside = sorted(path for path in entry.folder.rglob("*") if path.is_file() and not _is_passing(path))
    cache = entry.config.build.timing_cache
    return inside if cache is None else list(dict.fromkeys([*inside, cache]))


def pack_results(entry: ZooEntry, root: Path) -> Parcel:
    """What came of an entry that was moved below `root`, as if it lay where it belongs."""
    for ranges in entry.folder.glob(_RANGES):
        _name_files(ranges, root)
    return {name.removeprefix(str(root)): content for name, content in _read_texts(entry, root)}


def take_root_out(outcome: ZooOutcome, root: Path) -> ZooOutcome:
    return ZooOutcome.model_validate_json(outcome.model_dump_json().replace(str(root), ""))


def put_in_place(results: Parcel, before: Iterable[str], folder: Path) -> None:
    """Write the results where they belong. Files that were sent and did not come back are gone there, and here too, with
    what that leaves empty below the results' `folder`.
    """
    unpack(results)
    gone = [Path(name) for name in set(map(os.path.abspath, before)) - set(results)]
    for path in gone:
        path.unlink(missing_ok=True)
    inside = {above for path in gone for above in path.parents if folder.absolute() in above.parents}
    for emptied in sorted(inside, reverse=True):
        with suppress(OSError):  # other files are there
            emptied.rmdir()


def _read_texts(entry: ZooEntry, root: Path) -> Iterator[tuple[str, Array | None]]:
    """The packed results, the root taken out of those that are text."""
    for name, content in pack(list_results(entry)).items():
        if content is not None and Path(name).suffix in _TEXTS:
            text = content.tobytes().replace(str(root).encode(), b"")
            yield name, np.frombuffer(text, np.uint8)
        else:
            yield name, content


def _name_files(path: Path, root: Path) -> None:
    """Take the root out of the names of the model and the data in a ranges file; one that cannot be read stays as it is."""
    try:
        recording = load_recording(path)
    except PlanError:
        return
    parts = (
        replace(
            part, calibration=part.calibration.replace(str(root), ""), file=part.file.replace(str(root), "")
        )
        for part in recording.parts
    )
    model = recording.model_path.replace(str(root), "")
    save_recording(replace(recording, parts=tuple(parts), model_path=model), path)


def _is_passing(path: Path) -> bool:
    return path.name == PROGRESS_FILE or path.suffix in (".tmp", ".lock") or path.name.startswith(TOKEN)


def _move_all(root: Path, paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(place_below(root, path) for path in paths)


def _map(path: Path) -> Array | None:
    if path.is_dir():
        return None
    if path.stat().st_size == 0:
        return np.empty(0, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, "r"))
