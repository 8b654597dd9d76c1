"""Classes of an output of integers (a map of labels) that are lost or gained, where the share of all equal elements does not show it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overflow_fixer.records import Array, GainedClass, HiddenClass

_MOST_CLASSES = 1 << 16
"""What spans more values is numbers or places, and no list of classes."""
_LEAST_ELEMENTS = 8
"""Of fewer it is chance that half of them are others."""
_LEAST_MISSING = 3
"""Of fewer it is chance that none is left."""
_LOST = 0.5
"""A smaller share of a class that is as in FP32 is a class lost; one that is told from another by little loses some."""
_GAINED = 4
"""So many times as many elements as in FP32 are a class gained; where two are as good, one gains about what it loses."""


@dataclass
class ClassMeter:
    """Counts, for each value of an output of integers or booleans, its elements in FP32, those that are equal, and others that
    are it in the candidate alone.

    Nothing is taken of what is no such array, of other shapes, or where the values of a batch span 2^16 and more, nor once there
    are more values than that.
    """

    tensor: str
    elements: dict[int, int] = field(default_factory=dict)
    equal: dict[int, int] = field(default_factory=dict)
    strayed: dict[int, int] = field(default_factory=dict)

    def add(self, reference: Any, candidate: Any) -> None:
        """One batch."""
        arrays = [
            one for one in (reference, candidate) if isinstance(one, np.ndarray) and one.dtype.kind in "iub"
        ]
        if len(arrays) < 2 or reference.shape != candidate.shape or not reference.size:
            return
        least, largest = int(reference.min()), int(reference.max())
        if largest - least >= _MOST_CLASSES or largest >= 1 << 63 or len(self.elements) > _MOST_CLASSES:
            return
        _count(self.elements, reference, least)
        is_equal = reference == candidate
        _count(self.equal, reference[is_equal], least)
        self._add_strayed(candidate[~is_equal])

    def _add_strayed(self, values: Array) -> None:
        """[n], which may span any range: NaN becomes the least integer there is."""
        for value, count in zip(
            *(one.tolist() for one in np.unique(values, return_counts=True)), strict=True
        ):
            if len(self.strayed) < _MOST_CLASSES:
                self.strayed[int(value)] = self.strayed.get(int(value), 0) + count

    def find_hidden(self) -> HiddenClass | None:
        """The class of at least 8 elements that is equal in the least share of them, and in under half; else one that is missing;
        None without either.
        """
        shares = {
            value: self.equal.get(value, 0) / count
            for value, count in self.elements.items()
            if count >= _LEAST_ELEMENTS
        }
        lost = [value for value, share in shares.items() if share < _LOST]
        missing = list(self._find_missing())
        if not lost and not missing:
            return None
        worst = min(lost or missing, key=lambda value: (shares.get(value, 0), -self.elements[value]))
        count = len(lost) + len(missing)
        return HiddenClass(self.tensor, worst, count, self.elements[worst], self.equal.get(worst, 0))

    def _find_missing(self) -> Iterator[int]:
        """Classes of 3 to 7 elements that the candidate has nowhere, where classes have 8 and more on average: else they are
        places or numbers.
        """
        is_list = sum(self.elements.values()) >= _LEAST_ELEMENTS * len(self.elements)
        if not is_list or len(self.strayed) >= _MOST_CLASSES:
            return
        for value, count in self.elements.items():
            is_anywhere = value in self.equal or value in self.strayed
            if _LEAST_MISSING <= count < _LEAST_ELEMENTS and not is_anywhere:
                yield value

    def find_gained(self) -> GainedClass | None:
        """The value that gains most, of those with 8 elements more than in FP32 and four times as many; None without one."""
        found = {value: self.equal.get(value, 0) + count for value, count in self.strayed.items()}
        gains = {value: count - self.elements.get(value, 0) for value, count in found.items()}
        gained = [
            value
            for value, gain in gains.items()
            if gain >= _LEAST_ELEMENTS and found[value] >= _GAINED * self.elements.get(value, 0)
        ]
        if not gained:
            return None
        most = max(gained, key=lambda value: (gains[value], -value))
        return GainedClass(self.tensor, most, len(gained), self.elements.get(most, 0), found[most])


def _count(counts: dict[int, int], values: Array, least: int) -> None:
    """Add how often each of the values is there, which are `least` or more."""
    found = np.bincount(values.reshape(-1).astype(np.int64) - least)
    for offset in np.flatnonzero(found).tolist():
        counts[least + offset] = counts.get(least + offset, 0) + int(found[offset])
