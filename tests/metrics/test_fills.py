"""Constants that fill elements of outputs, and are no signal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from overflow_fixer.metrics.fills import without_fills


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
    both = {"y": f32(30, largest)}
    left, _ = without_fills({"y": [30]}, both, both)
    assert (left["y"][0] == 0) == is_taken


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
