"""Differences that a sine is taken of, scaled or as a distance, of terms that would be large angles."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.differences.phases import find_phase_difference
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.lost_phase import find_lost_phases

CONSTANTS = {"k": scalar(12.5), "axes": ints(-1), "rows": ints(1), "columns": ints(0), "half": scalar(0.5)}
DISTANCES = [
    node("Unsqueeze", "x rows", "a"),
    node("Unsqueeze", "x columns", "b"),
    node("Sub", "a b", "d"),
    node("Mul", "d d", "q"),
    node("ReduceSum", "q axes", "s", keepdims=0),
    node("Sqrt", "s", "r"),
    node("Mul", "r k", "angle"),
    node("Sin", "angle", "y"),
]
DIFFERENCE = [
    node("Mul", "x half", "a"),
    node("Sub", "x a", "d"),
    node("Mul", "d k", "angle"),
    node("Sin", "angle", "y"),
]


def _scan(folder: Path, nodes: list[onnx.NodeProto], values: np.ndarray) -> tuple[Graph, RangeTable]:
    used = {name for one in nodes for name in one.input}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    model = make_model(nodes, {"x": list(values.shape)}, "y", constants)
    return scan(model, folder, {"x": values})


def _points(offset: float) -> np.ndarray:
    return (offset + np.random.default_rng(0).uniform(0, 4, (24, 3))).astype(np.float32)


@pytest.mark.parametrize(("offset", "is_found"), [(100, True), (12, True), (0, False)])
def test_distances_of_points_far_from_zero(offset: float, is_found: bool, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, DISTANCES, _points(offset))
    pins = pinned_by(find_lost_phases, graph, ranges)
    assert pins == (["Unsqueeze_a", "Unsqueeze_b", "Sub_d"] if is_found else [])


def test_the_sines_are_right_with_the_pins(tmp_path: Path) -> None:
    _scan(tmp_path, DISTANCES, _points(100))
    path, feeds = tmp_path / "model.onnx", {"x": _points(100)}
    assert measure_snr_db(path, feeds) < 12
    assert measure_snr_db(path, feeds, {"a", "b", "d"}) > 35


@pytest.mark.parametrize("values", [floats(16, 8), floats(16.3, math.nan), floats()])
def test_none_of_what_fp16_holds_of_nan_or_of_nothing(values: np.ndarray, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, DIFFERENCE, values)
    assert ask(find_lost_phases, graph, ranges) == []


@pytest.mark.parametrize(("most", "is_found"), [(10.2, False), (10.3, True)])
def test_boundary(most: float, is_found: bool, tmp_path: Path) -> None:
    """12.5 times 10.24 is 128."""
    graph, ranges = _scan(tmp_path, DIFFERENCE, floats(most, 7.1))
    assert [one.node for one in ask(find_lost_phases, graph, ranges)] == (["Sub_d"] if is_found else [])


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, DIFFERENCE, floats(16.3, 7.1))
    found = find_phase_difference(graph, ranges, "angle")
    assert found is not None
    assert (found.node.label, found.growth) == ("Sub_d", pytest.approx(12.5))
    assert found.most == pytest.approx(16.3 * 12.5)
    told = ask(find_lost_phases, graph, ranges)
    assert {(one.tensor, one.limit) for one in told} == {("d", 128)}
    assert (
        "Sin Sin_y takes an angle that is made of d, of whose terms it would be up to 203.75 radians"
        in told[0].reason
    )


@pytest.mark.parametrize(
    "between",
    [
        [node("Exp", "d", "e"), node("Mul", "e k", "angle")],
        [node("Mul", "d x", "e"), node("Mul", "e k", "angle")],
    ],
)
def test_not_behind_what_is_more_than_a_scale(between: list[onnx.NodeProto], tmp_path: Path) -> None:
    nodes = [*DIFFERENCE[:2], *between, node("Sin", "angle", "y")]
    graph, ranges = _scan(tmp_path, nodes, floats(1.3, 0.1))
    assert find_phase_difference(graph, ranges, "angle") is None


def _behind(between: list[onnx.NodeProto], folder: Path) -> float | None:
    """How many times an error of the difference is as large in the angle; None where no difference is found."""
    nodes = [*DIFFERENCE[:2], *between, node("Mul", "e k", "angle"), node("Sin", "angle", "y")]
    graph, ranges = _scan(folder, nodes, floats(16.3, 7.1))
    found = find_phase_difference(graph, ranges, "angle")
    return None if found is None else found.growth


@pytest.mark.parametrize(
    "between",
    [
        [node("Neg", "d", "n"), node("Abs", "n", "e")],
        [node("Unsqueeze", "d rows", "e")],
        [node("Sub", "d half", "n"), node("Max", "n half", "e")],
    ],
)
def test_behind_moves_bounds_and_shifts_an_error_is_as_large(
    between: list[onnx.NodeProto], tmp_path: Path
) -> None:
    assert _behind(between, tmp_path) == pytest.approx(12.5)


@pytest.mark.parametrize(("count", "growth"), [(14, 12.5), (15, None)])
def test_sixteen_nodes_are_gone_back(count: int, growth: float | None, tmp_path: Path) -> None:
    """The Mul and the difference itself are two of them."""
    names = ["d", *(f"n{i}" for i in range(count - 1)), "e"]
    between = [node("Neg", read, made) for read, made in pairwise(names)]
    assert _behind(between, tmp_path) == (None if growth is None else pytest.approx(growth))


def test_a_difference_that_two_take_a_sine_of_is_told_once(tmp_path: Path) -> None:
    nodes = [*DIFFERENCE, node("Cos", "angle", "z")]
    model = make_model(nodes, {"x": [2]}, "y z", {"k": CONSTANTS["k"], "half": CONSTANTS["half"]})
    graph, ranges = scan(model, tmp_path, {"x": floats(16.3, 7.1)})
    assert len(ask(find_lost_phases, graph, ranges)) == 1
