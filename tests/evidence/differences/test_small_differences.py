"""Differences that are a few of FP16's steps in some batch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import floats, ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.differences.small_differences import SmallDifference, find_small
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable

STEPS = 4.0


def _find(graph: Graph, ranges: RangeTable) -> list[SmallDifference]:
    return [one for at in graph.nodes for one in find_small(graph, ranges, at, STEPS)]


def _scan(tmp_path: Path, low: Any, high: Any, op: str = "Sub", sign: int = 1) -> tuple[Graph, RangeTable]:
    model = make_model([node(op, "a b", "y")], {"a": None, "b": None}, "y")
    feeds = {"a": np.asarray(high, np.float32), "b": sign * np.asarray(low, np.float32)}
    return scan(model, tmp_path, feeds)


@pytest.mark.parametrize(
    ("low", "high", "is_found"),
    [
        ([600.3, 1.5], [602.25, 2.5], True),
        ([600.25, 1.5], [602.25, 2.5], False),
        ([63.3, 1.5], [63.4, 1.625], False),
        ([64.3, 1.5], [64.4, 1.625], True),
        ([3000.3, 1], [3004.8, 2], True),
        ([600.3, 1], [600.3, 1], False),
        ([600.3, math.nan], [600.4, math.nan], False),
        ([600.3, math.inf], [600.4, 1], False),
        (600.3, 600.4, True),
        ([], [], False),
        ([1e5, 1.5], [1e5 + 2, 2.5], True),
    ],
)
@pytest.mark.parametrize(("op", "sign"), [("Sub", 1), ("Add", -1), ("Sum", -1)])
def test_fewer_steps_than_asked(
    op: str, sign: int, low: Any, high: Any, is_found: bool, tmp_path: Path
) -> None:
    """Four steps are 2 from 512 up to 1024, 1/8 from 32 up to 64, and 1/4 from 64 on."""
    assert bool(_find(*_scan(tmp_path, low, high, op, sign))) is is_found


def test_the_worst_batch_comes_first(tmp_path: Path) -> None:
    model = make_model([node("Sub", "a b", "y")], {"a": [None], "b": [None]}, "y")
    pairs = (9.5, 1), (600.5, 1), (), (600.3, 599.3), (600.1, 600), (700.7, 700.7)
    graph, ranges = scan(model, tmp_path, *({"a": floats(*one[:1]), "b": floats(*one[1:])} for one in pairs))
    first, second = _find(graph, ranges)
    assert (first.batch, second.batch) == (4, 3)
    assert (first.value, first.largest, first.limit) == (float(np.float32(600.1) - 600), np.float32(600.1), 2)
    assert first.node.label == "Sub_y"


@pytest.mark.parametrize(
    ("term", "constant", "is_found"),
    [
        (floats(601.2, 602), scalar(600.1), True),
        (floats(600.2, 600.3), scalar(600.1), True),
        (floats(600.2, 3.01), floats(600.1, 3), True),
    ],
)
def test_a_difference_from_a_constant(
    term: np.ndarray, constant: np.ndarray, is_found: bool, tmp_path: Path
) -> None:
    model = make_model([node("Sub", "a c", "y")], {"a": [2]}, "y", {"c": constant})
    assert bool(_find(*scan(model, tmp_path, {"a": term}))) is is_found


def test_integers_and_what_fp16_holds_lose_nothing(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "ids", "p", to=TensorProto.FLOAT),
        node("Sub", "p far", "y"),
        node("Mul", "p half", "q"),
        node("Sub", "q far", "z"),
    ]
    constants = {"far": scalar(601), "half": scalar(0.5)}
    model = make_model(nodes, {"ids": (TensorProto.INT64, [2])}, "y z", constants)
    graph, ranges = scan(model, tmp_path, {"ids": ints(601, 602)}, {"ids": ints(1202, 1203)})
    assert _find(graph, ranges) == []
    assert find_lost_terms(graph, ranges, graph.nodes[1]) == ()


def test_doubles_and_other_operators_are_no_such_difference(tmp_path: Path) -> None:
    double = TensorProto.DOUBLE
    nodes = [node("Sub", "a b", "y"), node("Mul", "c c", "z")]
    model = make_model(
        nodes, {"a": (double, [1]), "b": (double, [1]), "c": [1]}, "y z", output_types={"y": double}
    )
    feeds = {"a": np.asarray([600.2]), "b": np.asarray([600.1]), "c": floats(0.01)}
    assert _find(*scan(model, tmp_path, feeds)) == []


@pytest.mark.parametrize(("added", "largest"), [(-1.02, 300.3), (-0.3, 1)])
@pytest.mark.parametrize("between", ["Identity", "Neg"])
def test_what_the_terms_of_a_term_lost_is_lost_where_it_cancels(
    between: str, added: float, largest: float, tmp_path: Path
) -> None:
    """a − b is 1: with −1.02 it leaves 0.02, and what FP16 took of a, up to 1/8, is in that. What leaves 0.7 does not cancel."""
    sign = -1 if between == "Neg" else 1
    nodes = [node("Sub", "a b", "d"), node(between, "d", "m"), node("Add", "m c", "y")]
    model = make_model(nodes, {name: [1] for name in "abc"}, "y")
    feeds = {"a": floats(300.3), "b": floats(299.3), "c": floats(sign * added)}
    graph, ranges = scan(model, tmp_path, feeds)
    (found,) = find_small(graph, ranges, graph.by_label["Add_y"], 4096)
    assert found.largest == pytest.approx(largest, rel=1e-3)
