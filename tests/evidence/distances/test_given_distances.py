"""Squared distances that a model gives out, of which the nearest are lost in FP16."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, ints, make_model, node, pinned_by, save, scalar, scan

from overflow_fixer.evidence.distances.given_distances import _find_sums_given, find_given_distances
from overflow_fixer.rules.lost_difference import find_lost_differences

GENERATOR = np.random.default_rng(9)
PROTOTYPES = GENERATOR.normal(0, 12, (100, 16)).astype(np.float32)
NEAR = PROTOTYPES[GENERATOR.integers(0, 100, 64)] + GENERATOR.normal(0, 0.15, (64, 16)).astype(np.float32)
FAR = GENERATOR.normal(0, 12, (64, 16)).astype(np.float32)
DISTANCES = [
    node("Mul", "x x", "xx"),
    node("ReduceSum", "xx last", "a", keepdims=1),
    node("MatMul", "x pt", "c"),
    node("Mul", "c two", "c2"),
    node("Sub", "a c2", "t"),
    node("Add", "t pp", "d"),
]
GIVEN = {
    "as they are": [node("Identity", "d", "y")],
    "their roots": [node("Relu", "d", "r"), node("Sqrt", "r", "y")],
    "multiplied": [node("Mul", "two d", "z"), node("Div", "z minus", "y")],
    "as a share of the farthest": [node("ReduceMax", "d", "m", keepdims=1), node("Div", "d m", "y")],
    "turned about": [node("Transpose", "d", "z"), node("Neg", "z", "y")],
}
HIDDEN = {
    "an exponential": [node("Neg", "d", "n"), node("Exp", "n", "y")],
    "their mean": [node("ReduceMean", "d", "y")],
    "a layer": [node("MatMul", "d p", "y")],
    "what divides others": [node("Div", "two d", "y")],
    "weights that are fed": [node("Mul", "d a", "y")],
}
CONSTANTS = {
    "last": ints(1),
    "two": scalar(2),
    "minus": scalar(-1),
    "pt": np.ascontiguousarray(PROTOTYPES.T),
    "p": PROTOTYPES,
    "pp": np.square(PROTOTYPES).sum(1)[None],
}


SUMMED = [*DISTANCES[:4], node("Add", "a pp", "t"), node("Sub", "t c2", "d")]


def _scan(folder: Path, behind: list[onnx.NodeProto], *batches: np.ndarray) -> tuple[Any, Any]:
    model = make_model([*DISTANCES, *behind], {"x": [64, 16]}, "y", CONSTANTS, opset=13)
    return scan(model, folder, *({"x": batch} for batch in batches))


@pytest.mark.parametrize("form", GIVEN)
def test_the_nearest_are_told_and_right_with_the_pins(form: str, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, GIVEN[form], FAR, NEAR)
    (found,) = find_given_distances(graph, ranges)
    assert found.nodes[0].label == "Add_d"
    assert found.reason.endswith("the output y tells it")
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert set(pinned) >= {"Add_d", "Sub_t", "MatMul_c", "ReduceSum_a", "Mul_xx"}
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    assert _error_of_nearest(tmp_path, set()) > 0.3
    assert _error_of_nearest(tmp_path, fp32) < 0.01


def _error_of_nearest(folder: Path, fp32_nodes: set[str]) -> float:
    """The median, relative to the distance."""
    right = np.abs(run_fp32(folder / "model.onnx", {"x": NEAR})["y"])
    found = np.abs(run_fp16(folder / "model.onnx", {"x": NEAR}, fp32_nodes)["y"])
    axis = 1 if right.shape == (64, 100) else 0
    nearest = np.expand_dims(right.argmin(axis), axis)
    one, other = (np.take_along_axis(values, nearest, axis) for values in (right, found))
    return float(np.median(np.abs(other - one) / one))


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, GIVEN["their roots"], NEAR)
    found = next(one for one in ask(find_lost_differences, graph, ranges) if one.node == "Add_d")
    least, most = ranges.by_tensor["d"].min, max(ranges.by_tensor[name].max_abs for name in ("t", "pp"))
    assert (found.tensor, found.value) == ("d", least)
    assert found.limit == 64 * np.spacing(np.float16(most))
    assert f"d is as small as {least:.6g}, and its terms, up to {most:.6g}, lose much" in found.reason
    assert found.reason.endswith("and the output y tells it")


def test_where_a_sum_is_over_1024_the_squares_are_pinned_too(tmp_path: Path) -> None:
    """Of the largest distance their rounding is little, of the nearest it is not."""
    points, centres = FAR[:32, :3] / 8 + 16, PROTOTYPES[:, :3] / 8 + 16
    constants = CONSTANTS | {"pt": np.ascontiguousarray(centres.T), "pp": np.square(centres).sum(1)[None]}
    model = make_model([*SUMMED, *GIVEN["their roots"]], {"x": [32, 3]}, "y", constants, opset=13)
    graph, ranges = scan(model, tmp_path, {"x": points})
    assert ranges.by_tensor["d"].max_abs < 64 * np.spacing(np.float16(ranges.by_tensor["t"].max_abs))
    assert "Mul_xx" in pinned_by(find_lost_differences, graph, ranges)


@pytest.mark.parametrize("form", HIDDEN)
def test_what_is_not_given_out_is_not_told(form: str, tmp_path: Path) -> None:
    assert list(find_given_distances(*_scan(tmp_path, HIDDEN[form], NEAR))) == []


def test_where_all_are_far_nothing_is_told(tmp_path: Path) -> None:
    assert list(find_given_distances(*_scan(tmp_path, GIVEN["as they are"], FAR))) == []


def test_the_distance_of_a_point_to_itself_tells_nothing(tmp_path: Path) -> None:
    assert list(find_given_distances(*_scan(tmp_path, GIVEN["as they are"], PROTOTYPES[:64]))) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_of_what_is_not_finite_nothing_is_concluded(value: float, tmp_path: Path) -> None:
    x = NEAR.copy()
    x[0, 0] = value
    assert list(find_given_distances(*_scan(tmp_path, GIVEN["as they are"], x))) == []


def test_of_a_long_chain_of_sums_the_last_is_asked_about(tmp_path: Path) -> None:
    """Of each of them all before it could be walked."""
    chain = [node("Add", f"t{i} x", f"t{i + 1}") for i in range(20)]
    model = make_model([node("Neg", "x", "t0"), *chain, node("Relu", "t20", "y")], {"x": [2]}, "y")
    assert [one.label for one in _find_sums_given(save(model, tmp_path), "y")] == ["Add_t20"]
