"""Parts of tensors, and whether they have the small values of the whole."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import floats, ints, make_model, node, scalar, scan

from overflow_fixer.evidence.zeros.part_values import is_told_by_itself, may_hold
from overflow_fixer.formats import FP16_UNDERFLOW

NEXT = float(np.nextafter(np.float32(FP16_UNDERFLOW), np.float32(1)))
CONSTANTS = {
    "places": ints(0),
    "one": scalar(1),
    "two": scalar(2),
    "axes": ints(-1),
    "bank": np.eye(4, 2, dtype="f4"),
}
BETWEEN = {
    "nothing": [node("Gather", "v places", "y")],
    "root": [node("Sqrt", "v", "r"), node("Gather", "r places", "y")],
    "scale": [node("Mul", "v two", "r"), node("Gather", "r places", "y")],
    "Concat": [node("Concat", "v", "r", axis=0), node("Gather", "r places", "y")],
}


def _may_hold(folder: Path, nodes: list[Any], values: Any, limit: float = FP16_UNDERFLOW) -> bool:
    model = make_model([node("Mul", "x one", "v"), *nodes], {"x": None}, "y", CONSTANTS, 18)
    graph, ranges = scan(model, folder, {"x": np.asarray(values, np.float32)})
    return may_hold(graph, ranges, "y", "v", limit)


@pytest.mark.parametrize("between", BETWEEN.values(), ids=BETWEEN)
@pytest.mark.parametrize(
    ("kept", "is_held"),
    [(FP16_UNDERFLOW, True), (1e-45, True), (2 * NEXT, False), (1, False), (0, False), (math.nan, False)],
)
def test_by_the_smallest_of_the_part(between: list[Any], kept: float, is_held: bool, tmp_path: Path) -> None:
    assert _may_hold(tmp_path, between, [kept, 1e-11, 1]) == is_held


@pytest.mark.parametrize(
    ("values", "is_held"), [([NEXT, 1e-9], False), ([math.inf, 1e-9], False), ([], False)]
)
def test_moved_alone_the_limit_is_exact(values: Any, is_held: bool, tmp_path: Path) -> None:
    nodes = BETWEEN["nothing"] if values else [node("Identity", "v", "y")]
    assert _may_hold(tmp_path, nodes, values) == is_held


def test_a_scalar(tmp_path: Path) -> None:
    assert _may_hold(tmp_path, [node("Identity", "v", "y")], 1e-9)
    assert not _may_hold(tmp_path, [node("Identity", "v", "y")], 1)


@pytest.mark.parametrize("op", ["Sin", "Add"])
def test_what_no_algebra_carries_back_may_hold_it(op: str, tmp_path: Path) -> None:
    nodes = [node(op, "v two" if op == "Add" else "v", "r"), node("Gather", "r places", "y")]
    assert _may_hold(tmp_path, nodes, [1, 1e-9])


def test_sums_of_terms_as_small(tmp_path: Path) -> None:
    """1e-7 may be four of 2.5e-8; of what a matrix weighs, nobody knows."""
    for op, inputs, kept in (("ReduceSum", "x axes", 1e-6), ("MatMul", "x bank", math.inf)):
        nodes = [node(op, inputs, "v"), node("Gather", "v places", "y")]
        folder = tmp_path / op
        folder.mkdir()
        model = make_model(nodes, {"x": [2, 4]}, "y", CONSTANTS, 18)
        for value, is_held in ((2.5e-8, True), (1e-6, kept > 1e-6)):
            graph, ranges = scan(model, folder, {"x": np.full((2, 4), value, np.float32)})
            assert may_hold(graph, ranges, "y", "v", FP16_UNDERFLOW) == is_held


@pytest.mark.parametrize(
    ("value", "least", "is_told"),
    [
        (FP16_UNDERFLOW, 1e-9, True),
        (NEXT, 1e-9, False),
        (1e-9, float(np.float32(1e-9)), False),
        (1e-9, -math.inf, True),
        (0, 1e-9, False),
        (math.nan, 1e-9, False),
    ],
)
def test_what_is_told_by_itself(value: float, least: float, is_told: bool, tmp_path: Path) -> None:
    model = make_model([node("Mul", "x one", "y")], {"x": None}, "y", CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"x": floats(value)})
    assert is_told_by_itself(graph, ranges, "y", least) == is_told
