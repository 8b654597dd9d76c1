"""Parts of an output of which its SNR does not show what became of them: smaller than the rest, or one of very many."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overflow_fixer.metrics.axis_sums import reduce_to_axes
from overflow_fixer.metrics.error_meter import QUIET_SHARE
from overflow_fixer.records import Array, HiddenSlice

_LEAST_ELEMENTS = 8
"""Fewer are near zero by chance."""
_MOST_INDICES = 1 << 16
"""What is longer is time or space, and no list of channels."""
MOST_CHANNELS = 128
"""What is longer may well be time, space or features, of which a row is small or all but constant by chance."""
_MOST_SIZES = 16
"""Of an axis that is of another size in each batch no more are kept, so that memory stays flat."""
_MANY = 0.2
"""A larger share of the slices than are small by chance."""
_LEAST_SQUARE = 2.0**-252
"""Of FP32's least normal number: what is smaller on average is as good as zero."""
_CONCENTRATED = 10.0
"""A slice that errs so many times as much as the mean one, and more than is allowed, is wrong by itself."""
_FEWEST = 3
"""Fewer elements that err as much as the worst are flips: two choices that are as good."""
_ROUNDING = 2.0**-22
"""The energy of what rounding to FP16 takes, as a share of what is rounded."""


@dataclass
class SliceSums:
    """By index along an axis: the sums of squares of reference and error and the largest square of an error, float64 [size], and
    how many elements each has.
    """

    reference: Array
    error: Array
    largest: Array
    elements: int = 0

    def add(self, found: Array, elements: int) -> None:
        """What reduce_to_axes finds of one batch, which has so many elements at each index."""
        with np.errstate(over="ignore"):
            self.reference += found[0]
            self.error += found[1]
        np.maximum(self.largest, found[2], out=self.largest)
        self.elements += elements


@dataclass
class SliceMeter:
    """Accumulates the error of an output at each index of its axes but the first, over batches.

    Outputs of less than two axes, or that are no arrays of floats, have no slices. NaN and infinities count as 0 on both
    sides. Sizes of an axis that differ between batches are kept apart, the first few of them. Squares over float64's range
    make a slice unknown.
    """

    tensor: str
    sums: dict[tuple[int, int], SliceSums] = field(default_factory=dict)
    """By axis and its size."""
    last_axes: set[int] = field(default_factory=set)

    def add(self, reference: Any, candidate: Any) -> None:
        """One batch: two arrays of one shape; nothing is taken of others."""
        arrays = [
            value
            for value in (reference, candidate)
            if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        ]
        if len(arrays) < 2 or reference.shape != candidate.shape or reference.ndim < 2 or not reference.size:
            return
        self.last_axes.add(reference.ndim - 1)
        axes = [axis for axis in range(1, reference.ndim) if self._has_place(axis, reference.shape[axis])]
        for axis, found in reduce_to_axes(reference, candidate, axes).items():
            self.sums[axis, reference.shape[axis]].add(found, reference.size // reference.shape[axis])

    def _has_place(self, axis: int, size: int) -> bool:
        """Whether sums are kept of an axis of that size; from now on, where there is room for them."""
        if (axis, size) in self.sums:
            return True
        has_room = size <= _MOST_INDICES and len(self.sums) < _MOST_SIZES
        if has_room:
            self.sums[axis, size] = SliceSums(*np.zeros((3, size)))
        return has_room

    def find_hidden(self, min_snr_db: float) -> HiddenSlice | None:
        """The worst slice under this SNR whose error the output's SNR does not show; None where there is none.

        Either one along the second or last axis, or one of no more than 128 between, that has less than 1 % of the
        output's mean energy and is not as good as zero. Where these are few, the error must be as much smaller than the
        mean error, or than what rounding takes of the mean: a slice that errs as the others do is small by chance, as a
        logit near zero is. Or one along any axis, not as good as zero, whose error is ten times the mean one and ten times
        what is allowed, and not that of one or two elements: the one key that was computed beside those that were copied.
        """
        found = (self._find_in(*key, min_snr_db) for key in self.sums)
        return min((one for one in found if one is not None), key=lambda one: one.snr_db, default=None)

    def has_one_size(self, axis: int) -> bool:
        """Whether the axis is of one size in all batches of which something was taken."""
        return sum(one == axis for one, _ in self.sums) == 1

    def _find_in(self, axis: int, size: int, min_snr_db: float) -> HiddenSlice | None:
        sums = self.sums[axis, size]
        mean = sums.reference.mean()
        if sums.elements < _LEAST_ELEMENTS or not 0 < mean < math.inf:
            return None
        with np.errstate(divide="ignore", invalid="ignore"):
            snr_db = 10 * (np.log10(sums.reference) - np.log10(sums.error))
        is_hidden = _err_alone(sums, snr_db, min_snr_db)
        if axis == 1 or axis in self.last_axes or size <= MOST_CHANNELS:
            is_hidden |= _are_small(sums, snr_db, min_snr_db)
        if not is_hidden.any():
            return None
        worst = int(np.argmin(np.where(is_hidden, snr_db, np.inf)))
        rms, output_rms = (math.sqrt(energy / sums.elements) for energy in (sums.reference[worst], mean))
        count = int(np.count_nonzero(is_hidden))
        is_last = axis in self.last_axes
        return HiddenSlice(self.tensor, axis, worst, count, float(snr_db[worst]), rms, output_rms, is_last)


def _are_small(sums: SliceSums, snr_db: Array, min_snr_db: float) -> Array:
    mean = sums.reference.mean()
    is_small = (sums.reference >= _LEAST_SQUARE * sums.elements) & (sums.reference < QUIET_SHARE * mean)
    is_hidden = is_small & (snr_db < min_snr_db)
    if np.count_nonzero(is_hidden) < _MANY * len(is_hidden):
        is_hidden &= sums.error < QUIET_SHARE * max(sums.error.mean(), _ROUNDING * mean)
    return np.asarray(is_hidden)


def _err_alone(sums: SliceSums, snr_db: Array, min_snr_db: float) -> Array:
    is_told = sums.reference >= _LEAST_SQUARE * sums.elements
    errs_more = sums.error >= _CONCENTRATED * sums.error.mean()
    are_many = sums.error >= _FEWEST * sums.largest
    is_low = snr_db < min_snr_db - 10 * math.log10(_CONCENTRATED)
    return np.asarray(is_told & errs_more & are_many & is_low)
