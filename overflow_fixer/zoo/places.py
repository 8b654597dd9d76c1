"""Where the results of a zoo go: each model's in a folder of its own, apart from the others', the zoo's and all data."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from overflow_fixer.config import check_folders
from overflow_fixer.errors import ConfigError
from overflow_fixer.zoo.entries import SUMMARY, Zoo, ZooEntry


def check_places(zoo: Zoo) -> None:
    """Raise ConfigError where check_apart does, where a model would write over the zoo's own files, and where results can have
    no folder.
    """
    _check_folder(zoo.folder)
    for entry in zoo.entries:
        first = next(iter(Path(entry.name).parts), "")
        if not first or first.removeprefix(".").startswith(f"{SUMMARY}."):
            raise ConfigError(
                f"A model of the zoo {zoo.source} has the name {entry.name!r}, and {zoo.folder / entry.name} is a place of the "
                f"zoo itself. Expected a name that is not of its files ({SUMMARY}.json, .html, .csv). Name the model otherwise. "
                "Nothing was run."
            )
    check_apart(zoo.entries, zoo.folder)


def _check_folder(folder: Path) -> None:
    """A folder may be made that is not there yet, but not in the place of a file."""
    there = next((path for path in (folder, *folder.parents) if os.path.lexists(path)), None)
    if there is not None and not os.path.isdir(there):
        what = "a file" if os.path.exists(there) else "a link to nothing"
        within = "" if there == folder else f", for {folder} to lie in"
        raise ConfigError(
            f"The results of the zoo cannot go to {folder}: {there} is {what}. Expected a folder{within}, or nothing of that name yet. "
            "Name another one with --out. Nothing was run."
        )


def check_apart(entries: Sequence[ZooEntry], *others: Path) -> None:
    """Raise ConfigError for two models of one name or folder, for a folder in another's, and for one, or one of the `others`,
    among the calibration data of a model.
    """
    for what, keys in (
        ("name", [e.name for e in entries]),
        ("output folder", [str(e.folder) for e in entries]),
    ):
        twice = next((key for key, count in Counter(keys).items() if count > 1), None)
        if twice is not None:
            raise ConfigError(
                f"Two models of the zoo have the {what} {twice!r}. Expected one of its own for each. Name them apart."
            )
    _check_not_nested(entries)
    _check_data([*others, *(entry.folder for entry in entries)], entries)


def _may_be_a_result(name: str) -> bool:
    """Whether a run may write a file or folder of that name: those of models have suffixes, or begin with a dot."""
    return "." in name or name == "fused"


def _check_not_nested(entries: Sequence[ZooEntry]) -> None:
    """A model's folder may lie in another's (`a/c` beside `a`), but not in the place of one of its results."""
    owners = {Path(os.path.abspath(entry.folder)): entry.name for entry in entries}
    for folder, name in owners.items():
        above = next((one for one in folder.parents if one in owners), None)
        if above is not None and _may_be_a_result(folder.relative_to(above).parts[0]):
            outer = owners[above]
            raise ConfigError(
                f"The folder of the zoo's model {name!r} would lie in that of its model {outer!r}, among its results. Expected "
                f"folders apart. Name one of them otherwise (in a zoo file: name), such as {outer + '_'!r}. Nothing was run."
            )


def _check_data(folders: Sequence[Path], entries: Sequence[ZooEntry]) -> None:
    data = {
        Path(os.path.realpath(calib)): calib
        for calib in dict.fromkeys(entry.config.calib for entry in entries)
        if calib != "random"
    }
    for folder in folders:
        real = Path(os.path.realpath(folder))
        for above in (real, *real.parents):
            if above in data:
                check_folders(folder, data[above])
