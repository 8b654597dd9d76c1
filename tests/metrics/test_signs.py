"""Elements that become negative, or zero, against counting one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from overflow_fixer.metrics.parts import Part, find_parts
from overflow_fixer.metrics.signs import SignMeter
from overflow_fixer.records import Array, SignChange, Tolerance

WHOLE = Part("y")


def _find(*batches: tuple[Any, Any], part: Part = WHOLE) -> dict[str, SignChange]:
    meter = SignMeter(part)
    for number, (reference, candidate) in enumerate(batches):
        meter.add(reference, candidate, f"b{number}")
    return {found.becomes: found for found in meter.find()}


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def _one(reference: float, candidate: float, largest: float = 100.0) -> dict[str, SignChange]:
    """Beside nine elements that are as in FP32."""
    rest = [largest] * 9
    return _find((f32(reference, *rest), f32(candidate, *rest)))


FINITE = st.floats(-4, 4, width=32) | st.sampled_from([0.0, -0.0, 2.0**-14, -(2.0**-24), -(2.0**-23)])
ANY = FINITE | st.sampled_from([np.nan, np.inf, -np.inf])
REFERENCES = arrays.arrays(
    np.float32, (3, 6), elements=st.floats(0, 4, width=32) | ANY.filter(lambda x: not x < 0)
)
CANDIDATES = arrays.arrays(np.float32, (3, 6), elements=ANY)


def _count(reference: Array, candidate: Array) -> tuple[int, int]:
    """Of one batch, element by element."""
    both = [(float(r), float(c)) for r, c in zip(reference, candidate, strict=True)]
    both = [(r, c) for r, c in both if np.isfinite(r) and np.isfinite(c)]
    largest = max((r for r, _ in both), default=0.0)
    is_sizable = [r >= max(2**-14, 2**-20 * largest) for r, _ in both]
    limits = [2**-24 if it_is else max(2**-24, 2**-8 * largest) for it_is in is_sizable]
    negative = [largest > 0 and c < -limit for (_, c), limit in zip(both, limits, strict=True)]
    least = max(2**-14, 2**-11 * largest)
    zero = [r >= least and c <= 0 and not below for (r, c), below in zip(both, negative, strict=True)]
    return sum(negative), sum(zero)


@given(REFERENCES, CANDIDATES)
def test_counts(references: Array, candidates: Array) -> None:
    counts = [_count(r, c) for r, c in zip(references, candidates, strict=True)]
    negative, zero = (sum(one) for one in zip(*counts, strict=True))
    if not (references > 0)[~np.isnan(references)].all():
        zero = 0
    found = _find(*zip(references, candidates, strict=True))
    assert {name: one.count for name, one in found.items()} == {
        name: count for name, count in (("negative", negative), ("zero", zero)) if count
    }
    assert all(one.elements == 18 for one in found.values())


@given(REFERENCES, CANDIDATES, st.permutations(range(6)), st.integers(-3, 8))
def test_neither_order_nor_scale_matters(
    references: Array, candidates: Array, order: list[int], exponent: int
) -> None:
    """Of values that FP16 has with all digits, a power of two is no matter."""
    references, candidates = (np.where(np.abs(a) < 2**-10, 0, a) for a in (references, candidates))
    factor = np.float32(2.0**exponent)
    one = _find(*zip(references, candidates, strict=True))
    other = _find(*zip(references[:, order] * factor, candidates[:, order] * factor, strict=True))
    assert {name: found.count for name, found in one.items()} == {
        name: found.count for name, found in other.items()
    }


def test_the_worst_is_told_with_its_batch() -> None:
    right = f32(*[9] * 8, 0.5, 0.25)
    first, second = (f32(*[9] * 8, *values) for values in ((-1, 0), (-3, -2)))
    third = f32(*[9] * 7, 0, 0, 0.25)
    found = _find((right, first), (right, second), (right, third))
    assert found == {
        "negative": SignChange("y", "", "negative", 3, 30, 0.5, -3.0, "b1"),
        "zero": SignChange("y", "", "zero", 3, 30, 9.0, 0.0, "b2"),
    }


@pytest.mark.parametrize(
    ("reference", "candidate", "becomes"),
    [
        (0.34, -3.65, "negative"),
        (0.009, -0.031, "negative"),
        (2**-13, -(2**-23), "negative"),
        (2**-13, -(2**-24), None),
        (0.5, -(2**-24), "zero"),
        (0.5, 0.0, "zero"),
        (0.5, -0.0, "zero"),
        (0.05, 0.0, "zero"),
        (0.048, 0.0, None),  # which 100 may be rounded by
        (2**-14.1, -0.3, None),  # FP16 has such with few digits, and 0.3 is rounding beside 100
        (0.0, -0.3, None),
        (0.0, -0.4, "negative"),
        (-(2**-14), -0.4, "negative"),  # as FP32's own rounding leaves beside 100
        (-(2**-13), -0.4, None),
        (2**-14.1, 0.0, None),
        (0.34, 3.65, None),
        (0.34, np.nan, None),
        (0.34, -np.inf, None),
        (np.nan, -1.0, None),
        (np.inf, -1.0, None),
        (-np.inf, -1.0, None),
    ],
)
def test_what_counts(reference: float, candidate: float, becomes: str | None) -> None:
    assert list(_one(reference, candidate)) == ([] if becomes is None else [becomes])


def test_what_fp32_itself_may_have_rounded_beside_the_largest_is_not_negative_by_little() -> None:
    assert list(_one(2**-5, -1, 2**15)) == ["negative"]
    assert list(_one(2**-6, -1, 2**15)) == []
    assert list(_one(2**-6, -129, 2**15)) == ["negative"]


def test_probabilities_that_are_taken_off_one_are_rounded_to_zero_and_not_told() -> None:
    p = (1 / (1 + np.exp(-np.linspace(-9, 9, 999)))).astype(np.float32)
    found = np.float16(1) - p.astype(np.float16)
    assert ((found == 0) & (1 - p > 2**-14)).any()
    assert _find((1 - p, found)) == {}


def test_where_fp32_has_a_zero_zeros_are_not_told() -> None:
    right, found = f32(*[5] * 9, 0), f32(*[5] * 8, 0, 0)
    assert _find((right, found)) == {}


def test_an_infinity_beside_negative_values_does_not_hide_these() -> None:
    rest = [np.inf, *[5.0] * 9]
    assert _find((f32(-12.33, *rest), f32(-12.34, *rest))) == {}
    found = _find((f32(0.25, *rest), f32(-0.5, *rest)))
    assert (found["negative"].count, found["negative"].candidate) == (1, -0.5)


def test_where_fp32_is_negative_in_any_batch_nothing_is_told() -> None:
    right, found = f32(*[5] * 9, 1), f32(*[5] * 8, 0, -1)
    assert set(_find((right, found))) == {"negative", "zero"}
    assert _find((-right, right), (right, found)) == _find((right, found), (-right, right)) == {}


def test_a_batch_that_is_zero_throughout_counts_nothing() -> None:
    assert _find((np.zeros(10, np.float32), np.full(10, -1, np.float32))) == {}


def test_fewer_than_eight_elements_are_positive_by_chance() -> None:
    assert _find((f32(*[1] * 7), f32(*[-1] * 7))) == {}
    assert set(_find((f32(*[1] * 8), f32(*[-1] * 8)))) == {"negative"}


def test_a_part_is_taken_by_itself() -> None:
    right = np.stack([-np.ones(10), np.ones(10)], axis=1).astype(np.float32)
    found = -np.abs(right)
    (part,) = find_parts(Tolerance(parts=("y[:, 1]",)), ["y"])
    assert _find((right, found)) == {}
    assert _find((right, found), part=part) == {
        "negative": SignChange("y", "[:, 1]", "negative", 10, 10, 1.0, -1.0, "b0")
    }


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_of_floats_of_every_width(dtype: type) -> None:
    assert _find((np.ones(8, np.float32), -np.ones(8, dtype)))["negative"].count == 8


@pytest.mark.filterwarnings("error")
def test_a_limit_that_fp16_cannot_hold_is_reached_by_nothing() -> None:
    candidate = np.array([60000] * 8 + [0, -60000], np.float16)
    assert _find((f32(*[3e7] * 8, 0, 0), candidate)) == {}


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (np.ones(9, np.int64), -np.ones(9, np.int64)),
        (np.ones(9, np.float32), -np.ones(8, np.float32)),
        ([np.ones(9, np.float32)], [-np.ones(9, np.float32)]),
        (np.ones(0, np.float32), np.ones(0, np.float32)),
        (np.full(9, np.nan, np.float32), -np.ones(9, np.float32)),
        (np.float32(1), np.float32(-1)),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_of_what_has_no_sign_nothing_is_told(reference: Any, candidate: Any) -> None:
    assert _find((reference, candidate)) == {}
