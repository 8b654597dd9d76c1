"""Ends of rows that masks leave, and operators that keep them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, save, scalar
from onnx import TensorProto

from overflow_fixer.evidence.masks.mask_ends import find_ends, find_kept, find_opened, is_always_switch
from overflow_fixer.graph.model import Graph

FIRST, LAST = {"first"}, {"last"}
BOTH = FIRST | LAST


@pytest.mark.parametrize(
    ("pattern", "ends"),
    [
        ([[False, True], [False, False]], FIRST),
        ([[True, False]], LAST),
        ([[False, True, False]], BOTH),
        ([[False, True], [True, False]], set()),
        ([[False], [False]], BOTH),
        ([[True], [False]], set()),
        (False, BOTH),
        (True, set()),
        ([], BOTH),
        (np.zeros((0, 3)), BOTH),
        (np.zeros((3, 0)), BOTH),
    ],
)
def test_ends_of_a_pattern(pattern: Any, ends: set[str]) -> None:
    assert find_ends(np.asarray(pattern, bool)) == ends


def _load(folder: Path, at: onnx.NodeProto, dims: Any, constants: dict[str, Any], opset: int = 17) -> Graph:
    kinds = {"x": dims, "b": (TensorProto.BOOL, [2]), "k": (TensorProto.INT64, [])}
    inputs = {name: kind for name, kind in kinds.items() if name in at.input}
    return save(make_model([at], inputs, at.output[0], constants, opset), folder)


SIZES = [(1, 1), (1, 4), (4, 1), (3, 4), (4, 4), (5, 4), (2, 7), (0, 3), (3, 0)]


@pytest.mark.parametrize("upper", [0, 1, None])
@pytest.mark.parametrize("k", [-2, -1, 0, 1, 3, None])
def test_every_end_that_a_triangle_leaves_is_left(upper: int | None, k: int | None, tmp_path: Path) -> None:
    """Of sizes that are known, where it is said of the first element, and just where it is of the last."""
    attribute = {} if upper is None else {"upper": upper}
    for rows, columns in SIZES:
        at = node("Trilu", "x" if k is None else "x c", "y", **attribute)
        graph = _load(tmp_path, at, [rows, columns], {} if k is None else {"c": np.asarray(k, np.int64)})
        pattern = np.ones((rows, columns), bool)
        pattern = np.tril(pattern, k or 0) if upper == 0 else np.triu(pattern, k or 0)
        found = find_opened(graph, graph.nodes[0])
        assert found <= find_ends(pattern)
        if upper == 0:
            assert found == ({"last"} if rows + (k or 0) < columns else set())
        else:
            assert found == (FIRST if (k or 0) >= 1 else set())


def test_a_triangle_of_sizes_or_of_a_diagonal_that_nobody_knows(tmp_path: Path) -> None:
    one, minus = {"c": np.asarray(1, np.int64)}, {"c": np.asarray(-1, np.int64)}
    for at, constants, ends in (
        (node("Trilu", "x c", "y", upper=1), one, FIRST),
        (node("Trilu", "x c", "y", upper=0), minus, set()),
        (node("Trilu", "x k", "y", upper=1), {}, set()),
    ):
        graph = _load(tmp_path, at, ["s", "s"], constants)
        assert find_opened(graph, graph.nodes[0]) == ends


KEPT = [
    ("Identity", node("Identity", "x", "y"), BOTH),
    ("Expand", node("Expand", "x sizes", "y"), BOTH),
    ("Tile", node("Tile", "x sizes", "y"), BOTH),
    ("before the last", node("Unsqueeze", "x front", "y"), BOTH),
    ("between", node("Unsqueeze", "x middle", "y"), BOTH),
    ("the last", node("Unsqueeze", "x end", "y"), set()),
    ("the last, from the end", node("Unsqueeze", "x minus", "y"), set()),
    ("before it, from the end", node("Unsqueeze", "x minus_2", "y"), BOTH),
    ("rows moved", node("Transpose", "x", "y", perm=[0, 1]), BOTH),
    ("turned", node("Transpose", "x", "y", perm=[1, 0]), set()),
    ("turned by default", node("Transpose", "x", "y"), set()),
    ("another row length", node("Reshape", "x flat", "y"), set()),
    ("columns from the first on", node("Slice", "x zero two end", "y"), FIRST),
    ("columns, from the end", node("Slice", "x zero two minus", "y"), FIRST),
    ("columns from the second on", node("Slice", "x one two end", "y"), set()),
    ("every second column", node("Slice", "x zero two end two", "y"), set()),
    ("rows", node("Slice", "x one two front", "y"), BOTH),
    ("axes left out", node("Slice", "x zero two", "y"), set()),
    ("Gather", node("Gather", "x zero", "y", axis=1), set()),
    ("Neg", node("Neg", "x", "y"), set()),
]
NUMBERS = {
    "sizes": ints(1, 1),
    "front": ints(0),
    "middle": ints(1),
    "end": ints(2),
    "minus": ints(-1),
    "minus_2": ints(-2),
    "flat": ints(-1),
    "zero": ints(0),
    "one": ints(1),
    "two": ints(2),
}


@pytest.mark.parametrize(("at", "ends"), [case[1:] for case in KEPT], ids=[case[0] for case in KEPT])
def test_what_keeps_ends(at: onnx.NodeProto, ends: set[str], tmp_path: Path) -> None:
    numbers = NUMBERS | ({"end": ints(1)} if at.op_type == "Slice" else {})
    graph = _load(tmp_path, at, ["r", "s"], numbers)
    assert find_kept(graph, graph.nodes[0]) == ends


def test_a_row_length_that_stays(tmp_path: Path) -> None:
    graph = _load(tmp_path, node("Reshape", "x c", "y"), [2, 3, 4], {"c": ints(6, 4)})
    assert find_kept(graph, graph.nodes[0]) == BOTH
    graph = _load(tmp_path, node("Unsqueeze", "x", "y", axes=[0]), [2, 4], {}, opset=11)
    assert find_kept(graph, graph.nodes[0]) == BOTH


def test_switches_by_what_they_are_made_of(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "b", "f", to=1),
        node("Unsqueeze", "f axes", "switch"),
        node("Sub", "one switch", "computed"),
        node("Mul", "computed x", "y"),
    ]
    inputs = {"x": [1], "b": (TensorProto.BOOL, [2])}
    graph = save(make_model(nodes, inputs, "y", {"one": scalar(1), "axes": ints(0)}), tmp_path)
    found = [name for name in ("f", "switch", "computed", "x", "one") if is_always_switch(graph, name)]
    assert found == ["f", "switch", "one"]
