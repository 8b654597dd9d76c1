"""Sums of which an ArgMin or ArgMax tells the place, by a few of FP16's steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Finding, RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

GENERATOR = np.random.default_rng(0)
CONSTANTS = {
    "far": scalar(100),
    "below": scalar(-100),
    "one": ints(1),
    "mask": np.array([True, True, False]),
    "fill": scalar(-30000),
}
PLACES = {"y": TensorProto.INT64}
SUM = [node("Add", "x far", "s")]
PLACE = node("ArgMax", "s", "y", axis=1, keepdims=0)


def _scan(
    folder: Path, nodes: list[onnx.NodeProto], *batches: Any, width: Any = 3
) -> tuple[Graph, RangeTable]:
    model = make_model(nodes, {"x": [None, width]}, "y", CONSTANTS, 18, PLACES)
    return scan(model, folder, *({"x": np.asarray(one, np.float32)} for one in batches))


def _told(graph: Graph, ranges: RangeTable) -> list[Finding]:
    return [one for one in ask(find_lost_differences, graph, ranges) if "chooses among" in one.reason]


@pytest.mark.parametrize(
    ("batches", "is_found"),
    [
        ([[[0.3, 1.3, 0.1]]], False),  # 16 steps at 101.3
        ([[[0.3, 1.29, 0.1]]], True),
        ([[[0.3, 1.29, 0.1]], [[0.3, 1.4, 0.1]]], False),  # on average
        ([[[0.3, 1.29, 0.1], [0.3, 1.35, 0.1]]], False),
        ([[[0.3, 0.5, 0.1]], np.zeros((0, 3))], True),
        ([np.zeros((0, 3))], False),
        ([[[0.3, 0.3, 0.1]]], False),  # a tie is one in FP32 as well
        ([[[0.3, 0.3001, 0.1]]], True),
        ([[[0.3, 0.30003, 0.1]]], False),  # FP32 itself rounds as much
        ([[[0.3, 0.5, math.nan]]], False),
        ([[[0.3, 0.5, -math.inf]]], False),
        ([[[-250.0, -249.5, -400.0]]], True),
        ([[[-101.3, -100.9, -400.0]]], False),  # what is chosen counts, -0.9
        ([[[0.0, 1.0, 0.0]], [[0.0, 0.0, 0.0]]], False),  # integers, which FP16 holds
    ],
)  # fmt: skip
def test_boundary(batches: list[Any], is_found: bool, tmp_path: Path) -> None:
    told = _told(*_scan(tmp_path, [*SUM, PLACE], *batches))
    assert [one.node for one in told] == ["Add_s"] * is_found


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Sub", "below x", "s"), node("ArgMin", "s", "y", axis=1, keepdims=0)],
        [*SUM, node("Neg", "s", "n"), node("ArgMin", "n", "y", axis=1, keepdims=0)],
        [*SUM, node("Where", "mask s fill", "n"), node("ArgMax", "n", "y", axis=1, keepdims=0)],
    ],
    ids=["of differences", "negated", "masked"],
)
def test_other_choices(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, nodes, [[0.3, 0.5, 0.1]])
    assert {one.node for one in _told(graph, ranges)} == {one.name for one in nodes[:-1]}


def test_the_evidence(tmp_path: Path) -> None:
    (found,) = _told(*_scan(tmp_path, [*SUM, PLACE], [[0.25, 0.5, 0.125]], [[0.5, 0.25, 0.375]]))
    assert (found.node, found.tensor, found.batch, found.limit) == ("Add_s", "s", None, 1)
    assert found.value == pytest.approx((0.25 + 0.125) / 2)
    assert found.reason == (
        "ArgMax ArgMax_y chooses among s, 100.5 in magnitude there, by 0.188 on average: FP16's steps are 0.0625 there"
    )


@pytest.mark.parametrize(
    ("nodes", "width"),
    [
        ([*SUM, PLACE], None),
        ([*SUM, node("Sqrt", "s", "r"), node("ArgMax", "r", "y", axis=1, keepdims=0)], 3),
        ([*SUM, node("Mul", "s far", "m"), node("ArgMax", "m", "y", axis=1, keepdims=0)], 3),
        ([node("Identity", "x", "s"), PLACE], 3),
    ],
    ids=["rows of a length that is not known", "roots", "products", "what is fed"],
)
def test_what_is_not_looked_at(nodes: list[onnx.NodeProto], width: int | None, tmp_path: Path) -> None:
    assert _told(*_scan(tmp_path, nodes, [[0.3, 0.5, 0.1]], width=width)) == []


def _make_viterbi(steps: int) -> onnx.ModelProto:
    """Paths of ten states, each step scored about 3 more than the last; y is from where each was reached last."""
    nodes = [node("Gather", "x i0", "a0", axis=0)]
    for step in range(1, steps):
        nodes += [
            node("Unsqueeze", f"a{step - 1} one", f"u{step}"),
            node("Add", f"u{step} moves", f"s{step}"),
            node("ReduceMax", f"s{step}", f"m{step}", axes=[0], keepdims=0),
            node("Gather", f"x i{step}", f"e{step}", axis=0),
            node("Add", f"m{step} e{step}", f"a{step}"),
        ]
    nodes.append(node("ArgMax", f"s{steps - 1}", "y", axis=0, keepdims=0))
    places = {f"i{step}": np.asarray(step) for step in range(steps)}
    moves = GENERATOR.normal(size=(10, 10)).astype(np.float32)
    constants = {"one": ints(1), "moves": moves, **places}
    return make_model(nodes, {"x": [steps, 10]}, "y", constants, 13, PLACES)


def test_a_path_is_right_with_the_pins(tmp_path: Path) -> None:
    batches = [GENERATOR.normal(1, 2, (80, 10)).astype(np.float32) for _ in range(40)]
    graph, ranges = scan(_make_viterbi(80), tmp_path, *({"x": one} for one in batches[:8]))
    labels = set(pinned_by(find_lost_differences, graph, ranges))
    pinned = {name for one in graph.nodes for name in one.writes if one.label in labels}
    path = tmp_path / "model.onnx"
    right = [run_fp32(path, {"x": one})["y"] for one in batches]

    def count_wrong(fp32: set[str]) -> int:
        found = (run_fp16(path, {"x": one}, fp32)["y"] for one in batches)
        return int(sum((true != got).sum() for true, got in zip(right, found, strict=True)))

    assert "s79" in pinned
    assert pinned.isdisjoint({"m79", "s1"})
    assert count_wrong(set()) >= 8  # of 400
    assert count_wrong({*pinned, "y"}) <= 2  # an ArgMax reads what it is given


def test_distances_are_another_forms(tmp_path: Path) -> None:
    nodes = [
        node("ReduceSumSquare", "x", "q", axes=[1]),
        node("MatMul", "x points", "p"),
        node("Sub", "q p", "d"),
        node("ArgMin", "d", "y", axis=1, keepdims=0),
    ]
    points = GENERATOR.normal(30, 0.01, (3, 5)).astype(np.float32)
    model = make_model(nodes, {"x": [None, 3]}, "y", {"points": points}, 13, PLACES)
    graph, ranges = scan(model, tmp_path, {"x": GENERATOR.normal(30, 0.01, (50, 3)).astype(np.float32)})
    found = [one for one in ask(find_lost_differences, graph, ranges) if one.node == "Sub_d"]
    assert found
    assert all("on average" not in one.reason for one in found)
