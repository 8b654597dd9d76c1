"""Classes that are lost in an output of integers, against counting one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from overflow_fixer.metrics.classes import ClassMeter
from overflow_fixer.records import Array, GainedClass, HiddenClass


def _meter(*batches: tuple[Any, Any]) -> ClassMeter:
    meter = ClassMeter("y")
    for reference, candidate in batches:
        meter.add(reference, candidate)
    return meter


def _find(*batches: tuple[Any, Any]) -> HiddenClass | None:
    return _meter(*batches).find_hidden()


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
    meter = _meter((reference, candidate))
    assert (meter.find_hidden(), meter.find_gained()) == (None, None)


@given(LABELS, LABELS)
def test_the_class_that_gains_most(reference: Array, candidate: Array) -> None:
    counts = {value: ((reference == value).sum(), (candidate == value).sum()) for value in range(-2, 3)}
    gained = {value: b - a for value, (a, b) in counts.items() if b - a >= 8 and b >= 4 * a}
    found = _meter(*zip(reference, candidate, strict=True)).find_gained()
    assert (found is None) == (not gained)
    if found is not None:
        assert gained[found.value] == max(gained.values())
        assert (found.count, (found.elements, found.found)) == (len(gained), counts[found.value])


@pytest.mark.parametrize(
    ("elements", "gain", "is_gained"),
    [
        (0, 7, False),
        (0, 8, True),
        (2, 8, True),
        (3, 8, False),
        (3, 9, True),
        (100, 299, False),
        (100, 300, True),
    ],
)
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int64, np.uint64])
def test_boundary_of_a_gain(dtype: type, elements: int, gain: int, is_gained: bool) -> None:
    reference, candidate = np.zeros((2, 10_000), dtype)
    reference[:elements] = candidate[: elements + gain] = 1
    found = _meter((reference, candidate)).find_gained()
    assert found == (GainedClass("y", 1, 1, elements, elements + gain) if is_gained else None)


def test_a_value_far_from_all_others_is_gained() -> None:
    """What NaN becomes as an integer."""
    reference = np.zeros(1000, np.int64)
    candidate = reference.copy()
    candidate[:9] = np.iinfo(np.int64).min
    found = _meter((reference, candidate)).find_gained()
    assert found == GainedClass("y", int(np.iinfo(np.int64).min), 1, 0, 9)


def test_int8_from_end_to_end() -> None:
    reference = np.repeat(np.array([-128, 127], np.int8), 9)
    found = _find((reference, np.full_like(reference, 127)))
    assert found == HiddenClass("y", -128, 1, 9, 0)


def test_memory_does_not_grow_with_values_that_differ() -> None:
    meter = ClassMeter("y")
    for start in range(0, 1 << 20, 1 << 14):
        values = np.arange(start, start + (1 << 14))
        meter.add(values, values)
        meter.add(np.zeros(1 << 14, np.int64), values)
    assert len(meter.elements) <= (1 << 16) + (1 << 14)
    assert len(meter.strayed) <= 1 << 16
