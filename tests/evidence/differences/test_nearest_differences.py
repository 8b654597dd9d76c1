"""The least of what is made of differences, of which FP16 leaves a few steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Finding, RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

CONSTANTS = {
    "last": ints(-1),
    "one": ints(1),
    "two": scalar(2),
    "far": scalar(100),
    "fill": scalar(9999),
    "mask": np.array([True, True, False]),
}
PINS = {"Unsqueeze_a", "Unsqueeze_b", "Sub_d"}
DIFFERENCE = [node("Unsqueeze", "x one", "a"), node("Unsqueeze", "z zero", "b"), node("Sub", "a b", "d")]
FORMS: dict[str, list[onnx.NodeProto]] = {
    "squares": [node("Mul", "d d", "q"), node("ReduceSum", "q last", "s", keepdims=0)],
    "powers": [node("Pow", "d two", "q"), node("ReduceSum", "q last", "s", keepdims=0)],
    "a sum of squares": [node("ReduceSumSquare", "d", "s", axes=[-1], keepdims=0)],
    "a norm": [node("ReduceL2", "d", "s", axes=[-1], keepdims=0)],
    "magnitudes": [node("Abs", "d", "q"), node("ReduceSum", "q last", "s", keepdims=0)],
    "roots": [node("ReduceSumSquare", "d", "q", axes=[-1], keepdims=0), node("Sqrt", "q", "s")],
}
LEAST = node("ReduceMin", "s", "y", axes=[1])
GENERATOR = np.random.default_rng(0)
POINTS = GENERATOR.uniform(-50, 50, (200, 3)).astype(np.float32)
NEAR = (POINTS + GENERATOR.normal(0, 0.03, POINTS.shape)).astype(np.float32)


def _scan(folder: Path, nodes: list[onnx.NodeProto], *batches: tuple[Any, Any]) -> tuple[Graph, RangeTable]:
    constants = CONSTANTS | {"zero": ints(0)}
    model = make_model(nodes, {"x": [None, None], "z": [None, None]}, "y", constants, 13)
    feeds = ({"x": np.asarray(x, np.float32), "z": np.asarray(z, np.float32)} for x, z in batches)
    return scan(model, folder, *feeds)


def _told(graph: Graph, ranges: RangeTable) -> list[Finding]:
    return [one for one in ask(find_lost_differences, graph, ranges) if "chooses the least" in one.reason]


@pytest.mark.parametrize("form", FORMS)
def test_the_nearest_are_right_with_the_pins(form: str, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [*DIFFERENCE, *FORMS[form], LEAST], (POINTS, NEAR))
    assert {one.node for one in _told(graph, ranges)} == PINS
    feeds = {"x": POINTS, "z": NEAR}
    fp32 = {name.split("_")[1] for name in pinned_by(find_lost_differences, graph, ranges)}
    assert measure_snr_db(tmp_path / "model.onnx", feeds) < 25
    assert measure_snr_db(tmp_path / "model.onnx", feeds, fp32) > 60


ONE = [node("Sub", "x z", "d"), node("Abs", "d", "s")]


@pytest.mark.parametrize(
    ("batches", "is_found"),
    [
        ([([[100.3, 8.0]], [[104.3, 20.0]])], False),  # 64 steps at 100.3, the less of both
        ([([[100.3, 8.0]], [[104.2, 20.0]])], True),
        ([([[10.3, 8.1]], [[104.2, 8.3]])], True),  # 10.3: the largest is of what is not near
        ([([[10.3, 8.1]], [[104.2, 9.3]])], False),
        ([([[10.3, 8.1]], [[104.2, 9.3]]), ([[10.3, 8.1]], [[104.2, 8.3]])], True),
        ([([[100.3]], [[100.3]])], False),
        ([([[100.3]], [[100.30001]])], False),  # FP32 itself rounds as much
        ([([[100.3, 8.0]], [[101.2, 20.0]]), (np.zeros((0, 2)), np.zeros((0, 2)))], True),
        ([(np.zeros((0, 1)), np.zeros((0, 1)))], False),
        ([([[100.3, math.nan]], [[101.2, 5.0]])], False),
        ([([[100.3, math.inf]], [[101.2, 5.0]])], False),
        ([([[100.0, 5.0]], [[101.0, 9.0]])], False),  # integers, which FP16 holds
    ],
)
def test_boundary(batches: list[tuple[Any, Any]], is_found: bool, tmp_path: Path) -> None:
    told = _told(*_scan(tmp_path, [*ONE, LEAST], *batches))
    assert [one.node for one in told] == ["Sub_d"] * is_found


def test_the_evidence(tmp_path: Path) -> None:
    far, near = ([[100.3]], [[103.3]]), ([[100.3]], [[101.3]])
    (found,) = _told(*_scan(tmp_path, [*ONE, LEAST], far, near))
    assert (found.tensor, found.limit, found.batch) == ("d", 4, "batch_1")
    assert found.value == pytest.approx(1)
    assert found.reason.startswith(
        "ReduceMin ReduceMin_y chooses the least of d, 1 and less, whose terms, up to 100.3, lose much"
    )


@pytest.mark.parametrize(
    ("nodes", "is_found"),
    [
        ([*ONE, node("TopK", "s one", "y i", axis=1, largest=0)], True),
        ([*ONE, node("TopK", "s one", "y i", axis=1)], False),
        ([*ONE, node("ReduceMax", "s", "y", axes=[1])], False),
        ([node("Sub", "x z", "d"), node("ReduceMin", "d", "y", axes=[1])], False),
        ([node("Sub", "x far", "d"), node("Abs", "d", "s"), LEAST], False),
        ([*ONE, node("Where", "mask s fill", "w"), node("ReduceMin", "w", "y", axes=[1])], True),
        ([*ONE, node("Exp", "s", "e"), node("ReduceMin", "e", "y", axes=[1])], False),
    ],
    ids=["the least few", "the largest few", "the largest", "no size", "a constant", "masked", "a function"],
)
def test_what_is_looked_at(nodes: list[onnx.NodeProto], is_found: bool, tmp_path: Path) -> None:
    batch = [[100.3, 90.7, 10.1]], [[101.2, 60.5, 81.4]]
    assert bool(_told(*_scan(tmp_path, nodes, batch))) == is_found


def test_a_term_that_is_a_difference_itself(tmp_path: Path) -> None:
    """From a place to the nearest of short segments, far from zero: (p - a) - t (b - a)."""
    nodes = [
        node("Sub", "x z", "p"),
        node("Mul", "p half", "t"),
        node("Sub", "p t", "d"),
        node("Abs", "d", "s"),
        LEAST,
    ]
    model = make_model(nodes, {"x": [1, 2], "z": [1, 2]}, "y", {"half": scalar(0.9)}, 13)
    feeds = {"x": np.array([[400.3, 300.1]], np.float32), "z": np.array([[402.2, 330.4]], np.float32)}
    found = _told(*scan(model, tmp_path, feeds))
    assert {one.node for one in found} >= {"Sub_d", "Sub_p"}
    assert "up to 400.3" in found[0].reason
