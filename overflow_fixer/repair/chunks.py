"""Tensors in groups that are held in memory together, so that comparing all of a model stays bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from overflow_fixer.records import RangeTable

CHUNK_BYTES = 256 << 20
_FIRST_GROWTH = 4.0
_BYTES_AN_ELEMENT = 8


@dataclass
class Chunks:
    """Groups of tensors whose values, two FP32 copies of each, are expected to fit CHUNK_BYTES.

    The ranges tell the size in a mean batch; the batch at hand may be larger. It is taken to be four
    times as large until `note` has been told what a group really took.
    """

    ranges: RangeTable
    _growths: list[float] = field(default_factory=list)

    def cut(self, tensors: Sequence[str]) -> Iterator[Sequence[str]]:
        """The tensors in order, group by group, at least one in each."""
        while tensors:
            count = self._count(tensors)
            yield tensors[:count]
            tensors = tensors[count:]

    def note(self, tensors: Sequence[str], size_bytes: int) -> None:
        """Learn from what the values of a group took."""
        self._growths.append(size_bytes / max(sum(map(self._expected_bytes, tensors)), 1))

    def _count(self, tensors: Sequence[str]) -> int:
        growth = max(self._growths, default=_FIRST_GROWTH)
        size_bytes = 0.0
        for count, tensor in enumerate(tensors):
            size_bytes += growth * self._expected_bytes(tensor)
            if count and size_bytes > CHUNK_BYTES:
                return count
        return len(tensors)

    def _expected_bytes(self, tensor: str) -> int:
        seen = self.ranges.get(tensor)
        count = 0 if seen is None else seen.element_count
        return _BYTES_AN_ELEMENT * count // max(len(self.ranges.batch_names), 1)
