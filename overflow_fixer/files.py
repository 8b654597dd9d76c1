"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np

from overflow_fixer.errors import FixError, OutputError
from overflow_fixer.host.shortages import tells_of_memory


@dataclass(frozen=True)
class FileStamp:
    """A file as it was at one time; it tells whether the file was written or replaced since."""

    path: Path
    identity: tuple[int, int, int] | None

    @staticmethod
    def of(path: Path) -> FileStamp:
        return FileStamp(path, _identify(path))

    def __str__(self) -> str:
        return ":".join(map(str, self.identity or ()))

    def is_current(self) -> bool:
        return self.identity is not None and self.identity == _identify(self.path)


TRIALS_PREFIX = ".trials-"
"""How the folder begins in which a run keeps its trials, each below it in one that has a number: see trials.folders."""
_TEMPORARY = re.compile(r"\..+\.\d+-[0-9a-f]{8}\.tmp")
_ABANDONED_SECONDS = 600.0
_HASHED_BYTES = 1 << 22
"""At a time: little memory, and other threads are seldom waited for. A file that is mapped instead would kill the process
where another one cuts it short."""

UTF8 = np.dtype(object, metadata={"vlen": str})
"""What h5py writes as variable-length UTF-8 strings (h5py.string_dtype)."""


def open_hdf5(source: Path | BinaryIO, mode: Literal["r", "w"], **options: int) -> Any:
    """An h5py.File. h5py is imported here: it takes 12 MB that a scan without such files can spare.

    Raises MemoryError where there is no room for its libraries.
    """
    try:
        import h5py
    except ImportError as error:  # which is how the loader tells it
        if tells_of_memory(error):
            raise MemoryError(str(error)) from error
        raise

    return h5py.File(source, mode, **options)


@contextmanager
def replace_file(path: Path, size_bytes: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success flush it to disk and rename it to `path`.

    On any failure the temporary file is removed and `path` is what it was before. Raises
    OutputError where the folder cannot be written or the disk is full, with about how many bytes were to be written.
    """
    temporary = _name_temporary(path)
    try:
        with refuse_os_errors(path, size_bytes):
            make_folder(path.parent)
            yield temporary
            _flush(temporary)
            os.replace(temporary, path)
    finally:
        if is_there(temporary):
            temporary.unlink()


@contextmanager
def replace_files(path: Path) -> Iterator[Path]:
    """Yield a path of the same name in an empty folder beside; on success move all that was written there beside `path`.

    The files go as `move_files` says, `path` last. Where the block fails or is killed, `path` and the files beside it are
    what they were before; so they are where the first of the files cannot be moved. Raises OutputError where the folder
    cannot be written.
    """
    folder = _name_temporary(path)
    with refuse_os_errors(path):
        folder.mkdir(parents=True)
    try:
        yield folder / path.name
        others = sorted(file for file in folder.iterdir() if file.name != path.name)
        move_files([folder / path.name, *others], path.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def move_files(files: Sequence[Path], folder: Path) -> tuple[Path, ...]:
    """Move files within a file system into `folder`, the first one last; returns where they are.

    `<name>.data` that an earlier one of them had, and the new one has not, is removed. Raises OutputError where the folder
    cannot be written.
    """
    moved = tuple(folder / file.name for file in files)
    replaced = [path for path in moved if is_there(path)]
    for source, target in reversed(list(zip(files, moved, strict=True))):
        with refuse_os_errors(target):
            os.replace(source, target)
    for stale in set(map(name_data, replaced)) - set(moved):
        stale.unlink(missing_ok=True)
    return moved


def name_data(path: Path) -> Path:
    """Where the weights of a large model that is written to `path` go."""
    return _name_beside(path, path.name + ".data")


def find_replaced(kept: Iterable[Path], written: Iterable[Path]) -> Path | None:
    """The first of the files `written` that is one of those `kept`, by whatever path; None where none is."""
    known = {os.path.realpath(path) for path in kept}
    return next((path for path in written if os.path.realpath(path) in known), None)


def refuse_to_replace(kept: Iterable[Path], written: Iterable[Path]) -> None:
    """Raise OutputError where one of the files `written` is one of those `kept`."""
    path = find_replaced(kept, written)
    if path is not None:
        raise OutputError(
            f"{path} is a file that is read here: the model, its weights, its data or a library. Expected another name for "
            "what is written there. Name another folder with --out, or rename the file. Nothing was written."
        )


def refuse_long_name(path: Path, shorter: str) -> None:
    """Raise OutputError where the name of a file, or the longer one that it has while it is written, is too long for its disk.

    It says what is to be `shorter`, and how that is done.
    """
    folder = next(above for above in path.absolute().parents if os.path.isdir(above))
    try:
        os.lstat(folder / _name_temporary(path).name)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise OutputError(
                f"{path} cannot be written: its name of {len(os.fsencode(path.name))} bytes, with some more while it is written, is "
                f"longer than the file system takes. Expected a shorter {shorter}. Nothing was written."
            ) from error


@contextmanager
def refuse_os_errors(path: Path, size_bytes: int | None = None) -> Iterator[None]:
    """Turn an OSError of the block into an OutputError about `path`, as it is to be in the end, and its size where that is known."""
    try:
        yield
    except OSError as error:
        size = "" if size_bytes is None else f" for a file of {_say_size(size_bytes)}"
        raise OutputError(
            f"{_find_place(path)} could not be written: {error.strerror or error}. Expected a folder that can be written to, "
            f"with room left on its disk{size}. Name another with --out, or free some space; nothing was left half written."
        ) from error


@contextmanager
def open_temporary() -> Iterator[Path]:
    """A folder below the system's for temporary files, removed afterwards. Raises OutputError where none can be made."""
    try:
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    except OSError as error:
        raise refuse_temporary(os.environ.get("TMPDIR", ""), error.strerror or str(error)) from error
    with folder as name:
        yield Path(name)


def refuse_temporary(folder: Path | str, reason: str) -> OutputError:
    """What is to be raised where `folder`, the system's for temporary files, cannot be written."""
    return OutputError(
        f"The folder for temporary files{f', {folder},' if str(folder) else ''} could not be written: {reason}. Expected a folder "
        "that can be written to, with room left on its disk. Free some space there, or name another one in the environment "
        "variable TMPDIR."
    )


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents; raises OutputError where that cannot be done."""
    with refuse_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def list_missing(folder: Path) -> list[Path]:
    """The folder and those of its parents that are not there, the innermost first."""
    return [path for path in (folder, *folder.parents) if not os.path.exists(path)]


def remove_abandoned(folder: Path) -> None:
    """Remove what writers left there that were killed at it: temporary files and folders that have stood for minutes."""
    for temporary in folder.glob(".*.tmp"):
        with suppress(OSError):
            inside = temporary.iterdir() if temporary.is_dir() else ()
            latest = max(path.lstat().st_mtime for path in (temporary, *inside))
            is_old = time.time() - latest > _ABANDONED_SECONDS
            if not is_old or not _TEMPORARY.fullmatch(temporary.name):
                continue
            if temporary.is_dir():
                shutil.rmtree(temporary)
            else:
                temporary.unlink()


def has_unfinished(folder: Path) -> bool:
    """Whether a writer, or a run with trials, is at work in the folder or was killed there; False where it cannot be listed."""
    try:
        names = os.listdir(folder)
    except OSError:
        return False
    return any(name.startswith(TRIALS_PREFIX) or _TEMPORARY.fullmatch(name) for name in names)


@contextmanager
def remove_where_empty(new: Iterable[Path]) -> Iterator[None]:
    """Where the block fails, remove the folders, up to the first that has something in it."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for path in new:
                path.rmdir()
        raise


@contextmanager
def need_folder(folder: Path) -> Iterator[None]:
    """Where the block fails over files and `folder`, which was there, is another one or none, raise OutputError that says so."""
    before = os.stat(folder).st_ino if os.path.isdir(folder) else None
    try:
        yield
    except (FixError, OSError) as error:
        if before is None or (os.path.isdir(folder) and os.stat(folder).st_ino == before):
            raise
        raise OutputError(
            f"{folder} was removed while it was in use. Expected the output folder to stay until the command has ended. Run "
            "the command again."
        ) from error


def is_utf8(path: Path | str) -> bool:
    """Whether a path's bytes are UTF-8; Python keeps others as lone surrogates."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    with replace_file(path, len(text)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_of(paths: Iterator[Path] | list[Path]) -> str:
    """The SHA-256 of the files' bytes, one after the other, in hexadecimal."""
    digest = hashlib.sha256()
    buffer = np.empty(_HASHED_BYTES, np.uint8).data  # of which a small file touches little
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
    return digest.hexdigest()


def _name_temporary(path: Path) -> Path:
    return _name_beside(path, f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _name_beside(path: Path, name: str) -> Path:
    """Of a file that is to be written. Raises OutputError where `path` is the folder itself."""
    if not path.name:
        raise OutputError(f"{path} is a folder. Expected the name of a file to write. Give one in it.")
    return path.with_name(name)


def _find_place(path: Path) -> Path:
    """Where a file goes that is made in folders of this tool's own first: those are left out."""
    kept: list[str] = []
    parts = iter(path.parts)
    for part in parts:
        if part.startswith(TRIALS_PREFIX):
            next(parts, None)  # the number of the trial
        elif not _TEMPORARY.fullmatch(part):
            kept.append(part)
    return Path(*kept)


def _say_size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB" if size_bytes >= 1e6 else f"{size_bytes / 1e3:.1f} kB"


def _identify(path: Path) -> tuple[int, int, int] | None:
    """Inode, size and time of the last write; None where there is no such file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def is_there(path: Path) -> bool:
    """Whether there is something at the path; nothing is where its name is too long."""
    try:
        return path.exists()
    except OSError:
        return False


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
