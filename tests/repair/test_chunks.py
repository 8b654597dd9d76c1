"""Groups of tensors stay within the bound, by what is expected and then by what was seen."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_fixer.records import Range, RangeTable
from overflow_fixer.repair import chunks
from overflow_fixer.repair.chunks import Chunks


def ranges_of(*counts: int, batches: int = 1) -> RangeTable:
    """Tensors t0, t1, ... of so many elements in a mean batch."""
    found = tuple(
        Range(f"t{i}", 1.0, 0.0, 1.0, 1.0, count * batches, 0, 0, 0, 0) for i, count in enumerate(counts)
    )
    names = tuple(f"batch_{i}" for i in range(batches))
    return RangeTable("0" * 64, "memory", False, found, names, np.zeros((len(counts), batches), np.float32))


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 5))
def test_every_tensor_comes_once_in_order_and_groups_fit(counts: list[int], batches: int) -> None:
    names = [f"t{i}" for i in range(len(counts))]
    bound = 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "CHUNK_BYTES", bound)
        groups = list(Chunks(ranges_of(*counts, batches=batches)).cut(names))
    assert [name for group in groups for name in group] == names
    assert all(groups)
    sizes = [sum(4 * 8 * counts[int(name[1:])] for name in group) for group in groups]
    assert all(size <= bound or len(group) == 1 for size, group in zip(sizes, groups, strict=True))


def test_groups_follow_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 8000)
    some = Chunks(ranges_of(*[100] * 30))
    seen = []
    for group in some.cut([f"t{i}" for i in range(30)]):
        seen.append(len(group))
        some.note(group, len(group) * 800 * (1 if len(seen) == 1 else 2))
    assert seen[:3] == [2, 10, 5], "800 bytes expected, taken for 3200; then 800; then 1600"


def test_a_tensor_that_was_not_observed_takes_its_chance() -> None:
    assert list(Chunks(ranges_of()).cut(["a", "b"])) == [["a", "b"]]
    assert list(Chunks(ranges_of()).cut([])) == []
    assert math.log2(chunks.CHUNK_BYTES) == 28
