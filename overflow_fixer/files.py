"""Files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from overflow_fixer.errors import OutputError


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success flush it to disk and rename it to `path`.

    On any failure the temporary file is removed and `path` is what it was before. Raises
    OutputError where the folder cannot be written or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with refuse_os_errors(path):
            make_folder(path.parent)
            yield temporary
            _flush(temporary)
            os.replace(temporary, path)
    finally:
        if _is_there(temporary):
            temporary.unlink()


@contextmanager
def refuse_os_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into an OutputError about `path`."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{path} could not be written: {error.strerror or error}. Expected a folder that can be written to, "
            "with room left on its disk. Name another with --out, or free some space; nothing was left half written."
        ) from error


def make_folder(folder: Path) -> None:
    """Create `folder` and its parents; raises OutputError where that cannot be done."""
    with refuse_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256_of(paths: Iterator[Path] | list[Path]) -> str:
    """The SHA-256 of the files' bytes, one after the other, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            for chunk in iter(lambda: file.read(1 << 22), b""):
                digest.update(chunk)
    return digest.hexdigest()


def _is_there(path: Path) -> bool:
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
