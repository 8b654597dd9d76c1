"""How much an output channel of constant weights adds up, from the definition."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import floats, make_model, node, save

from overflow_fixer.inner.channel_norms import ChannelNorm, find_channel_norm
from overflow_fixer.inner.products import find_products


def _find(folder: Path, made: Any, weights: np.ndarray, rank: int = 2, fed: tuple[str, ...] = ()) -> Any:
    graph = save(make_model([made], {"x": [None] * rank}, "y", {"w": weights}), folder)
    (product,) = find_products(graph)
    return find_channel_norm(graph, product, fed)


COLUMNS = np.array([[3, -1], [4, 1]], np.float32)
"""Columns add up to 7 and 2, rows to 4 and 5."""


@pytest.mark.parametrize(
    ("made", "total", "length"),
    [
        (node("MatMul", "x w", "y"), 7, 5),
        (node("MatMul", "w x", "y"), 5, math.sqrt(17)),
        (node("Gemm", "x w", "y"), 7, 5),
        (node("Gemm", "x w", "y", transB=1), 5, math.sqrt(17)),
    ],
)
def test_of_a_matrix(made: Any, total: float, length: float, tmp_path: Path) -> None:
    found = _find(tmp_path, made, COLUMNS)
    assert found.factor == "x"
    assert (found.sum, found.length) == pytest.approx((total, length), rel=1e-5)
    assert found.sum >= total


def test_of_a_vector(tmp_path: Path) -> None:
    found = _find(tmp_path, node("MatMul", "x w", "y"), floats(3, -4))
    assert (found.sum, found.length) == pytest.approx((7, 5), rel=1e-5)


def test_of_a_convolution_lengths_are_those_of_each_place_of_the_kernel(tmp_path: Path) -> None:
    weights = np.array([[[3, 1], [-4, 0]], [[1, 1], [1, 1]]], np.float32)  # [output, input, place]
    found = _find(tmp_path, node("Conv", "x w", "y"), weights, 3)
    assert (found.sum, found.length) == pytest.approx((8, 6), rel=1e-5)


@pytest.mark.parametrize(("group", "total"), [(1, 8), (2, 5)])
def test_of_a_transposed_one_groups_are_apart(group: int, total: float, tmp_path: Path) -> None:
    weights = np.array([[[3], [1]], [[5], [-2]]], np.float32)  # [input, output of a group, place]
    assert _find(tmp_path, node("ConvTranspose", "x w", "y", group=group), weights, 3).sum == pytest.approx(
        total
    )


@pytest.mark.parametrize("worst", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_in_the_norm(worst: float, tmp_path: Path) -> None:
    found = _find(tmp_path, node("MatMul", "x w", "y"), np.array([[1, worst], [1, 1]], np.float32))
    expected = ChannelNorm("x", *[math.nan if math.isnan(worst) else math.inf] * 2)
    np.testing.assert_equal(tuple(found), tuple(expected))


def test_there_is_none_of_no_elements_of_weights_that_are_fed_or_computed_or_of_an_einsum(
    tmp_path: Path,
) -> None:
    product = node("MatMul", "x w", "y")
    assert _find(tmp_path, product, np.zeros((2, 0), np.float32)) is None
    assert _find(tmp_path, product, COLUMNS, fed=("w",)) is None
    assert _find(tmp_path, node("MatMul", "x x", "y"), COLUMNS) is None
    assert _find(tmp_path, node("Einsum", "x w", "y", equation="ij,jk->ik"), COLUMNS) is None
