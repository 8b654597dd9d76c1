"""Channels that vary so little beside their own mean that neither the output's SNR nor what varies of the whole shows what became of that.

Of a temperature of 288 and a pressure of 1013 it is the distance between the two that the whole varies by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overflow_fixer.metrics.error_meter import QUIET_SHARE
from overflow_fixer.metrics.slices import MOST_CHANNELS, SliceMeter, SliceSums
from overflow_fixer.metrics.variations import LEAST_SHARE
from overflow_fixer.records import Array, HiddenVariation

_LEAST_ELEMENTS = 8
"""Of fewer in a sample there is no mean to speak of."""
_ROUNDING = 2.0**-20
"""The energy that sixteen roundings to FP16 take, as a share of what is rounded."""
_BEYOND_DB = 10.0
"""How far under its limit is what errs by more: a logit of a class that is nowhere errs as the others do, and hardly varies."""


@dataclass
class _Means:
    """By index along an axis: what the means of each sample's elements have of the sum of squares, float64 [size], and how many samples."""

    energy: Array
    samples: int = 0


@dataclass
class ChannelVariationMeter:
    """Accumulates how an output in FP32 varies within each sample at an index of its second or its last axis, over batches.

    Of an axis whose size differs between batches nothing is told: it is time or space, and no list of channels.

    Nothing is taken of what `slices`, the meter of the same output's slices, has nothing of. NaN, infinities and squares over
    float64's range make what varies of their channel unknown.
    """

    slices: SliceMeter
    means: dict[tuple[int, int], _Means] = field(default_factory=dict)
    """By axis and its size."""

    def add(self, reference: Any) -> None:
        """One batch, of which the slices have been taken."""
        if not isinstance(reference, np.ndarray) or not reference.size:
            return
        for axis in {1, reference.ndim - 1} if reference.ndim > 2 else ():
            size = reference.shape[axis]
            if 1 < size <= MOST_CHANNELS and (axis, size) in self.slices.sums:
                means = self.means.setdefault((axis, size), _Means(np.zeros(size)))
                means.energy += _square_means(reference, axis)
                means.samples += len(reference)

    def find_hidden(self, min_snr_db: float) -> HiddenVariation | None:
        """The channel of which what varies has the lowest SNR, under this one and with under 1 % of the channel's energy; else None.

        Under it by 10 dB where the error is not one that rounding beside the mean explains.
        """
        found = (self._find_in(*key, min_snr_db) for key in self.means if self.slices.has_one_size(key[0]))
        return min((one for one in found if one is not None), key=lambda one: one.snr_db, default=None)

    def _find_in(self, axis: int, size: int, min_snr_db: float) -> HiddenVariation | None:
        sums, means = self.slices.sums[axis, size], self.means[axis, size]
        if sums.elements < _LEAST_ELEMENTS * means.samples:
            return None
        snr_db, share = _judge(sums, means)
        limit_db = np.where(sums.error < _ROUNDING * sums.reference, min_snr_db, min_snr_db - _BEYOND_DB)
        is_hidden = (snr_db < limit_db) & (share > LEAST_SHARE) & (share < QUIET_SHARE)
        if not is_hidden.any():
            return None
        worst = int(np.argmin(np.where(is_hidden, snr_db, np.inf)))
        energy = float(sums.reference[worst]) / sums.elements
        return HiddenVariation(
            self.slices.tensor,
            float(snr_db[worst]),
            rms=math.sqrt(energy * float(share[worst])),
            output_rms=math.sqrt(energy),
            within_samples=True,
            axis=axis,
            index=worst,
            count=int(np.count_nonzero(is_hidden)),
            is_last=axis in self.slices.last_axes,
        )


def _judge(sums: SliceSums, means: _Means) -> tuple[Array, Array]:
    """By index: the SNR of what varies in dB, and its share of the energy; NaN where that is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        varying = sums.reference - means.energy
        return 10 * (np.log10(varying) - np.log10(sums.error)), varying / sums.reference


def _square_means(reference: Array, axis: int) -> Array:
    others = tuple(one for one in range(1, reference.ndim) if one != axis)
    width = reference.size // (len(reference) * reference.shape[axis])
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray((reference.sum(others, dtype=np.float64) ** 2).sum(axis=0) / width)
