"""By what share of itself a quotient, a power or a Sigmoid changes with what it reads."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import floats, make_model, node, scalar, scan

from overflow_fixer.evidence.distances.slopes import find_slopes

HALF = 1 / (1 + math.exp(-2))


@pytest.mark.parametrize(
    ("op", "inputs", "values", "expected"),
    [
        ("Reciprocal", "x", floats(0.5, 4), 2),
        ("Reciprocal", "x", floats(-0.5, -4), 2),
        ("Reciprocal", "x", floats(0, 4), None),
        ("Reciprocal", "x", floats(-1, 4), None),
        ("Reciprocal", "x", floats(math.nan, 4), None),
        ("Div", "two x", floats(0.5, 4), 2),
        ("Div", "x two", floats(0.5, 4), None),
        ("Pow", "x minus", floats(0.5, 4), 3),
        ("Pow", "x two", floats(0.5, 4), None),
        ("Sigmoid", "x", floats(-2, -9), HALF),
        ("Sigmoid", "x", floats(-80, -90), 1),
        ("Sigmoid", "x", floats(2, 9), (1 - HALF) * HALF * (1 + math.exp(-9))),
        ("Sigmoid", "x", floats(-9, 9), 0.25 * (1 + math.exp(-9))),
        ("Sigmoid", "x", floats(math.inf, 9), None),
        ("Exp", "x", floats(1, 9), None),
    ],
)
def test_the_share(op: str, inputs: str, values: np.ndarray, expected: float | None, tmp_path: Path) -> None:
    constants = {"two": scalar(2), "minus": scalar(-1.5)}
    graph, ranges = scan(
        make_model([node(op, inputs, "y")], {"x": [2]}, "y", constants), tmp_path, {"x": values}
    )
    found = list(find_slopes(graph, ranges, graph.nodes[0]))
    assert found == ([] if expected is None else [("x", pytest.approx(expected, rel=1e-5))])
