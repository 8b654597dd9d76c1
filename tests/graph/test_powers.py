"""Squares and exponents, as far as the graph tells them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import floats, make_model, node, save, scalar

from overflow_fixer.graph.powers import is_square, least_exponent, read_exponent

CONSTANTS = {"two": scalar(2), "three": floats(3), "many": floats(2, -1), "none": np.empty(0, np.float32)}


@pytest.mark.parametrize(
    ("op", "inputs", "square", "exponent"),
    [
        ("Mul", "x x", True, math.nan),
        ("Mul", "x a", False, math.nan),
        ("Pow", "x two", True, 2),
        ("Pow", "x three", False, 3),
        ("Pow", "x many", False, math.nan),
        ("Pow", "x none", False, math.nan),
        ("Pow", "x a", False, math.nan),
        ("Div", "x x", False, math.nan),
        ("Abs", "x", False, math.nan),
    ],
)
def test_of_a_node(op: str, inputs: str, square: bool, exponent: float, tmp_path: Path) -> None:
    model = make_model([node(op, inputs, "y")], {"x": [2], "a": [2]}, "y", CONSTANTS)
    graph = save(model, tmp_path)
    (one,) = [one for one in graph.nodes if one.op_type == op]
    assert is_square(graph, one) == square
    assert read_exponent(graph, one) == pytest.approx(exponent, nan_ok=True)


@pytest.mark.parametrize(
    ("exponent", "least"), [("two", 2), ("many", -1), ("none", math.nan), ("a", math.nan)]
)
def test_the_least_exponent(exponent: str, least: float, tmp_path: Path) -> None:
    graph = save(
        make_model([node("Pow", f"x {exponent}", "y")], {"x": [2], "a": [2]}, "y", CONSTANTS), tmp_path
    )
    assert least_exponent(graph, graph.producers["y"]) == pytest.approx(least, nan_ok=True)
