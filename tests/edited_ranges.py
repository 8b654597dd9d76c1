"""Ranges files that are changed by hand, and signed again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from overflow_fixer.ranges.integrity import BLOCK_BYTES, sign


@contextmanager
def edit_ranges(path: Path) -> Iterator[Any]:
    """The open HDF5 file; its checksum is that of what it holds afterwards."""
    with h5py.File(path, "r+") as file:
        yield file
    content = path.read_bytes()
    path.write_bytes(sign(memoryview(content)) + content[BLOCK_BYTES:])
