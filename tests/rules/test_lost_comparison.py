"""Comparisons with zero or a tiny number that FP16 decides otherwise."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.rules.lost_comparison import find_lost_comparisons

GUARD = [
    node("Mul", "x x", "q"),
    node("Less", "q eps", "c"),
    node("Where", "c one q", "s"),
    node("Div", "one s", "y"),
]


def _scan(folder: Path, nodes: list[onnx.NodeProto], eps: float, values: list[float]) -> tuple:
    used = {name for one in nodes for name in one.input}
    constants = {name: scalar(v) for name, v in (("eps", eps), ("one", 1.0), ("half", 0.5)) if name in used}
    return scan(make_model(nodes, {"x": [None]}, "y", constants), folder, {"x": floats(*values)})


@pytest.mark.parametrize(
    ("eps", "values", "is_pinned"),
    [
        (1e-10, [1e-6, 1, 2], True),
        (1e-10, [0, 1, 2], True),
        (1e-10, [0.5, 1, 2], False),
        (1e-10, [], False),
        (1e-10, [math.nan], False),
        (1e-10, [math.inf, 0], True),
        (2**-25, [0, 1, 2], True),
        (2**-24, [0, 1, 2], False),
    ],
)
def test_the_guard_of_a_safe_division(
    eps: float, values: list[float], is_pinned: bool, tmp_path: Path
) -> None:
    graph, ranges = _scan(tmp_path, GUARD, eps, values)
    assert pinned_by(find_lost_comparisons, graph, ranges) == (["Mul_q", "Less_c"] if is_pinned else [])


def test_the_pins_keep_zero_from_the_division(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, GUARD, 1e-10, [1e-6, 0, 1, 2])
    labels, path = pinned_by(find_lost_comparisons, graph, ranges), tmp_path / "model.onnx"
    pins = {graph.by_label[label].outputs[0] for label in labels}
    feeds = {"x": floats(1e-6, 0, 1, 2)}
    right = run_fp32(path, feeds)["y"]
    assert np.isinf(run_fp16(path, feeds, set())["y"]).any()
    np.testing.assert_allclose(run_fp16(path, feeds, pins)["y"], right, rtol=1e-3)


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Cast", "h", "b", to=TensorProto.BOOL), node("Cast", "b", "y", to=TensorProto.FLOAT)],
        [node("Sign", "h", "y")],
    ],
)
def test_truth_values_and_signs(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [node("Mul", "x half", "h"), *nodes], 0, [1e-10, 1, 0])
    assert pinned_by(find_lost_comparisons, graph, ranges) == ["Mul_h", nodes[0].name]


def test_the_evidence(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x half", "h"),
        node("Greater", "h eps", "b"),
        node("Cast", "b", "y", to=TensorProto.FLOAT),
    ]
    graph, ranges = _scan(tmp_path, nodes, 1e-7, [2e-9, 1e-5])
    mul, greater = ask(find_lost_comparisons, graph, ranges)
    assert (mul.node, greater.node, mul.tensor) == ("Mul_h", "Greater_b", "h")
    assert (mul.value, mul.limit) == (pytest.approx(1.15e-7, rel=0.01), pytest.approx(1e-7 + 2**-24))
    assert mul.reason == (
        "Greater Greater_b compares h with 1e-07, and decides otherwise of 1.15e-07 where FP16 rounds both"
    )
    graph, ranges = _scan(tmp_path, GUARD, 1e-10, [0, 1])
    assert [(one.value, one.limit) for one in ask(find_lost_comparisons, graph, ranges)] == [
        (0, FP16_UNDERFLOW)
    ] * 2
