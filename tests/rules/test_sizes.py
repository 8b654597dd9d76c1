"""What follows from the sizes of the data and from constants alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import ints, make_model, node, pinned_by, save, scalar, scan
from onnx import TensorProto

from overflow_fixer.rules.constant_range import find_constants_out_of_range
from overflow_fixer.rules.sizes import find_fixed_by_sizes

TILED = [
    node("Shape", "x", "shape"),
    node("Gather", "shape zero", "batch", axis=0),
    node("Concat", "batch one one", "repeats", axis=0),
    node("Tile", "identity repeats", "tiled"),
]
CONSTANTS = {
    "zero": ints(0),
    "one": ints(1),
    "identity": np.eye(3, dtype=np.float32)[None],
    "big": scalar(1e6),
}


def test_sizes_and_constants_and_what_is_made_of_them(tmp_path: Path) -> None:
    nodes = [
        *TILED,
        node("Size", "x", "count"),
        node("Mul", "tiled big", "start"),
        node("RandomNormalLike", "tiled", "noise"),
        node("Add", "noise tiled", "noisy"),
        node("MatMul", "x tiled", "data"),
        node("Add", "data noisy", "sum"),
        node("Add", "sum start", "y"),
    ]
    graph = save(make_model(nodes, {"x": [None, 3, 3]}, "y", CONSTANTS), tmp_path)
    names = {"shape", "batch", "repeats", "tiled", "count", "start"}
    assert find_fixed_by_sizes(graph) == {*names, *CONSTANTS}


def test_a_constant_that_can_be_fed_is_data(tmp_path: Path) -> None:
    model = make_model(
        [node("Neg", "c", "a"), node("Add", "x a", "y")], {"x": [2], "c": []}, "y", {"c": scalar(1)}
    )
    assert find_fixed_by_sizes(save(model, tmp_path)) == frozenset()


@pytest.mark.parametrize("count", [1, 4])
def test_a_factor_of_sizes_that_was_seen_on_is_no_mask(count: int, tmp_path: Path) -> None:
    """The start of a filter's covariance: 1e6 on the diagonal, whatever the data."""
    nodes = [
        *TILED,
        node("Mul", "tiled big", "start"),
        node("Add", "start one_f", "added"),
        node("Reciprocal", "added", "small"),
        node("Neg", "small", "n"),
        node("Mul", "n x", "y"),
    ]
    model = make_model(nodes, {"x": [None, 3, 3]}, "y", {**CONSTANTS, "one_f": scalar(1)})
    graph, ranges = scan(model, tmp_path, {"x": np.ones((count, 3, 3), np.float32)})
    assert pinned_by(find_constants_out_of_range, graph, ranges) == [
        "Mul_start",
        "Add_added",
        "Reciprocal_small",
    ]


@pytest.mark.parametrize("length", [1, 4])
def test_a_causal_mask_that_a_length_of_one_does_not_show_is_carried_all_the_same(
    length: int, tmp_path: Path
) -> None:
    nodes = [
        node("Shape", "x", "shape"),
        node("ConstantOfShape", "shape", "zeros"),
        node("Cast", "zeros", "z", to=TensorProto.FLOAT),
        node("Add", "z one_f", "ones"),
        node("Trilu", "ones one_k", "mask", upper=1),
        node("Mul", "mask low", "masked"),
        node("Add", "x masked", "scores"),
        node("Softmax", "scores", "y", axis=-1),
    ]
    constants = {"one_f": scalar(1), "one_k": np.asarray(1), "low": scalar(-1e9)}
    model = make_model(nodes, {"x": ["n", "n"]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": np.ones((length, length), np.float32)})
    pins = pinned_by(find_constants_out_of_range, graph, ranges)
    assert pins == ["Mul_masked", "Add_scores", "Softmax_y"]
