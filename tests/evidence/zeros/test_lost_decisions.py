"""Values near zero that are there by no chance."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.zeros.lost_decisions import find_lost_decisions

MASK = [node("Greater", "h zero", "b"), node("Cast", "b", "y", to=TensorProto.FLOAT)]


def _found(folder: Path, nodes: list[onnx.NodeProto], x: np.ndarray) -> list[float]:
    constants = {"zero": scalar(0), "half": scalar(0.5), "one": scalar(1), "big": scalar(1e10)}
    used = {name for one in nodes for name in one.input}
    constants = {name: value for name, value in constants.items() if name in used}
    graph, ranges = scan(make_model(nodes, {"x": [None]}, "y", constants), folder, {"x": x})
    return [lost.value for lost in find_lost_decisions(graph, ranges)]


@pytest.mark.parametrize(
    ("values", "value"),
    [
        ([2**-24, 1], 2**-25),
        ([2**-23, 1], None),
        ([1e-12, 1, 0], 5e-13),
        ([-1e-12, -1, 0], None),
        ([0, 1], None),
        ([2**-24] + [2**-8] * 63, 2**-25),
        ([2**-24] + [2**-8] * 64, None),
        ([2**-24] + [2**-13] * 3, 2**-25),
        ([2**-24, math.nan, 1], 2**-25),
        ([2**-24, math.inf], 2**-25),
        ([math.nan], None),
        ([], None),
    ],
)
def test_boundary(values: list[float], value: float | None, tmp_path: Path) -> None:
    found = _found(tmp_path, [node("Mul", "x half", "h"), *MASK], floats(*values))
    assert found == ([] if value is None else [pytest.approx(value)])


def test_the_square_of_what_is_small_by_chance_is_so_too(tmp_path: Path) -> None:
    x = np.linspace(2**-13, 1, 4096, dtype=np.float32)
    assert _found(tmp_path, [node("Mul", "x x", "h"), *MASK], x) == []
    x[0] = 2**-24
    assert _found(tmp_path, [node("Mul", "x x", "h"), *MASK], x) == [pytest.approx(2**-48)]


def test_what_a_difference_leaves_is_rounding(tmp_path: Path) -> None:
    nodes = [node("Sub", "one x", "d"), node("Mul", "d d", "h"), *MASK]
    assert _found(tmp_path, nodes, floats(1 + 2**-23, 500)) == []


def test_what_a_difference_divides_is_small_where_that_is_large(tmp_path: Path) -> None:
    nodes = [node("Sub", "x one", "d"), node("Div", "one d", "h"), *MASK]
    assert _found(tmp_path, nodes, floats(1e10, 2)) == [pytest.approx(1e-10)]
    nodes = [node("Sub", "x one", "d"), node("Div", "d big", "h"), *MASK]
    assert _found(tmp_path, nodes, floats(2, 1e10)) == []
