"""Classes that are lost in an output of integers, against counting one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from overflow_fixer.metrics.classes import ClassMeter
from overflow_fixer.records import Array, HiddenClass


def _find(*batches: tuple[Any, Any]) -> HiddenClass | None:
    meter = ClassMeter("y")
    for reference, candidate in batches:
        meter.add(reference, candidate)
    return meter.find_hidden()


LABELS = arrays.arrays(np.int64, (3, 40), elements=st.integers(-2, 2))


@given(LABELS, LABELS)
def test_the_class_of_which_the_least_share_is_equal(reference: Array, candidate: Array) -> None:
    shares = {
        value: (candidate[reference == value] == value).mean()
        for value in range(-2, 3)
        if (reference == value).sum() >= 8
    }
    found = _find(*zip(reference, candidate, strict=True))
    lost = {value: share for value, share in shares.items() if share < 0.5}
    assert (found is None) == (not lost)
    if found is not None:
        assert lost[found.value] == min(lost.values())
        assert found.count == len(lost)
        assert found.elements == (reference == found.value).sum()
        assert found.equal == ((reference == found.value) & (candidate == found.value)).sum()


@pytest.mark.parametrize(
    ("elements", "equal", "is_lost"),
    [(8, 3, True), (8, 4, False), (7, 0, False), (100, 49, True), (100, 50, False)],
)
def test_boundary(elements: int, equal: int, is_lost: bool) -> None:
    reference = np.zeros(10_000, np.int32)
    reference[:elements] = 5
    candidate = reference.copy()
    candidate[equal:elements] = 0
    found = _find((reference, candidate))
    assert found == (HiddenClass("y", 5, 1, elements, equal) if is_lost else None)


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int8, np.int16, np.int64, np.uint64])
def test_of_every_type_of_integers(dtype: type) -> None:
    reference = np.array([1] * 9 + [0] * 90).astype(dtype)
    assert _find((reference, np.zeros_like(reference))) == HiddenClass("y", 1, 1, 9, 0)


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (np.ones(9, np.float32), np.zeros(9, np.float32)),
        (np.ones(9, np.int64), np.zeros(8, np.int64)),
        ([np.ones(9, np.int64)], [np.zeros(9, np.int64)]),
        (np.ones(0, np.int64), np.ones(0, np.int64)),
        (np.array(["a"] * 9), np.array(["b"] * 9)),
        (np.array([0] * 9 + [1 << 16]), np.array([1] * 10)),
        (np.full(9, (1 << 64) - 1, np.uint64), np.zeros(9, np.uint64)),
        (np.int64(1), np.int64(0)),
    ],
    ids=str,
)
def test_of_what_are_no_classes_nothing_is_told(reference: Any, candidate: Any) -> None:
    assert _find((reference, candidate)) is None


def test_int8_from_end_to_end() -> None:
    reference = np.repeat(np.array([-128, 127], np.int8), 9)
    found = _find((reference, np.full_like(reference, 127)))
    assert found == HiddenClass("y", -128, 1, 9, 0)


def test_memory_does_not_grow_with_values_that_differ() -> None:
    meter = ClassMeter("y")
    for start in range(0, 1 << 20, 1 << 14):
        values = np.arange(start, start + (1 << 14))
        meter.add(values, values)
    assert len(meter.elements) <= (1 << 16) + (1 << 14)
