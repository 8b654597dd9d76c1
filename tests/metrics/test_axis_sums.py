"""Energies along axes against numpy's own sums over all other axes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from overflow_fixer.metrics.axis_sums import reduce_to_axes
from overflow_fixer.records import Array

_VALUES = st.one_of(
    st.floats(-1e4, 1e4, width=32), st.sampled_from([0.0, np.nan, np.inf, -np.inf, 6e4, 1e-30])
)


def _reduce_plainly(reference: Array, candidate: Array, axis: int) -> Array:
    is_finite = np.isfinite(reference) & np.isfinite(candidate)
    wide = np.where(is_finite, reference, 0).astype(np.float64)
    error = wide - np.where(is_finite, candidate, 0).astype(np.float64)
    others = tuple(one for one in range(reference.ndim) if one != axis)
    return np.stack([(wide**2).sum(others), (error**2).sum(others), (error**2).max(others)])


def _check(reference: Array, candidate: Array, axes: tuple[int, ...]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = reduce_to_axes(reference, candidate, axes)
    assert tuple(found) == axes
    for axis, sums in found.items():
        np.testing.assert_allclose(sums, _reduce_plainly(reference, candidate, axis), rtol=1e-12)


@given(st.data(), hnp.array_shapes(min_dims=2, max_dims=5, max_side=6))
def test_each_axis_has_what_all_others_hold(data: Any, shape: tuple[int, ...]) -> None:
    reference, candidate = (data.draw(hnp.arrays(np.float32, shape, elements=_VALUES)) for _ in range(2))
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1)))
    _check(reference, candidate, tuple(sorted(axes)))


@pytest.mark.parametrize(
    "shape",
    [
        (1, 40_000, 4),
        (2, 70_000),
        (70_000, 2),
        (1, 300, 300),
        (3, 130, 7, 11, 2),
        (1, 127, 1025),
        (1, 1, 200_001),
        (400, 127),
        (400, 128),
    ],
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_tensors_of_many_tiles(shape: tuple[int, ...], dtype: Any) -> None:
    rng = np.random.default_rng(0)
    reference = rng.standard_normal(shape).astype(dtype)
    candidate = (reference + rng.standard_normal(shape) / 64).astype(dtype)
    candidate.reshape(-1)[[0, -1, reference.size // 2]] = [np.nan, np.inf, 0]
    _check(reference, candidate, tuple(range(1, len(shape))))
    _check(reference, candidate, (len(shape) - 1,))
    _check(np.asfortranarray(reference), candidate, tuple(range(len(shape))))


def test_squares_over_the_range_are_infinite_and_stay_where_they_are() -> None:
    reference, candidate = np.ones((2, 3)), np.ones((2, 3))
    reference[1, 2], candidate[0, 1] = 1e200, -1e308
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = reduce_to_axes(reference, candidate, (0, 1))
    np.testing.assert_array_equal(found[0], [[3, np.inf], [np.inf, np.inf], [np.inf, np.inf]])
    np.testing.assert_array_equal(found[1], [[2, 2, np.inf], [0, np.inf, np.inf], [0, np.inf, np.inf]])


def test_no_axis_is_asked_for() -> None:
    assert reduce_to_axes(np.ones((2, 3)), np.zeros((2, 3)), ()) == {}
