"""Elements that FP32 has positive and the candidate negative, or zero, where an output is never so in FP32: variances, distances,
their roots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from overflow_fixer.metrics.parts import Part
from overflow_fixer.records import Array, Becomes, SignChange

_LEAST_ELEMENTS = 8
"""Fewer are never negative by chance."""
_SIZABLE = 2.0**-14
"""FP16's least normal number: of less it is known to lose digits."""
_OWN_ROUNDING = 2.0**-20
"""Of the largest value of a batch: what FP32's own rounding leaves of a difference, eight of its steps."""
_SUBNORMAL = 2.0**-24
"""FP16's smallest number."""
_ROUNDING = 2.0**-11
"""Of the largest value of a batch: what is less is zero where one rounding to FP16 is as large, as 1 - p is for p = 0.9999."""
_NOTICEABLE = 2.0**-8
"""Of the largest value of a batch: eight of FP16's steps there."""


@dataclass(frozen=True)
class _Found:
    """How many elements there are, and of the worst how bad it is, what both have, and in which batch."""

    count: int
    badness: float
    reference: float
    candidate: float
    batch: str


@dataclass
class SignMeter:
    """Counts elements of an output, or a part, that are negative, or zero, in the candidate alone, over batches.

    Told are negative ones of what FP32 never has negative (but by 2^-20 of the batch's largest value, its own rounding), and
    zeros of what it has positive throughout. What FP32 has at 2^-14 and more, and 2^-20 of the batch's largest value, counts as
    negative if it is beyond FP16's smallest number (-2^-24). What FP32 has smaller, or as zero, does only beyond 2^-8 of the batch's
    largest value: rounding leaves such. What FP32 has at 2^-14 and more, and 2^-11 of the largest value, counts as zero if it is neither
    positive nor so negative. NaN and infinities on
    either side are left out, but that -inf in FP32 is negative. Nothing is taken of what is no array of floats, of other shapes,
    or once FP32 was negative: a few numbers are kept, whatever comes.
    """

    part: Part
    elements: int = 0
    is_signed: bool = False
    has_zeros: bool = False
    negative: _Found | None = None
    zero: _Found | None = None

    def add(self, reference: Any, candidate: Any, batch: str) -> None:
        """One batch of the whole output. Raises ConfigError where it has not got the part."""
        arrays = [
            one for one in (reference, candidate) if isinstance(one, np.ndarray) and one.dtype.kind == "f"
        ]
        if self.is_signed or len(arrays) < 2 or reference.shape != candidate.shape:
            return
        expected, found = (self.part.take(one).reshape(-1) for one in arrays)
        if not expected.size:
            return
        least = float(np.fmin.reduce(expected))
        largest = float(np.max(expected, initial=0.0, where=np.isfinite(expected)))
        self.is_signed |= least < -_OWN_ROUNDING * largest
        self.has_zeros |= least <= 0
        self.elements += expected.size
        lowest = found.min()  # NaN where there is one
        if not self.is_signed and not (lowest > 0 or (self.has_zeros and lowest >= 0)):
            self._add_finite(expected, found, batch)

    def _add_finite(self, expected: Array, found: Array, batch: str) -> None:
        """Both [n], some of which may be NaN or infinite."""
        is_finite = np.isfinite(expected) & np.isfinite(found)
        if not is_finite.all():
            expected, found = expected[is_finite], found[is_finite]
        largest = float(expected.max(initial=0))
        if largest <= 0:
            return
        is_sizable = expected >= max(_SIZABLE, _OWN_ROUNDING * largest)
        is_negative = is_sizable & (found < -_SUBNORMAL)
        with np.errstate(over="ignore"):  # FP16 may not hold the limit, and then has nothing beyond it
            is_negative |= found < -max(_SUBNORMAL, _NOTICEABLE * largest)
        is_zero = (expected >= max(_SIZABLE, _ROUNDING * largest)) & (found <= 0) & ~is_negative
        self.negative = _add_worst(self.negative, expected, found, is_negative, -found, batch)
        self.zero = _add_worst(self.zero, expected, found, is_zero, expected, batch)

    def find(self) -> Iterator[SignChange]:
        """What is told of all batches added so far."""
        if self.is_signed or self.elements < _LEAST_ELEMENTS:
            return
        if self.negative is not None:
            yield self._tell("negative", self.negative)
        if self.zero is not None and not self.has_zeros:
            yield self._tell("zero", self.zero)

    def _tell(self, becomes: Becomes, found: _Found) -> SignChange:
        names = self.part.output, self.part.text
        return SignChange(
            *names, becomes, found.count, self.elements, found.reference, found.candidate, found.batch
        )


def _add_worst(
    known: _Found | None, expected: Array, found: Array, is_so: Array, badness: Array, batch: str
) -> _Found | None:
    """With those elements that `is_so` chooses; all arrays [n]. Of such that are as bad, the first stays."""
    places = np.flatnonzero(is_so)
    if not places.size:
        return known
    worst = places[np.argmax(badness[places])]
    bad, reference, candidate = (float(values[worst]) for values in (badness, expected, found))
    new = _Found(places.size, bad, reference, candidate, batch)
    if known is None:
        return new
    return replace(new if new.badness > known.badness else known, count=known.count + new.count)
