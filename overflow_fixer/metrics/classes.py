"""Classes of an output of integers (a map of labels) that are lost, where the share of all equal elements does not show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overflow_fixer.records import Array, HiddenClass

_MOST_CLASSES = 1 << 16
"""What spans more values is numbers or places, and no list of classes."""
_LEAST_ELEMENTS = 8
"""Of fewer it is chance."""
_LOST = 0.5
"""A smaller share of a class that is as in FP32 is a class lost; one that is told from another by little loses some."""


@dataclass
class ClassMeter:
    """Counts, for each value that an output of integers or booleans has in FP32, its elements and those that are equal, over batches.

    Nothing is taken of what is no such array, of other shapes, or where the values of a batch span 2^16 and more, nor once there
    are more values than that.
    """

    tensor: str
    elements: dict[int, int] = field(default_factory=dict)
    equal: dict[int, int] = field(default_factory=dict)

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
        _count(self.equal, reference[reference == candidate], least)

    def find_hidden(self) -> HiddenClass | None:
        """The class of at least 8 elements that is equal in the least share of them, and in under half; None without one."""
        shares = {
            value: self.equal.get(value, 0) / count
            for value, count in self.elements.items()
            if count >= _LEAST_ELEMENTS
        }
        lost = [value for value, share in shares.items() if share < _LOST]
        if not lost:
            return None
        worst = min(lost, key=lambda value: (shares[value], -self.elements[value]))
        return HiddenClass(self.tensor, worst, len(lost), self.elements[worst], self.equal.get(worst, 0))


def _count(counts: dict[int, int], values: Array, least: int) -> None:
    """Add how often each of the values is there, which are `least` or more."""
    found = np.bincount(values.reshape(-1).astype(np.int64) - least)
    for offset in np.flatnonzero(found).tolist():
        counts[least + offset] = counts.get(least + offset, 0) + int(found[offset])
