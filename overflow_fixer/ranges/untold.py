"""What is not told of values inside nodes: see records.InnerRange."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.inner import LONGEST_UNTOLD, SIGNED, InnerValue, Inside
from overflow_fixer.ranges.summaries import Summaries, no_summaries, put_rows


class Untold:
    """Takes it out of the summaries of a batch, of which the rows of the values stand behind those of the tensors, and those of
    sums of products behind them. Where several runs are tallied, those of which nothing is told are left out already.
    """

    def __init__(self, tensors: Sequence[str], inside: Inside, is_tallied: bool) -> None:
        self._first, values = len(tensors), inside.values
        of_products = [False] * len(inside.products)
        self._are_unsigned = ~np.array([*(v.quantity in SIGNED for v in values), *of_products], np.bool_)
        self._may_divide = np.array([*(value.may_divide for value in values), *of_products], np.bool_)
        row_of = {name: row for row, name in enumerate(tensors)}
        self._sources = np.array([row_of[value.source] for value in values], np.int64)
        longest = [0 if is_tallied else longest_untold(value) for value in values]
        self._longest = np.array(longest, np.int64)

    def drop(self, seen: Summaries) -> None:
        """Values of which nothing is told, in place: of short rows, and of none, of which the largest element is -inf."""
        counts = seen["element_count"]
        rows = counts[self._first : self._first + len(self._sources)]
        is_untold = counts[self._sources] <= self._longest * rows
        put_rows(seen, self._first + np.flatnonzero(is_untold), no_summaries(1))

    def hide(self, inner: Summaries) -> None:
        """What is not told of the values, in place; `inner` are the rows behind those of the tensors."""
        inner["over_fp16_count"], inner["min"][self._are_unsigned] = 0, np.nan
        least = inner["min_nonzero_abs"]
        least[~(least < FP16_OVERFLOW)] = np.nan
        least[~self._may_divide] = -np.inf


def longest_untold(value: InnerValue) -> int:
    """The length up to which rows tell nothing of the value."""
    return LONGEST_UNTOLD.get(value.quantity, 0)
