"""Outputs that are never zero, and hold values that FP16 makes zero of."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, ask, floats, make_model, node, pinned_by, scalar, scan

from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.planning import plan_precision
from overflow_fixer.records import PlanPolicy, PrecisionPlan
from overflow_fixer.rules.vanishing_output import find_vanishing_outputs

NEXT = float(np.nextafter(np.float32(FP16_UNDERFLOW), np.float32(1)))


def _pins(folder: Path, nodes: list[onnx.NodeProto], values: Any, constants: dict[str, Any]) -> list[str]:
    model = make_model(nodes, {"x": None}, "y", constants)
    graph, ranges = scan(model, folder, {"x": np.asarray(values, np.float32)})
    return pinned_by(find_vanishing_outputs, graph, ranges)


@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        ([1, FP16_UNDERFLOW], True),
        ([-1, -FP16_UNDERFLOW], True),
        ([1, NEXT], False),
        ([1, -FP16_UNDERFLOW], False),
        ([1, FP16_UNDERFLOW, 0], False),
        ([FP16_UNDERFLOW, math.nan], False),
        ([FP16_UNDERFLOW, math.inf], False),
        (FP16_UNDERFLOW, True),
        ([], False),
    ],
)
def test_boundary(values: Any, is_found: bool, tmp_path: Path) -> None:
    pins = _pins(tmp_path, [node("Mul", "x one", "y")], values, {"one": scalar(1)})
    assert pins == (["Mul_y"] if is_found else [])


def test_zeros_come_out_without_the_pins_and_none_with_them(tmp_path: Path) -> None:
    """A variance of exp(x): a ratio or logarithm of it is what its reader takes."""
    nodes = [
        node("MatMul", "x w", "a"),
        node("Exp", "a", "e"),
        node("Mul", "e scale", "v"),
        node("Transpose", "v", "y"),
    ]
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=(64, 16)).astype(np.float32), "scale": scalar(1e-3)}
    feeds = {"x": (rng.normal(size=(8, 64)) / 2 - 0.02).astype(np.float32)}
    graph, ranges = scan(make_model(nodes, {"x": [8, 64]}, "y", constants), tmp_path, feeds)
    found = ask(find_vanishing_outputs, graph, ranges)
    assert [finding.node for finding in found] == ["Mul_v", "Transpose_y"]
    plan = plan_precision(graph, ranges, PlanPolicy())
    plain = PrecisionPlan(graph.sha256, 10000.0, ())
    (batch,) = InMemoryCalibration((feeds,))
    right = np.exp(feeds["x"].astype(np.float64) @ constants["w"]).T * 1e-3
    errors = []
    for each, name in ((plain, "plain"), (plan, "planned")):
        values = open_runner(emit(graph, each, tmp_path / f"{name}.onnx")).run(batch)["y"]
        errors.append((int((values == 0).sum()), float(np.max(np.abs(values / right - 1)))))
    assert errors[0][0] > 0
    assert errors[0][1] == 1
    assert errors[1][0] == 0
    assert errors[1][1] < 0.02


def test_probabilities_do_not_matter(tmp_path: Path) -> None:
    values = floats(20, -20, 0, 3)
    for name, nodes in {
        "softmax": [node("Softmax", "x", "y", axis=0)],
        "sigmoid": [node("Sigmoid", "x", "a"), node("Unsqueeze", "a axes", "y")],
        "product": [node("Sigmoid", "x", "a"), node("Softmax", "x", "b", axis=0), node("Mul", "a b", "y")],
        "written out": [
            node("Exp", "x", "e"),
            node("ReduceSum", "e axes", "s"),
            node("Div", "e s", "y"),
        ],
    }.items():
        (tmp_path / name).mkdir()
        assert _pins(tmp_path / name, nodes, values, {"axes": np.asarray([0])}) == [], name


def test_one_part_of_what_is_joined(tmp_path: Path) -> None:
    nodes = [
        node("Exp", "x", "rate"),
        node("Softmax", "x", "p", axis=0),
        node("Concat", "x rate p", "all", axis=0),
        node("Identity", "all", "y"),
    ]
    assert _pins(tmp_path, nodes, [-20, 1], {}) == ["Exp_rate", "Concat_all", "Identity_y"]


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = scan(
        make_model([node("Exp", "x", "y")], {"x": [2]}, "y"), tmp_path, {"x": floats(-20, 1)}
    )
    (found,) = ask(find_vanishing_outputs, graph, ranges)
    assert (found.node, found.tensor, found.batch, found.limit) == ("Exp_y", "y", None, FP16_UNDERFLOW)
    assert found.value == pytest.approx(math.exp(-20), rel=1e-5)
    assert found.reason == "the output y is never zero and has values down to 2.06e-09, which FP16 makes zero"
