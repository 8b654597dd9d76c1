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
    counts = {value: int((reference == value).sum()) for value in range(-2, 3)}
    missing = {v: n for v, n in counts.items() if 3 <= n < 8 and not (candidate == v).any()}
    assert (found is None) == (not lost and not missing)
    if found is not None:
        assert found.value in (lost or missing)
        assert not lost or lost[found.value] == min(lost.values())
        assert lost or missing[found.value] == max(missing.values())
        assert found.count == len(lost) + len(missing)
        assert found.elements == (reference == found.value).sum()
        assert found.equal == ((reference == found.value) & (candidate == found.value)).sum()


@pytest.mark.parametrize(
    ("elements", "equal", "is_lost"),
    [
        (8, 3, True),
        (8, 4, False),
        (7, 0, True),
        (7, 1, False),
        (3, 0, True),
        (2, 0, False),
        (100, 49, True),
        (100, 50, False),
    ],
)
def test_boundary(elements: int, equal: int, is_lost: bool) -> None:
    reference = np.zeros(10_000, np.int32)
    reference[:elements] = 5
    candidate = reference.copy()
    candidate[equal:elements] = 0
    found = _find((reference, candidate))
    assert found == (HiddenClass("y", 5, 1, elements, equal) if is_lost else None)


def test_a_small_class_that_the_candidate_has_elsewhere_is_not_missing() -> None:
    reference = np.zeros(10_000, np.int32)
    reference[:5] = 5
    assert _find((reference, np.zeros_like(reference))) == HiddenClass("y", 5, 1, 5, 0)
    assert _find((reference, np.roll(reference, 5))) is None
    other = np.zeros((2, 10_000), np.int32)
    other[1, 7] = 5
    assert _find((reference, other[0]), (np.zeros_like(reference), other[1])) is None


def test_a_larger_class_that_is_lost_is_told_before_one_that_is_missing() -> None:
    reference = np.repeat(np.int32([0, 5, 7]), [1000, 5, 9])
    candidate = reference.copy()
    candidate[1000:-2] = 0
    assert _find((reference, candidate)) == HiddenClass("y", 7, 2, 9, 2)


@pytest.mark.parametrize(("per_value", "is_told"), [(8, False), (9, True)])
def test_of_places_none_is_missing(per_value: int, is_told: bool) -> None:
    """Where values have fewer than eight elements on average, they are no classes."""
    reference = np.repeat(np.arange(100), per_value)
    reference[:4] = 100
    candidate = np.where(reference == 100, 1, reference)
    assert (_find((reference, candidate)) is not None) == is_told


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
