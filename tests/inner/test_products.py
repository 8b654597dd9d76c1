"""Which nodes add up products, along which axes, and how many make a sum."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import make_model, node, save

from overflow_fixer.graph.model import Graph
from overflow_fixer.inner.products import (
    Product,
    count_terms,
    find_products,
    gemm_factors,
    is_matrix_product,
    summed_axis,
)


def _load(folder: Path, made: Any) -> Graph:
    return save(make_model([made], {"a": None, "b": None, "c": None}, "y"), folder)


def _find(folder: Path, made: Any) -> Product:
    (found,) = find_products(_load(folder, made))
    return found


def _einsum(equation: str) -> Any:
    return node("Einsum", "a b", "y", equation=equation)


@pytest.mark.parametrize(
    ("made", "left", "right", "count"),
    [
        (node("MatMul", "a b", "y"), (2, 3), (3, 5), 3),
        (node("MatMul", "a b", "y"), (3,), (3,), 3),
        (node("MatMul", "a b", "y"), (2, None), (3, 5), 3),
        (node("MatMul", "a b", "y"), (2, "k"), (None, 5), math.nan),
        (node("MatMul", "a b", "y"), (2, 0), (0, 5), 0),
        (node("Gemm", "a b", "y", transA=1, transB=1), (3, 2), (5, 3), 3),
        (node("Conv", "a b", "y"), (1, 4, 9, 9), (6, 4, 3, 2), 24),
        (node("Conv", "a b", "y", group=2), None, (6, 2, 3, 2), 12),
        (node("ConvTranspose", "a b", "y", group=2), None, (4, 6, 3, 2), 12),
        (node("Conv", "a b", "y"), (1, 4, 9, 9), None, math.nan),
        (_einsum("ij,jk->ik"), (2, 3), (3, 5), 3),
        (_einsum("ij,jk->i"), (2, 3), (3, 5), 15),
        (_einsum("ij, jk"), (2, 3), (3, 5), 3),
        (_einsum("...j,...j->..."), (2, 3), (1, 3), 3),
        (_einsum("ij,jk->ik"), (2, 1), (3, 5), 3),
        (_einsum("ij,jk->ik"), (2, 3), None, math.nan),
    ],
)
def test_how_many_terms_make_a_sum(made: Any, left: Any, right: Any, count: float, tmp_path: Path) -> None:
    shapes = {name: shape for name, shape in (("a", left), ("b", right)) if shape is not None}
    np.testing.assert_equal(count_terms(_find(tmp_path, made), shapes), float(count))


@pytest.mark.parametrize(
    ("made", "axes"),
    [
        (node("MatMul", "a b", "y"), (-1, -2)),
        (node("Gemm", "a b", "y", transA=1, transB=1), (-2, -1)),
        (node("Conv", "a b", "y"), (1, 1)),
        (_einsum("ij,kj->ik"), (1, 1)),
    ],
)
def test_along_which_axes_they_are_added(made: Any, axes: tuple[int, int], tmp_path: Path) -> None:
    found = _find(tmp_path, made).node
    assert tuple(summed_axis(found, is_right) for is_right in (False, True)) == axes


@pytest.mark.parametrize(
    ("equation", "is_one"),
    [
        ("ij,jk->ik", True),
        ("ij,jk", False),
        ("ij,jk->i", False),
        ("ii,ij->j", False),
        ("...j,...j->...", False),
        ("ij,ij->", False),
        ("ij->i", False),
    ],
)
def test_which_einsum_multiplies_matrices(equation: str, is_one: bool, tmp_path: Path) -> None:
    names = " ".join("ab"[: equation.count(",") + 1])
    made = node("Einsum", names, "y", equation=equation)
    assert is_matrix_product(_find(tmp_path, made).node) == is_one


@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [(1.0, 1.0, (1, 1)), (-2.0, -3.0, (2, 3)), (0.5, 3.0, (1, 0)), (0.0, 1.0, (1, 0))],
)
def test_what_a_gemm_multiplies_its_sums_with(
    alpha: float, beta: float, expected: Any, tmp_path: Path
) -> None:
    made = node("Gemm", "a b c", "y", alpha=alpha, beta=beta)
    found = _find(tmp_path, made)
    assert gemm_factors(found.node) == expected
    assert (found.factors, found.bias) == (("a", "b"), "c")


def test_others_add_up_no_products(tmp_path: Path) -> None:
    assert find_products(_load(tmp_path, node("Mul", "a b", "y"))) == ()
