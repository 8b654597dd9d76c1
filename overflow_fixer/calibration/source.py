"""What a reader is, and what it gives: batches by name, and the way to read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from overflow_fixer.calibration.listing import Listing
from overflow_fixer.calibration.options import CalibrationOptions
from overflow_fixer.errors import CalibrationError
from overflow_fixer.host.shortages import tells_of_memory
from overflow_fixer.records import Feeds, InputSpec


@dataclass(frozen=True)
class Part:
    """One batch before it is read: its name, unique in the source, and the files it comes from."""

    name: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Source:
    """The batches that a reader found. `read` gives their feeds, unchecked, in the order of `parts`.

    Each call of `read` walks from the start and holds no more than one batch at a time. `settings`
    spells the options that change the values, for the fingerprint. `heeds` names the options of CalibrationOptions that make the
    batches what they are, besides those that any data heed.
    """

    parts: tuple[Part, ...]
    read: Callable[[], Iterator[Feeds]]
    settings: str = ""
    heeds: frozenset[str] = frozenset()


class Reader(Protocol):
    """A calibration format: a module with these two names, and a line in READERS."""

    @property
    def SUFFIXES(self) -> tuple[str, ...]:  # noqa: N802
        """Endings of the format's files, lower case, with the dot."""

    def open_source(
        self, listing: Listing, inputs: Sequence[InputSpec], options: CalibrationOptions
    ) -> Source:
        """Find the batches in `listing`, reading no more than it takes to count and name them.

        Raises CalibrationError, here or while reading, with the name of the file at fault.
        """


def open_whole_files(listing: Listing, load: Callable[[Path], Feeds]) -> Source:
    """A folder of files with one batch each, read by `load`."""
    files = listing.flat_files()
    parts = tuple(Part(listing.name_of(file), (file,)) for file in files)
    return Source(parts, lambda: map(load, files))


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Turn whatever a library raises over an untrusted file into a CalibrationError that names it; a want of memory stays one."""
    try:
        yield
    except (CalibrationError, MemoryError):
        raise
    except PermissionError as error:
        raise CalibrationError(
            f"{path} cannot be read: {_reason(error)}. Expected a file that this user may read. Change its permissions, or "
            "those of its folder, or run as another user."
        ) from error
    except Exception as error:  # numpy, zipfile, zlib, h5py, json and Pillow raise many unrelated types
        if tells_of_memory(error):
            raise MemoryError(str(error)) from error
        raise CalibrationError(
            f"{path} cannot be read: {_reason(error)}. Expected {expected}. Write the file again, or copy it "
            "again if it was cut short."
        ) from error


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()).rstrip(".") or type(error).__name__
