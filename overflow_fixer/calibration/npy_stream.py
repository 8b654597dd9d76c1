"""The .npy format, read from a stream: whole, or some rows at a time.

Source of the format: NEP 1, through numpy.lib.format. Pickled objects are never loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Literal

import numpy as np

from overflow_fixer.records import Array

_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class NpyHeader:
    """What a .npy says of its array before the data begins."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]

    @property
    def data_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_header(file: IO[bytes], size_bytes: int) -> NpyHeader:
    """Read up to the data of a .npy that is `size_bytes` long.

    Raises ValueError for another format, for pickled objects, when the data cannot all be there (no memory is ever asked for on
    the word of a header alone), and when something follows them: another array would be left out unseen.
    """
    version = np.lib.format.read_magic(file)
    if version not in _HEADER_READERS:
        raise ValueError(f"it has version {version} of the .npy format, which plain arrays do not need")
    header = NpyHeader(*_HEADER_READERS[version](file))
    if header.dtype.hasobject:
        raise ValueError("it holds pickled Python objects, which can run code and are never loaded")
    if min(header.shape, default=0) < 0:
        raise ValueError(f"its shape is {header.shape}")
    data_bytes = size_bytes - file.tell()
    if data_bytes < header.data_bytes:
        raise ValueError(f"it ends after {data_bytes} of {header.data_bytes} bytes of data")
    if data_bytes > header.data_bytes:
        extra = data_bytes - header.data_bytes
        raise ValueError(
            f"{extra} bytes follow its array, as where several arrays are saved to one file, of which only the first would be read"
        )
    return header


def read_array(file: IO[bytes], size_bytes: int) -> Array:
    """Read a whole .npy. Raises ValueError as read_header does."""
    return _read_data(file, read_header(file, size_bytes))


def read_rows(file: IO[bytes], size_bytes: int, counts: Iterable[int]) -> Iterator[Array]:
    """Read `counts` rows of axis 0 (a rank-0 array has one), one batch of them after another.

    Holds one batch at a time; an array in Fortran order, whose rows are scattered, is held whole.
    """
    header = read_header(file, size_bytes)
    if header.is_fortran:
        yield from _split(_read_data(file, header), counts)
        return
    for count in counts:
        yield _read_data(file, NpyHeader((count, *header.shape[1:]), False, header.dtype))


def _split(array: Array, counts: Iterable[int]) -> Iterator[Array]:
    start = 0
    for count in counts:
        yield array[start : start + count]
        start += count


def _read_data(file: IO[bytes], header: NpyHeader) -> Array:
    data = bytearray(file.read(header.data_bytes))
    order: Literal["C", "F"] = "F" if header.is_fortran else "C"
    array: Array = np.frombuffer(data, header.dtype).reshape(header.shape, order=order)
    return array
