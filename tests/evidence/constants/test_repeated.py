"""Constants that are repeated, and what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import ints, make_model, node, pinned_by, save, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.constants.repeated import find_repeated
from overflow_fixer.rules.constant_range import find_constants_out_of_range

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


def test_what_has_the_elements_of_a_constant_alone(tmp_path: Path) -> None:
    nodes = [
        *TILED,
        node("Expand", "big shape", "wide"),
        node("Slice", "identity zero one", "row"),
        node("Mul", "tiled big", "start"),
        node("ConstantOfShape", "shape", "filled"),
        node("Concat", "x tiled", "data", axis=0),
        node("Add", "data row", "sum"),
        node("Add", "sum start", "more"),
        node("Add", "wide filled", "rest"),
        node("Add", "more rest", "y"),
    ]
    graph = save(make_model(nodes, {"x": [None, 3, 3]}, "y", CONSTANTS), tmp_path)
    assert find_repeated(graph) == {"tiled", "wide", *CONSTANTS}


def test_a_constant_that_can_be_fed_is_data(tmp_path: Path) -> None:
    model = make_model(
        [node("Neg", "c", "a"), node("Add", "x a", "y")], {"x": [2], "c": []}, "y", {"c": scalar(1)}
    )
    assert find_repeated(save(model, tmp_path)) == frozenset()


@pytest.mark.parametrize("count", [1, 4])
def test_a_factor_that_is_a_repeated_constant_is_no_mask(count: int, tmp_path: Path) -> None:
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
def test_a_mask_made_of_sizes_is_carried_whether_a_length_shows_it_or_not(
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


@pytest.mark.parametrize("count", [4, 8])
def test_a_mask_of_sizes_is_carried_behind_what_reduces_it(count: int, tmp_path: Path) -> None:
    """The three nearest of as many as there are, padded to ten: of two the third is the padding."""
    nodes = [
        node("Size", "x", "n"),
        node("Less", "places n", "is_there"),
        node("Pad", "x pads", "padded"),
        node("Where", "is_there padded big", "d"),
        node("TopK", "d three", "near at", largest=0),
        node("Mul", "near thousandth", "y"),
    ]
    constants = {
        "places": np.arange(10),
        "pads": ints(0, 10 - count),
        "big": scalar(1e6),
        "three": ints(3),
        "thousandth": scalar(1e-3),
    }
    model = make_model(nodes, {"x": [count]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": np.ones(count, np.float32)})
    pins = pinned_by(find_constants_out_of_range, graph, ranges)
    assert pins == ["Where_d", "TopK_near", "Mul_y"]
