"""Masks that Attention adds to its scores inside."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, make_model, node, scan

from overflow_fixer import PlanPolicy, emit, open_reference, open_runner, plan_precision
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import PrecisionPlan, RangeTable

SHAPE = [1, 2, 6, 8]
LOWEST = float(np.finfo(np.float32).min)
CAUSAL = np.triu(np.full((6, 6), LOWEST, np.float32), 1)
WHOLE = np.full((6, 6), LOWEST, np.float32)
INFINITE = np.where(CAUSAL < 0, -np.inf, 0).astype(np.float32)
RNG = np.random.default_rng(3)
FEEDS = {name: RNG.normal(size=SHAPE).astype(np.float32) for name in "qkv"}
ATTENTION = [node("Attention", "q k v m", "y")]
GIVING = onnx.helper.make_node("Attention", ["q", "k", "v", "m"], ["y", "", "", "z"], "Attention_y")


def _plan(
    folder: Path, nodes: list[onnx.NodeProto], mask: np.ndarray, factor: float = 1.0, **more: Any
) -> tuple[Graph, RangeTable, PrecisionPlan]:
    shapes: dict[str, Any] = dict.fromkeys("qkv", SHAPE)
    model = make_model(nodes, shapes, "y", {"m": mask, **more}, 23)
    graph, ranges = scan(model, folder, {name: value * np.float32(factor) for name, value in FEEDS.items()})
    return graph, ranges, plan_precision(graph, ranges, PlanPolicy())


CLAMPED: dict[str, tuple[list[onnx.NodeProto], np.ndarray]] = {
    "causal": (ATTENTION, CAUSAL),
    "of infinities": (ATTENTION, INFINITE),
    "scaled": ([node("Attention", "q k v m", "y", scale=2.0)], CAUSAL),
    "moved": ([node("Unsqueeze", "m axes", "w"), node("Attention", "q k v w", "y")], CAUSAL),
}


@pytest.mark.parametrize("name", CLAMPED)
def test_a_mask_that_leaves_an_element_of_every_row_is_clamped(name: str, tmp_path: Path) -> None:
    nodes, mask = CLAMPED[name]
    more = {"axes": np.asarray([0])} if name == "moved" else {}
    graph, _, plan = _plan(tmp_path, nodes, mask, **more)
    assert plan.pins == ()
    assert [(clamp.tensor, clamp.magnitude) for clamp in plan.clamps] == [("m", 25000)]
    (batch,) = InMemoryCalibration((FEEDS,))
    right = open_reference(graph).run(batch)["y"].astype(np.float64)
    found = open_runner(emit(graph, plan, tmp_path / "mixed.onnx")).run(batch)["y"]
    assert float(np.abs(found - right).max()) < 0.01 * float(np.abs(right).max())


REFUSED: dict[str, tuple[list[onnx.NodeProto], np.ndarray, str]] = {
    "a row that is masked as a whole": (ATTENTION, WHOLE, "it masks a row as a whole"),
    "another mask inside": (
        [node("Attention", "q k v m", "y", is_causal=1)],
        CAUSAL,
        "Attention Attention_y does not only add it to its scores",
    ),
    "a cap": ([node("Attention", "q k v m", "y", softcap=5.0)], CAUSAL, "does not only add it"),
    "scores that are given out": ([GIVING], CAUSAL, "does not only add it"),
    "a mask in the values, too": (
        [node("Expand", "m shape", "w"), node("Attention", "q k w m", "y")],
        CAUSAL,
        "does not only add it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_proved_is_pinned(name: str, tmp_path: Path) -> None:
    nodes, mask, why = REFUSED[name]
    more = {"shape": np.asarray([1, 2, 6, 6])} if name.startswith("a mask in") else {}
    _, _, plan = _plan(tmp_path, nodes, mask, **more)
    assert "Attention_y" in {pin.node for pin in plan.pins}
    assert plan.clamps == ()
    assert any(why in finding.reason for pin in plan.pins for finding in pin.findings)


@pytest.mark.parametrize(("factor", "is_clamped"), [(30, True), (40, False), (math.nan, False)])
def test_scores_that_may_come_near_the_mask_are_none(factor: float, is_clamped: bool, tmp_path: Path) -> None:
    """Of queries and keys 30 times as large the scores are some thousands: over 10,000 nothing is proved."""
    _, ranges, plan = _plan(tmp_path, ATTENTION, CAUSAL, factor)
    scores = ranges.inner_of["Attention_y"]["scores"].seen
    assert (scores.max_abs <= 10000) == is_clamped
    assert bool(plan.clamps) == is_clamped
