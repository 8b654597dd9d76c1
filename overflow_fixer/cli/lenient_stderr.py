"""What is told on stderr, beside the result: that it cannot be written is no reason to end, or to end with another code."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


def drop_unwritable() -> None:
    """Have what stderr does not take, on a full disk or of a closed terminal, go nowhere from now on."""
    if isinstance(sys.stderr, io.TextIOWrapper):
        kept = io.BufferedWriter(_Dropping(sys.stderr.fileno()))
        sys.stderr = io.TextIOWrapper(kept, sys.stderr.encoding, "backslashreplace", line_buffering=True)


class _Dropping(io.RawIOBase):
    """Writes to a descriptor as far as that takes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        left = memoryview(content).cast("B")
        size = len(left)
        try:
            while left:
                left = left[os.write(self._descriptor, left) :]
        except OSError:
            left.release()
        return size
