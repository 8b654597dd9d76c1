"""Coordinates over 1024, and what computes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import floats, ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.integers.places import LARGEST_COORDINATE, is_far, trace_back
from overflow_fixer.formats import step_at


def test_steps_are_a_pixel_from_the_limit_on() -> None:
    below = np.nextafter(np.float16(LARGEST_COORDINATE), np.float16(0))
    assert (step_at(float(below)), step_at(LARGEST_COORDINATE), step_at(9600)) == (0.5, 1, 8)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1024, 0.3], False),
        ([1024.5, 0.3], True),
        ([-1024.5, 0.3], True),
        ([1500, 1200], False),
        ([2049, 1200], False),
        ([1500.3, math.nan], False),
        ([1500.3, math.inf], False),
        ([], False),
        (1500.3, True),
        (1500.5, True),
        (1025, False),
    ],
)
def test_far(values: Any, expected: bool, tmp_path: Path) -> None:
    """One number alone is known whether FP16 has it: 1025 it has, and integers over 2048 are another rule's."""
    model = make_model([node("Neg", "x", "y")], {"x": None}, "y")
    graph, ranges = scan(model, tmp_path, {"x": np.asarray(values, np.float32)})
    assert is_far(graph, ranges, "x") == expected


def test_what_is_not_of_fp32_is_not_far(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "wide", to=TensorProto.DOUBLE),
        node("Cast", "wide", "y", to=TensorProto.FLOAT),
    ]
    graph, ranges = scan(make_model(nodes, {"x": [1]}, "y"), tmp_path, {"x": floats(1500.3)})
    assert (is_far(graph, ranges, "wide"), is_far(graph, ranges, "no such tensor")) == (False, False)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("Add", "a b", "y")], ["Mul_a", "Add_y"]),
        ([node("Mul", "a b", "y")], ["Mul_a", "Mul_b", "Mul_y"]),
        ([node("Div", "a b", "y")], ["Div_y"]),
        ([node("Div", "a share", "y")], ["Mul_a", "Div_y"]),
        ([node("Where", "is a b", "y")], ["Mul_a", "Where_y"]),
        ([node("Gather", "a zero", "y")], ["Mul_a", "Gather_y"]),
        ([node("ReduceMax", "a", "y")], ["ReduceMax_y"]),
        ([node("Neg", "held", "y")], ["Neg_y"]),
    ],
)
def test_the_way_back(nodes: Any, expected: list[str], tmp_path: Path) -> None:
    """`a` is far unless it is scaled down, `b` is not unless it is scaled up, and FP16 holds what is counted."""
    start = [
        node("Mul", "x far", "a"),
        node("Mul", "x near", "b"),
        node("Cast", "zero", "i", to=TensorProto.FLOAT),
        node("Add", "i pixels", "held"),
    ]
    constants = {
        "far": scalar(1500.3),
        "near": scalar(2.3),
        "share": scalar(0.4),
        "zero": ints(0),
        "is": np.asarray([True]),
    }
    model = make_model([*start, *nodes], {"x": [2]}, "y", {**constants, "pixels": scalar(1500)})
    graph, ranges = scan(model, tmp_path, {"x": floats(0.7, 1)})
    found = sorted(trace_back(graph, ranges, "y"), key=lambda node: node.index)
    assert [node.label for node in found] == expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("Sub", "a c", "d"), node("Add", "d a", "y")], ["Mul_a", "Mul_c", "Sub_d", "Add_y"]),
        (
            [node("Sub", "a c", "d"), node("Identity", "d", "e"), node("Add", "b e", "y")],
            ["Mul_a", "Mul_c", "Sub_d", "Identity_e", "Add_y"],
        ),
        (
            [node("Sub", "a c", "d"), node("Add", "d b", "e"), node("Sub", "e b", "y")],
            ["Mul_a", "Mul_c", "Sub_d", "Add_e", "Sub_y"],
        ),
        (
            [node("Sub", "a c", "d"), node("Mul", "d share", "e"), node("Add", "e b", "y")],
            ["Add_y"],
        ),
        ([node("Sub", "b x", "d"), node("Add", "d a", "y")], ["Mul_a", "Add_y"]),
        ([node("Min", "a x", "d"), node("Add", "d b", "y")], ["Add_y"]),
        ([node("Sub", "a a", "d"), node("Add", "d b", "y")], ["Add_y"]),
        ([node("Sub", "held held2", "d"), node("Add", "d b", "y")], ["Add_y"]),
    ],
)
def test_the_way_goes_on_through_a_small_difference(nodes: Any, expected: list[str], tmp_path: Path) -> None:
    """`a` and `c` are far and near each other; of what FP16 holds, and of zeros, nothing is lost."""
    start = [
        node("Mul", "x far", "a"),
        node("Mul", "x nearly", "c"),
        node("Mul", "x near", "b"),
        node("Cast", "zero", "i", to=TensorProto.FLOAT),
        node("Add", "i pixels", "held"),
        node("Add", "i fewer", "held2"),
    ]
    constants = {"far": scalar(1500.3), "nearly": scalar(1490.7), "near": scalar(2.3), "share": scalar(0.3)}
    constants |= {"zero": ints(0), "pixels": scalar(1500), "fewer": scalar(1490)}
    model = make_model([*start, *nodes], {"x": [2]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": floats(0.7, 1)})
    found = sorted(trace_back(graph, ranges, "y"), key=lambda node: node.index)
    assert [node.label for node in found] == expected


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_of_terms_that_are_not_finite_none_is_known(value: float, tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x far", "a"),
        node("Mul", "x nearly", "c"),
        node("Sub", "a c", "d"),
        node("Add", "d x", "y"),
    ]
    constants = {"far": scalar(1500.3), "nearly": scalar(1490.7)}
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y", constants), tmp_path, {"x": floats(1, value)})
    assert [node.label for node in trace_back(graph, ranges, "y")] == ["Add_y"]


def test_a_long_way_is_followed_without_recursion(tmp_path: Path) -> None:
    chain = [node("Identity", f"a{i}", f"a{i + 1}") for i in range(1500)]
    model = make_model([node("Mul", "x far", "a0"), *chain], {"x": [2]}, "a1500", {"far": scalar(1500.3)})
    graph, ranges = scan(model, tmp_path, {"x": floats(0.7, 1)})
    assert len(list(trace_back(graph, ranges, "a1500"))) == 1501
