"""Bounds against what ONNX Runtime gives out for values of any size."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.planning.extremes import UNKNOWN, Extremes, find_extremes
from overflow_fixer.records import Batch, RangeTable
from overflow_fixer.sessions.session import open_session, run_session

HUGE = np.array([-3e38, -1e5, -7, -1, 0, 1, 7, 1e5, 3e38], np.float32)
CONSTANTS = {
    "low": scalar(-3),
    "high": scalar(8),
    "some": floats(*range(9)),
    "gone": floats(math.nan),
    "none": floats(),
    "shape": ints(3, 3),
}
BOUNDED: dict[str, tuple[list[onnx.NodeProto], Extremes]] = {
    "Clip": ([node("Clip", "x low high", "y")], (-3, 8)),
    "Clip of one side": ([node("Clip", "x low", "y")], (-3, math.inf)),
    "Clip of the other": ([onnx.helper.make_node("Clip", ["x", "", "high"], ["y"])], (-math.inf, 8)),
    "Clip the wrong way round": ([node("Clip", "x high low", "y")], (-3, -3)),
    "Max and Min": ([node("Max", "x low", "a"), node("Min", "a high", "y")], (-3, 8)),
    "Relu and Min": ([node("Relu", "x", "a"), node("Min", "high a", "y")], (0, 8)),
    "Where of bounded ones": (
        [node("Clip", "x low high", "a"), node("Greater", "low x", "c"), node("Where", "c a some", "y")],
        (-3, 8),
    ),
    "moved": ([node("Clip", "x low high", "a"), node("Reshape", "a shape", "y")], (-3, 8)),
    **{op: ([node(op, "x", "y")], (0, 1)) for op in ("HardSigmoid", "Hardmax", "Sigmoid", "Softmax")},
    **{op: ([node(op, "x", "y")], (-1, 1)) for op in ("Erf", "Sign", "Tanh")},
    "joined": ([node("Clip", "x low high", "a"), node("Concat", "a some", "y", axis=0)], (-3, 8)),
}


def _scan(nodes: list[onnx.NodeProto], folder: Path, opset: int = 17) -> tuple[Graph, RangeTable]:
    model = make_model(nodes, {"x": [9]}, "y", CONSTANTS, opset)
    return scan(model, folder, {"x": np.ones(9, np.float32)})


@pytest.mark.parametrize("name", BOUNDED)
def test_what_is_given_out_stays_within(name: str, tmp_path: Path) -> None:
    nodes, expected = BOUNDED[name]
    graph, ranges = _scan(nodes, tmp_path)
    assert find_extremes(graph, ranges)["y"] == expected
    (found,) = run_session(open_session(graph.path, graph.folder), ["y"], Batch("b", {"x": HUGE}))
    assert expected[0] <= found.min()
    assert found.max() <= expected[1]
    for bound, seen in zip(expected, (found.min(), found.max()), strict=True):
        assert seen == bound or math.isinf(bound)


@pytest.mark.parametrize("op", ["Cos", "Sin", "Softsign"])
def test_what_comes_near_one_stays_within(op: str, tmp_path: Path) -> None:
    graph, ranges = _scan([node(op, "x", "y")], tmp_path)
    assert find_extremes(graph, ranges)["y"] == (-1, 1)
    (found,) = run_session(open_session(graph.path, graph.folder), ["y"], Batch("b", {"x": HUGE}))
    assert np.abs(found).max() <= 1


def test_bounds_that_are_attributes(tmp_path: Path) -> None:
    graph, ranges = _scan([node("Clip", "x", "y", min=-2.0, max=0.0)], tmp_path, 10)
    assert find_extremes(graph, ranges)["y"] == (-2, 0)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Neg", "x", "y")],
        [node("ReduceMax", "x", "m", keepdims=0), node("Clip", "x m m", "y")],
        [node("Clip", "x low high", "a"), node("Mul", "a x", "y")],
        [node("Greater", "x low", "c"), node("Where", "c x low", "y")],
        [node("Concat", "x some", "y", axis=0)],
        [node("Concat", "gone x", "y", axis=0)],
        [node("Concat", "none x", "y", axis=0)],
    ],
)
def test_what_nothing_bounds(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    assert find_extremes(*_scan(nodes, tmp_path)).get("y", UNKNOWN) == UNKNOWN


def test_a_cast_may_round_over_the_bound(tmp_path: Path) -> None:
    nodes = [
        node("Clip", "x low high", "a"),
        node("Cast", "a", "h", to=TensorProto.FLOAT16),
        node("Cast", "h", "y", to=TensorProto.FLOAT),
    ]
    found = find_extremes(*_scan(nodes, tmp_path))
    assert "a" in found
    assert "y" not in found


def test_a_default_that_a_batch_may_replace_bounds_nothing(tmp_path: Path) -> None:
    model = make_model([node("Min", "x high", "y")], {"x": [9], "high": []}, "y", {"high": scalar(8)})
    graph, ranges = scan(model, tmp_path, {"x": np.ones(9, np.float32)})
    assert find_extremes(graph, ranges) == {}
