"""Squared distances that are compared with a radius, of which FP16 leaves a few steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.distances.compared_distances import find_compared_distances
from overflow_fixer.rules.lost_difference import find_lost_differences

GENERATOR = np.random.default_rng(9)
CENTRES = GENERATOR.normal(40, 3, (100, 3)).astype(np.float32)
POINTS = GENERATOR.normal(40, 3, (64, 3)).astype(np.float32)
RADIUS = 3.0
DISTANCES = [
    node("Mul", "x x", "xx"),
    node("ReduceSum", "xx last", "a", keepdims=1),
    node("MatMul", "x pt", "c"),
    node("Mul", "c two", "c2"),
    node("Sub", "a c2", "t"),
    node("Add", "t pp", "d"),
]
COMPARED = {
    "squares": [node("Less", "d squared", "is_near")],
    "roots": [node("Relu", "d", "r"), node("Sqrt", "r", "s"), node("Less", "s radius", "is_near")],
    "from the other side": [node("Greater", "squared d", "is_near")],
    "with a sign": [node("Neg", "d", "n"), node("GreaterOrEqual", "n negative", "is_near")],
}
OTHERWISE = {
    "with what is computed": [node("ReduceMean", "d", "m"), node("Less", "d m", "is_near")],
    "with many radii": [node("Less", "d radii", "is_near")],
    "of what an exponential makes": [node("Exp", "d", "e"), node("Less", "e squared", "is_near")],
}


SUMMED = [*DISTANCES[:4], node("Add", "a pp", "t"), node("Sub", "t c2", "d")]


def _scan(
    folder: Path,
    compared: list[onnx.NodeProto],
    x: np.ndarray = POINTS,
    radius: float = RADIUS,
    distances: list[onnx.NodeProto] = DISTANCES,
) -> Any:
    constants = {
        "last": ints(1),
        "two": scalar(2),
        "pt": np.ascontiguousarray(CENTRES.T),
        "pp": np.square(CENTRES).sum(1)[None],
        "radius": scalar(radius),
        "far": scalar(900),
        "squared": scalar(radius**2),
        "doubled": scalar(2 * radius**2),
        "negative": scalar(-(radius**2)),
        "radii": np.linspace(8, 9, 100, dtype=np.float32),
    }
    behind = [*compared, node("Cast", "is_near", "y", to=onnx.TensorProto.FLOAT)]
    model = make_model([*distances, *behind], {"x": [64, 3]}, "y", constants, opset=13)
    return scan(model, folder, {"x": x})


@pytest.mark.parametrize("form", COMPARED)
def test_what_is_decided_at_the_radius_is_right_with_the_pins(form: str, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, COMPARED[form])
    (found,) = find_compared_distances(graph, ranges)
    assert found.nodes[0].label == "Add_d"
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert set(pinned) >= {"Add_d", "Sub_t", "MatMul_c", "ReduceSum_a", "Mul_xx"}
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    assert _share_decided_otherwise(tmp_path, set()) > 0.05
    assert _share_decided_otherwise(tmp_path, fp32) < 0.003


def _share_decided_otherwise(folder: Path, fp32_nodes: set[str]) -> float:
    """Of the pairs that are near."""
    right = run_fp32(folder / "model.onnx", {"x": POINTS})["y"]
    found = run_fp16(folder / "model.onnx", {"x": POINTS}, fp32_nodes)["y"]
    return float((right != found).sum() / right.sum())


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, COMPARED["roots"])
    found = next(one for one in ask(find_lost_differences, graph, ranges) if one.node == "Add_d")
    most = max(ranges.by_tensor[name].max_abs for name in ("t", "pp"))
    assert (found.tensor, found.value, found.limit) == ("d", RADIUS**2, 64 * np.spacing(np.float16(most)))
    assert found.reason.startswith("Less Less_is_near decides where d is 9, and its terms, up to ")
    assert {"Relu_r", "Sqrt_s"} <= set(pinned_by(find_lost_differences, graph, ranges))


def test_a_root_on_another_way_does_not_count(tmp_path: Path) -> None:
    """The square is compared after the root of the same distances was taken, and with another radius."""
    nodes = [node("Relu", "d", "r"), node("Sqrt", "r", "s"), node("Less", "s far", "is_far")]
    graph, ranges = _scan(tmp_path, [*nodes, *COMPARED["squares"]])
    (found,) = find_compared_distances(graph, ranges)
    assert found.reason.startswith("Less Less_is_near decides where d is 9, ")
    assert not {"Relu_r", "Sqrt_s"} & {one.label for one in found.nodes}


@pytest.mark.parametrize(
    "compared", [COMPARED["squares"], [node("Mul", "d two", "e"), node("Less", "e doubled", "is_near")]]
)
def test_where_a_sum_is_over_1024_the_squares_are_pinned_too(
    compared: list[onnx.NodeProto], tmp_path: Path
) -> None:
    """Of the largest distance their rounding is little, at the radius it is not."""
    graph, ranges = _scan(tmp_path, compared, distances=SUMMED)
    assert ranges.by_tensor["d"].max_abs < 64 * np.spacing(np.float16(ranges.by_tensor["t"].max_abs))
    assert "Mul_xx" in pinned_by(find_lost_differences, graph, ranges)


@pytest.mark.parametrize("form", OTHERWISE)
def test_other_comparisons_tell_nothing(form: str, tmp_path: Path) -> None:
    assert list(find_compared_distances(*_scan(tmp_path, OTHERWISE[form]))) == []


def test_a_radius_of_as_many_steps_tells_nothing(tmp_path: Path) -> None:
    _, ranges = _scan(tmp_path, COMPARED["squares"])
    most = max(ranges.by_tensor[name].max_abs for name in ("t", "pp"))
    boundary = math.sqrt(64 * np.spacing(np.float16(most)))
    assert ranges.by_tensor["d"].max > boundary**2
    assert list(find_compared_distances(*_scan(tmp_path, COMPARED["squares"], radius=boundary))) == []
    assert (
        len(list(find_compared_distances(*_scan(tmp_path, COMPARED["squares"], radius=boundary - 0.01)))) == 1
    )


@pytest.mark.parametrize("radius", [0.001, 900.0])
def test_where_all_are_on_one_side_nothing_is_told(radius: float, tmp_path: Path) -> None:
    assert list(find_compared_distances(*_scan(tmp_path, COMPARED["squares"], radius=radius))) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_of_what_is_not_finite_nothing_is_concluded(value: float, tmp_path: Path) -> None:
    x = POINTS.copy()
    x[0, 0] = value
    assert list(find_compared_distances(*_scan(tmp_path, COMPARED["squares"], x))) == []
