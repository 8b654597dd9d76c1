"""Which sums are squared distances, and what stands between them and what reads them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, scalar, scan
from written_distances import DISTANCES

from overflow_fixer.evidence.distances.squared_distances import (
    find_distance,
    find_summands,
    is_distance,
    read_sole_number,
)

CONSTANTS = {
    "last": ints(1),
    "two": scalar(2),
    "half": scalar(-0.5),
    "pair": floats(1, 3),
    "nan": scalar(math.nan),
}


def _scan(folder: Path, nodes: list[onnx.NodeProto], output: str = "y") -> tuple[Any, Any]:
    inputs = {"x": [2, 3], "ct": [3, 2], "cc": [1, 2]}
    feeds = {name: np.ones(shape, np.float32) for name, shape in inputs.items()}
    return scan(make_model(nodes, inputs, output, CONSTANTS), folder, feeds)


SUMS = {
    "behind a function": [node("Sigmoid", "c", "f"), node("Sub", "a f", "d")],
    "scaled by data": [node("Mul", "c a", "f"), node("Sub", "a f", "d")],
    "squared": [node("Pow", "c two", "f"), node("Sub", "a f", "d")],
}


@pytest.mark.parametrize("form", SUMS)
def test_sums_of_other_products_are_no_distances(form: str, tmp_path: Path) -> None:
    graph, _ = _scan(tmp_path, [*DISTANCES[:3], *SUMS[form]], "d")
    assert not is_distance(graph, graph.producers["d"])


def test_what_adds_one_up(tmp_path: Path) -> None:
    graph, _ = _scan(tmp_path, DISTANCES, "d")
    assert [is_distance(graph, graph.producers[name]) for name in ("d", "t", "c2", "a")] == [
        True,
        True,
        False,
        False,
    ]
    found = {one.label for one in find_summands(graph, "d")}
    assert found == {"Add_d", "Sub_t", "ReduceSum_a", "Mul_xx", "Mul_c2", "MatMul_c"}


@pytest.mark.parametrize(
    ("nodes", "scale"),
    [
        ([node("Neg", "d", "y")], 1.0),
        ([node("Mul", "half d", "y")], 0.5),
        ([node("Div", "d two", "y")], 0.5),
        ([node("Add", "d two", "e"), node("Relu", "e", "y")], 1.0),
        ([node("Mul", "d pair", "y")], None),
        ([node("Exp", "d", "y")], None),
        ([node("Div", "two d", "y")], None),
    ],
)
def test_what_may_stand_behind_it(nodes: list[onnx.NodeProto], scale: float | None, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [*DISTANCES, *nodes])
    found, times = find_distance(graph, ranges, "y")
    expected = (None, 1.0) if scale is None else ("Add_d", scale)
    assert (found and found.label, times) == expected


@pytest.mark.parametrize(
    ("read", "number"),
    [("ct half", 0.5), ("ct two", 2), ("ct pair", 0), ("ct nan", 0), ("half two", 0), ("ct ct", 0)],
)
def test_a_sole_number(read: str, number: float, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [node("Mul", read, "y")])
    assert read_sole_number(graph, ranges, graph.nodes[0]) == number
