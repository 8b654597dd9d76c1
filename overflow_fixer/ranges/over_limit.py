"""The tensors over a limit, told as a scan finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from overflow_fixer.ranges.recording import Recording
from overflow_fixer.records import Range

OnOver = Callable[[Sequence[Range]], None]
"""Called with the ranges so far of the tensors that are newly over the limit, or further over it than before."""


def ignore_over(ranges: Sequence[Range]) -> None:
    """Tell nobody."""


class OverLimit:
    """Tells each tensor whose max |x| is over `limit`, or that holds NaN or infinity, when that gets worse."""

    def __init__(self, limit: float, tell: OnOver) -> None:
        self._limit = limit
        self._tell = tell
        self._told_max_abs: np.ndarray = np.array(np.nan)
        self._told_nan: np.ndarray = np.array(False)

    def look(self, recording: Recording) -> None:
        """Tell what got worse since the last look; nothing is told where nothing did."""
        totals = recording.totals[: len(recording.tensors)]
        max_abs, has_nan = totals["max_abs"], totals["nan_count"] > 0
        is_worse = (max_abs > np.fmax(self._told_max_abs, self._limit)) | (has_nan & ~self._told_nan)
        self._told_max_abs, self._told_nan = max_abs, has_nan
        rows = np.flatnonzero(is_worse)
        if rows.size:
            self._tell(recording.ranges(rows))
