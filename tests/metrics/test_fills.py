"""Constants that fill elements of outputs, and are no signal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from overflow_fixer.metrics.fills import without_fills
from overflow_fixer.records import Array


def _take(fills: list[float], reference: Any, candidate: Any) -> tuple[list[Any], list[Any]]:
    left, right = without_fills({"y": fills}, {"y": reference}, {"y": candidate})
    return left["y"].tolist(), right["y"].tolist()


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("fill", [-1e9, -1e4, float(np.finfo(np.float32).min), 35.0, -35.0])
def test_a_constant_that_both_have_is_zero_in_both(fill: float) -> None:
    assert _take([fill], f32(fill, 3, fill), f32(fill, 3.5, fill)) == ([0, 3, 0], [0, 3.5, 0])


def test_it_may_be_rounded_in_the_candidate() -> None:
    for dtype in (np.float16, np.float32):
        rounded = np.array([-1000.1, 1], np.float16).astype(dtype)
        assert _take([-1000.1], f32(-1000.1, 1), rounded) == ([0, 1], [0, 1])


@pytest.mark.parametrize("other", [-25000.0, 0.0, 1e9, -np.inf, np.nan, -1e9 * (1 + 2**-7)])
def test_anything_else_in_its_place_stays(other: float) -> None:
    left, right = without_fills({"y": [-1e9]}, {"y": f32(-1e9, 1)}, {"y": f32(other, 1)})
    assert left["y"].tolist() == f32(-1e9, 1).tolist()
    np.testing.assert_array_equal(right["y"], f32(other, 1))


def test_only_where_fp32_has_it() -> None:
    assert _take([-1e9], f32(1, -1e9), f32(-1e9, -1e9)) == ([1, 0], [np.float32(-1e9), 0])


def test_several_constants() -> None:
    assert _take([-1e9, 50], f32(50, -1e9, 2), f32(50, -1e9, 2)) == ([0, 0, 2], [0, 0, 2])


@pytest.mark.parametrize(
    ("largest", "is_taken"), [(3.0, True), (3.1, False), (-3.1, False), (np.nan, True), (np.inf, True)]
)
def test_only_what_is_ten_times_the_root_mean_square_of_all_else_that_is_finite(
    largest: float, is_taken: bool
) -> None:
    """Few of it, whose energy is less than ten times that of the others."""
    both = {"y": f32(30, *[largest] * 20)}
    left, _ = without_fills({"y": [30]}, both, both)
    assert (left["y"][0] == 0) == is_taken


@pytest.mark.parametrize(("largest", "is_taken"), [(7.15, True), (7.16, False), (np.nan, True)])
def test_what_is_less_where_it_has_ten_times_the_energy_of_all_else(largest: float, is_taken: bool) -> None:
    """8 x 64 beside largest^2."""
    both = {"y": f32(*[-8] * 8, largest)}
    left, right = without_fills({"y": [-8]}, both, {"y": f32(*[-8] * 7, 8, largest)})
    assert (left["y"][0] == 0) == (right["y"][0] == 0) == is_taken
    assert (left["y"][7], right["y"][7]) == (-8, 8)


@pytest.mark.parametrize(
    ("mask", "masked", "plain", "is_taken"),
    [
        (-1e4, [-10003, -9001, -10999], [3, -4], True),
        (-1000, [-1003], [3, -4], True),
        (-1000, [-901, -1099], [5, -99], True),
        (-1000, [-899], [3], False),
        (-1000, [-1101], [3], False),
        (-1000, [-1003], [3, -101], False),
        (-1000, [-1003], [101, 140], True),
        (-1000, [-1003], [300, 340], False),
        (-1000, [-1003, -2004], [3], False),
        (-1000, [-1003, -np.inf], [3], False),
        (-1000, [-1003], [3, np.nan], True),
        (-999, [-1003], [3], False),
        (float(np.finfo(np.float32).min), [-3.4e38], [3e33, 2], True),
        (1000, [1003], [3], False),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_mask_that_is_added_is_known_by_the_gap(
    mask: float, masked: list[float], plain: list[float], is_taken: bool
) -> None:
    values = f32(*masked, *plain)
    left, right = without_fills({"y": [mask]}, {"y": values}, {"y": values})
    expected = np.where(np.arange(values.size) < len(masked), 0, values) if is_taken else values
    np.testing.assert_array_equal(left["y"], expected)
    np.testing.assert_array_equal(right["y"], expected)


@pytest.mark.parametrize(
    ("found", "is_taken"), [(-10042, True), (-9964, True), (-10043, False), (np.nan, False)]
)
def test_of_what_is_masked_the_candidate_has_what_fp32_has(found: float, is_taken: bool) -> None:
    """Within 2^-8 of the mask, which is 39."""
    left, right = _take([-1e4], f32(-10003, 3), f32(found, 3))
    assert (left[0] == 0) == (right[0] == 0) == is_taken


def test_a_product_that_is_as_large_throughout_is_no_mask() -> None:
    """x * -5000 of x near 1: all of it is signal."""
    reference, candidate = f32(-4990, -5003, -5010), f32(-4980, -5010, -5012)
    assert _take([-5000], reference, candidate) == (reference.tolist(), candidate.tolist())


def test_each_constant_counts_by_itself() -> None:
    """5 is as large as the others are, and hides none of them."""
    values = f32(*[-5000] * 4, 5, 4, 6)
    assert _take([-5000, 5], values, values) == ([0, 0, 0, 0, 5, 4, 6], [0, 0, 0, 0, 5, 4, 6])


ELEMENTS = st.sampled_from([-5000.0, 5000.0, -8.0, 0.0, np.nan, np.inf, -np.inf]) | st.floats(-9, 9, width=32)


@pytest.mark.filterwarnings("error")
@given(arrays.arrays(np.float32, 12, elements=ELEMENTS), arrays.arrays(np.float32, 12, elements=ELEMENTS))
def test_what_is_taken_is_a_constant_on_both_sides_and_all_else_stays(
    reference: Array, candidate: Array
) -> None:
    fills = [-5000.0, 5000.0, -8.0]
    left, right = without_fills({"y": fills}, {"y": reference}, {"y": candidate})
    is_taken = (left["y"] == 0) & (reference != 0)
    others = reference[np.isfinite(reference) & ~np.isin(reference, fills)].astype(np.float64)
    energy = float((others**2).sum())
    for number in fills:
        of_it = int((reference == number).sum())
        hides = abs(number) >= 10 * np.sqrt(energy / max(others.size, 1)) or number**2 * of_it >= 10 * energy
        alike = (reference == number) & (np.abs(candidate - np.float32(number)) <= abs(number) / 256)
        np.testing.assert_array_equal(is_taken & (reference == number), alike & hides)
    assert not is_taken[~np.isin(reference, fills)].any()
    np.testing.assert_array_equal(left["y"][~is_taken], reference[~is_taken])
    np.testing.assert_array_equal(right["y"], np.where(is_taken, 0, candidate))


def test_a_batch_of_nothing_else() -> None:
    assert _take([-1e9], f32(-1e9, -1e9), f32(-1e9, 3)) == ([0, np.float32(-1e9)], [0, 3])


@pytest.mark.filterwarnings("error")
def test_a_constant_that_the_type_of_the_output_cannot_hold_fills_nothing() -> None:
    infinite = np.array([-np.inf, 1], np.float16)
    left, _ = without_fills({"y": [-1e9]}, {"y": infinite}, {"y": infinite})
    assert left["y"].tolist() == [-np.inf, 1]


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (f32(-1e9), f32(-1e9, 1)),
        ([f32(-1e9)], [f32(-1e9)]),
        (f32(), f32()),
        (np.float32(-1e9), np.float32(-1e9)),
    ],
)
def test_of_other_shapes_and_of_lists_nothing_is_taken(reference: Any, candidate: Any) -> None:
    left, right = without_fills({"y": [-1e9]}, {"y": reference}, {"y": candidate})
    assert (left["y"], right["y"]) == (reference, candidate) or left["y"] is reference


def test_other_outputs_and_what_was_given_stay_as_they_are() -> None:
    one, other = f32(-1e9, 1), f32(-1e9, 2)
    one.flags.writeable = False
    left, _ = without_fills({"y": [-1e9], "absent": [3.0]}, {"y": one, "z": one}, {"y": other, "z": other})
    assert left["z"] is one
    assert one.tolist() == f32(-1e9, 1).tolist()
    assert left["y"].tolist() == [0, 1]
