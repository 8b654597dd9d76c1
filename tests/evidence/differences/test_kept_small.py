"""Where what is nearly zero stays so, and what hides it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import floats, make_model, node, scalar, scan

from overflow_fixer.evidence.differences.kept_small import is_largest, keeps_small, may_keep

CONSTANTS = {"two": scalar(2), "zero": scalar(0), "low": scalar(-1), "high": scalar(9)}


def _scan(folder: Path, made: Any, x: Any, z: Any, opset: int = 17) -> tuple[Any, ...]:
    model = make_model([made], {"x": [None], "z": [None]}, "y", CONSTANTS, opset)
    graph, ranges = scan(model, folder, {"x": np.asarray(x, np.float32), "z": np.asarray(z, np.float32)})
    return graph, ranges, graph.nodes[0]


@pytest.mark.parametrize(
    ("made", "slot", "is_kept"),
    [
        (node("Mul", "x z", "y"), 1, True),
        (node("Sqrt", "x", "y"), 0, True),
        (node("Pow", "x two", "y"), 0, True),
        (node("Div", "x z", "y"), 0, True),
        (node("Div", "x z", "y"), 1, False),
        (node("Identity", "x", "y"), 0, True),
        (node("Exp", "x", "y"), 0, False),
        (node("Cos", "x", "y"), 0, False),
        (node("Sub", "x z", "y"), 0, False),
        (node("Clip", "x low high", "y"), 0, True),
        (node("Clip", "x low high", "y"), 1, False),
    ],
)
def test_which_operators_may_keep_it(made: Any, slot: int, is_kept: bool, tmp_path: Path) -> None:
    graph, _, reader = _scan(tmp_path, made, [0.5, 1], [0.5, 1])
    assert may_keep(graph, reader, slot) == is_kept


@pytest.mark.parametrize(
    ("x", "z", "is_kept"),
    [
        ([-1.0], [0.5], True),
        ([1.0], [1.0], True),
        ([1.0], [1.001], False),
        ([0.0], [0.0], True),
        ([1.0], [math.inf], False),
        ([math.nan], [1.0], False),
        ([1.0], [math.nan], False),
        ([], [], False),
    ],
)
def test_what_is_larger_beside_it_hides_it(
    x: list[float], z: list[float], is_kept: bool, tmp_path: Path
) -> None:
    graph, ranges, reader = _scan(tmp_path, node("Add", "x z", "y"), x, z)
    assert is_largest(ranges, 0, reader, 0) == is_kept
    assert keeps_small(graph, ranges, 0, reader, 0) == is_kept


def test_a_least_value_counts_for_it(tmp_path: Path) -> None:
    _, ranges, reader = _scan(tmp_path, node("Add", "x z", "y"), [1], [3])
    assert [is_largest(ranges, 0, reader, 0, least) for least in (2.9, 3.0)] == [False, True]


@pytest.mark.parametrize(
    ("made", "opset", "is_kept"),
    [
        (node("Clip", "x high", "y"), 17, False),
        (node("Clip", "x low", "y"), 17, True),
        (node("Clip", "x", "y"), 17, True),
        (node("Clip", "x", "y", min=9.0), 10, False),
        (node("Clip", "x", "y", min=-1.0), 10, True),
    ],
)
def test_a_bound_over_all_of_it_hides_it(made: Any, opset: int, is_kept: bool, tmp_path: Path) -> None:
    graph, ranges, reader = _scan(tmp_path, made, floats(1, 8), floats(1), opset)
    assert keeps_small(graph, ranges, 0, reader, 0) == is_kept
