"""Which files of a folder are calibration data, and in what order."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from overflow_fixer.errors import CalibrationError
from overflow_fixer.files import is_utf8

_DOCUMENT_SUFFIXES = frozenset({".py", ".md", ".rst", ".txt", ".toml", ".yaml", ".yml", ".csv"})
_DOCUMENT_STEMS = frozenset({"readme", "license", "licence", "notice", "copying"})


@dataclass(frozen=True)
class Listing:
    """The data files at a path, in natural order of name (2 before 10).

    `files` lie in the folder `root` or, where it has none, in its subfolders; or `root` is itself the
    only file.
    """

    root: Path
    files: tuple[Path, ...]

    @property
    def is_file(self) -> bool:
        return self.files == (self.root,)

    @property
    def is_nested(self) -> bool:
        return not self.is_file and any(file.parent != self.root for file in self.files)

    def name_of(self, file: Path) -> str:
        """The file's name relative to the calibration folder, with forward slashes."""
        return file.name if self.is_file else file.relative_to(self.root).as_posix()

    def flat_files(self) -> tuple[Path, ...]:
        """`files`, where they lie in no subfolders; raises CalibrationError otherwise."""
        if not self.is_nested:
            return self.files
        raise CalibrationError(
            f"{self.root} has its data in subfolders ({self.name_of(self.files[0])} is the first file). Expected "
            f"{self.files[0].suffix} files in the folder itself; only .npy files lie in a folder for each input. "
            "Name the folder that holds the files, or move them up."
        )


def list_data(root: Path) -> Listing:
    """The data files at `root`: the file itself, or those of the folder.

    Hidden files and documents (README, LICENSE, notes, scripts, tables) are left out. Raises
    CalibrationError when nothing is there, files lie both in the folder and in its subfolders, a name is not UTF-8, or a
    file is a pipe.
    """
    try:
        if not os.path.isdir(root):
            _refuse_special([_existing(root)])
            return Listing(root, (root,))
        direct, nested = (
            _data_files(root),
            [file for folder in _subfolders(root) for file in _data_files(folder)],
        )
    except OSError as error:
        raise CalibrationError(
            f"{error.filename or root} cannot be read: {error.strerror or error}. Expected calibration data: a file, or "
            "a folder of files. Check the path and its permissions."
        ) from error
    _check_one_place(root, direct, nested)
    _check_names([*direct, *nested])
    _refuse_special([*direct, *nested])
    return Listing(root, tuple(direct or nested))


def _refuse_special(files: Iterable[Path]) -> None:
    """Raise CalibrationError for a pipe, a socket or a device: to open a pipe that nobody writes to waits for ever."""
    for file in files:
        if os.path.exists(file) and not os.path.isfile(file):
            raise CalibrationError(
                f"{file} is not a regular file but a pipe, a socket or a device. Expected calibration data, which are read several "
                "times. Write the data to a file first."
            )


def natural_key(name: str) -> tuple[list[str | int], str]:
    """Sorts names with numbers in them by number; the name itself decides between 1 and 01."""
    pieces = re.split(r"(\d+)", name)
    return [int(piece) if index % 2 else piece for index, piece in enumerate(pieces)], name


def _existing(root: Path) -> Path:
    root.stat()
    return root


def _check_one_place(root: Path, direct: list[Path], nested: list[Path]) -> None:
    if not direct and not nested:
        found = ", ".join(sorted(entry.name for entry in root.iterdir())[:5]) or "nothing"
        raise CalibrationError(
            f"{root} holds no calibration data (found: {found}). Expected files of a known format, such as .npz or "
            ".npy, in it. Put the data there, or name another folder."
        )
    if direct and nested:
        raise CalibrationError(
            f"{root} holds data both in itself ({direct[0].name}) and in a subfolder "
            f"({nested[0].relative_to(root).as_posix()}). Expected it in one place, so that none is left out unseen. "
            "Move one of them away."
        )


def _check_names(files: list[Path]) -> None:
    """Batches are named after their files, in UTF-8."""
    for file in files:
        if not is_utf8(file):
            raise CalibrationError(
                f"The name of the file {str(file)!a} is not UTF-8. Expected names that are, since reports name batches "
                "after their files. Rename it."
            )


def _data_files(folder: Path) -> list[Path]:
    return [entry for entry in _visible(folder) if not entry.is_dir() and not _is_document(entry)]


def _subfolders(folder: Path) -> list[Path]:
    return [entry for entry in _visible(folder) if entry.is_dir()]


def _visible(folder: Path) -> Iterator[Path]:
    entries = sorted(folder.iterdir(), key=lambda entry: natural_key(entry.name))
    return (entry for entry in entries if not entry.name.startswith("."))


def _is_document(file: Path) -> bool:
    return file.suffix.lower() in _DOCUMENT_SUFFIXES or file.stem.lower() in _DOCUMENT_STEMS
