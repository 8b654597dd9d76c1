"""Differences from one number of which FP16 makes zero."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import floats, ints, make_model, node, scalar, scan

from overflow_fixer.evidence.zeros.cancellation import Cancellation, find_cancellation, trace_term

STEP = 2.0**-11
"""FP16's step below 1; above it is twice as much."""
CONSTANTS = {
    "c": scalar(1),
    "same": floats(1, 1),
    "others": floats(1, 2),
    "minus": scalar(-1),
    "huge": scalar(1e9),
}


def _find(folder: Path, op: str, inputs: str, values: Any) -> Cancellation | None:
    nodes = [node(op, inputs, "d"), node("Reciprocal", "d", "y")]
    graph, ranges = scan(
        make_model(nodes, {"x": None}, "y", CONSTANTS), folder, {"x": np.asarray(values, np.float32)}
    )
    return find_cancellation(graph, ranges, graph.nodes[0])


@pytest.mark.parametrize(
    ("values", "is_zero"),
    [
        ([0.5, 1 - STEP / 2], True),
        ([0.5, 1 - STEP / 2 - 2.0**-24], False),
        ([0.5, 1 - 2.0**-24], True),
        ([2, 1 + STEP], True),
        ([2, 1 + STEP + 2.0**-23], False),
        ([0.5, 1 + STEP / 4], True),
        ([0.5, 1, 1 - STEP / 4], True),
        ([1, 1], False),
        ([0.5, 0], False),
        ([], False),
    ],
)
def test_boundary(values: Any, is_zero: bool, tmp_path: Path) -> None:
    x = np.asarray(values, np.float32)
    assert bool(np.any((x != 1) & (x.astype(np.float16) == 1))) == is_zero
    assert _find(tmp_path, "Sub", "c x", values) == (Cancellation("x", 1) if is_zero else None)


def test_a_difference_from_what_fp16_makes_zero_of_is_none(tmp_path: Path) -> None:
    nodes = [node("Add", "x eps", "d"), node("Reciprocal", "d", "y")]
    model = make_model(nodes, {"x": None}, "y", {"eps": scalar(1e-12)})
    graph, ranges = scan(model, tmp_path, {"x": floats(0, 1)})
    assert find_cancellation(graph, ranges, graph.nodes[0]) is None


@pytest.mark.parametrize(
    ("op", "inputs", "value", "number"),
    [
        ("Sub", "x c", 0.9999, 1),
        ("Sub", "same x", 0.9999, 1),
        ("Add", "x minus", 0.9999, 1),
        ("Add", "c x", -0.9999, -1),
        ("Add", "c x", 0.9999, None),
        ("Sub", "others x", 0.9999, None),
        ("Sub", "x huge", 999999936, None),
        ("Sub", "x x", 0.9999, None),
        ("Div", "c x", 0.9999, None),
        ("Sub", "c x", math.nan, None),
        ("Sub", "c x", math.inf, None),
    ],
)
def test_what_is_taken_from_what(
    op: str, inputs: str, value: float, number: float | None, tmp_path: Path
) -> None:
    assert _find(tmp_path, op, inputs, [value, value]) == (
        None if number is None else Cancellation("x", number)
    )


@pytest.mark.parametrize(
    ("op", "first", "second", "is_found"),
    [
        ("Sub", [3.1, 2.5], [3.1 - 3.9 * STEP, 1.5], True),
        ("Sub", [3.1, 2.5], [3.1 - 4.1 * STEP, 1.5], False),
        ("Sub", [3.1, 0.4], [3.1 - STEP, 0.3], False),
        ("Sub", [1e-9, 2.5], [-1e-9, 1.5], False),
        ("Add", [1e-9, 2.5], [1e-9, 1.5], False),
        ("Sub", [-3.1, -2.5], [STEP - 3.1, -1.5], True),
        ("Add", [3.1, 2.5], [STEP - 3.1, -1.5], True),
        ("Add", [3.1, 2.5], [STEP, 1.5], False),
        ("Sub", [3.1, 2.5], [3.1 - STEP, -1.5], False),
        ("Sub", [3.1, 2.5], [3.1 - STEP, 0], False),
        ("Sub", [3.1, 2.5], [3.1, 1.5], False),
        ("Sub", [3.1, 2.5], [3.0999994, 1.5], False),
        ("Sub", [3.1, math.nan], [3.1 - STEP, 1.5], False),
        ("Sub", [7e4, 8e4], [7e4 - 8, 7e4 - 8], False),
        ("Sub", [3.0, 2.0], [3.0 - STEP, 1.5], True),
    ],
)
def test_two_terms_of_one_sign_are_compared_where_they_are_least(
    op: str, first: list[float], second: list[float], is_found: bool, tmp_path: Path
) -> None:
    """The one that is 2 and more has steps of 4 STEP and more, and so has the other where they are alike."""
    model = make_model([node(op, "a b", "d"), node("Log", "d", "y")], {"a": [2], "b": [2]}, "y")
    graph, ranges = scan(model, tmp_path, {"a": floats(*first), "b": floats(*second)})
    found = find_cancellation(graph, ranges, graph.nodes[0])
    assert (found is not None) == is_found
    if found is not None:
        assert found.term == "a"
        assert found.other == "b"
        assert found.limit == 4 * STEP


def test_on_which_side_it_was_is_not_known_where_both_were_seen(tmp_path: Path) -> None:
    """FP16 has a number three quarters of a step below 1, and none so near above."""
    near = 0.75 * STEP
    assert _find(tmp_path, "Sub", "c x", [2, 1 + near]) is not None
    assert _find(tmp_path, "Sub", "c x", [0.5, 1 + near]) is None


def test_back_to_where_the_digits_come_from(tmp_path: Path) -> None:
    nodes = [
        node("Relu", "x", "logits"),
        node("Sigmoid", "logits", "p"),
        node("Gather", "p first", "one"),
        node("Clip", "one - c", "clipped"),
        node("Mul", "clipped clipped", "squares"),
        node("Sub", "c squares", "y"),
    ]
    model = make_model(nodes, {"x": [2]}, "y", {**CONSTANTS, "first": ints(0)})
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2)})
    found = [each.label for each in trace_term(graph, ranges, "squares", 1)]
    assert found == ["Mul_squares", "Clip_clipped", "Gather_one", "Sigmoid_p"]


def test_a_power_keeps_the_digits_and_its_exponent_has_none(tmp_path: Path) -> None:
    nodes = [
        node("Sigmoid", "x", "p"),
        node("Constant", "", "two", value_float=2.0),
        node("Pow", "p two", "squares"),
        node("Sub", "c squares", "y"),
    ]
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y", CONSTANTS), tmp_path, {"x": floats(1, 2)})
    assert [each.label for each in trace_term(graph, ranges, "squares", 1)] == ["Pow_squares", "Sigmoid_p"]


def _trace(folder: Path, nodes: list[Any], x: Any) -> list[str]:
    constants = {**CONSTANTS, "axes": ints(-1), "half": scalar(0.5), "eye": np.eye(2, dtype=np.float32)}
    model = make_model([*nodes, node("Log", "p", "y")], {"x": [2, 2]}, "y", constants, 18)
    graph, ranges = scan(model, folder, {"x": np.asarray(x, np.float32)})
    return [each.label for each in trace_term(graph, ranges, "p", 1)]


def test_a_cosine_of_unit_vectors_back_to_the_vectors(tmp_path: Path) -> None:
    nodes = [
        node("ReduceL2", "x axes", "n"),
        node("Div", "x n", "u"),
        node("Mul", "u u", "squares"),
        node("ReduceSum", "squares axes", "p"),
    ]
    x = [[3, 4], [1, 0]]
    assert _trace(tmp_path, nodes, x) == ["ReduceSum_p", "Mul_squares", "Div_u", "ReduceL2_n"]
    nodes[2:] = [node("Transpose", "u", "t", perm=[1, 0]), node("MatMul", "u t", "p")]
    assert sorted(_trace(tmp_path, nodes, x)) == ["Div_u", "MatMul_p", "ReduceL2_n", "Transpose_t"]


@pytest.mark.parametrize(("share", "is_followed"), [(1 / 16, True), (1 / 16 - 2.0**-20, False), (0, False)])
def test_terms_of_a_sum_that_are_not_much_smaller(share: float, is_followed: bool, tmp_path: Path) -> None:
    nodes = [node("Abs", "x", "a"), node("Sub", "x half", "b"), node("Add", "a b", "p")]
    found = _trace(tmp_path, nodes, [[0.5 + share, 0.5]] * 2)
    assert ("Sub_b" in found) == is_followed
    assert "Abs_a" in found


def test_a_layer_and_what_is_taken_from_1_end_it(tmp_path: Path) -> None:
    x = [[0.5, 1], [1, 0.1]]
    assert _trace(tmp_path, [node("Sigmoid", "x", "q"), node("MatMul", "q eye", "p")], x) == ["MatMul_p"]
    assert _trace(tmp_path, [node("Sigmoid", "x", "q"), node("Sub", "c q", "p")], x) == ["Sub_p"]
    assert _trace(tmp_path, [node("Sigmoid", "x", "q"), node("Sub", "q half", "p")], x) == [
        "Sub_p",
        "Sigmoid_q",
    ]


BELOW, ABOVE = 1 - STEP / 2, 1 + STEP
FUNCTIONS = [
    ("Log", [0.5, BELOW], True),
    ("Log", [0.5, BELOW - 2.0**-24], False),
    ("Log", [0.5, 1 - 2.0**-24, 1], True),
    ("Log", [2, ABOVE], True),
    ("Log", [2, ABOVE + 2.0**-23], False),
    ("Log", [0.5, 1 + STEP / 4], True),
    ("Log", [0.5, 1 + 0.75 * STEP], False),
    ("Log", [0.5, 0], False),
    ("Log", [1, 1], False),
    ("Log", [-1, math.nan], False),
    ("Log", [math.inf, 2], False),
    ("Log", BELOW, True),
    ("Log", [], False),
    ("Acos", [0.5, BELOW], True),
    ("Acos", [0.5, BELOW - 2.0**-22], False),
    ("Acos", [1, BELOW], True),
    ("Acos", [1, 1], False),
    ("Acos", [-1, -BELOW], False),
    ("Acos", [2, BELOW], True),
    ("Acosh", [2, ABOVE], True),
    ("Acosh", [2, ABOVE + 2.0**-21], False),
    ("Acosh", [0.5, ABOVE, 1], True),
    ("Acosh", [math.inf], False),
]


@pytest.mark.parametrize(("op", "values", "is_zero"), FUNCTIONS)
def test_functions_that_are_zero_at_1(op: str, values: Any, is_zero: bool, tmp_path: Path) -> None:
    x = np.asarray(values, np.float32)
    found = _find(tmp_path, op, "x", values)
    assert found == (Cancellation("x", 1, op) if is_zero else None)
    if found is not None:
        with np.errstate(all="ignore"):
            lost = {"Log": np.log, "Acos": np.arccos, "Acosh": np.arccosh}[op](x[x.astype(np.float16) == 1])
        assert 0 < np.abs(lost).max() <= found.limit * (1 + 2.0**-20)
        assert found.text == f"{op} of what FP16 rounds to 1"


def test_a_function_of_a_constant_is_none(tmp_path: Path) -> None:
    nodes = [node("Log", "near", "d"), node("Div", "x d", "y")]
    model = make_model(nodes, {"x": None}, "y", {"near": floats(BELOW)})
    graph, ranges = scan(model, tmp_path, {"x": floats(1)})
    assert find_cancellation(graph, ranges, graph.nodes[0]) is None


@pytest.mark.parametrize("op", ["Log", "Acos", "Acosh"])
def test_a_function_whose_smallest_was_not_taken_is_none(op: str, tmp_path: Path) -> None:
    """Without a warning of numpy's, which would be on stderr."""
    nodes = [node(op, "x", "d"), node("Exp", "d", "y")]
    graph, ranges = scan(make_model(nodes, {"x": None}, "y"), tmp_path, {"x": floats(0.5, 2)})
    untaken = tuple(replace(seen, min_nonzero_abs=-math.inf) for seen in ranges.ranges)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_cancellation(graph, replace(ranges, ranges=untaken), graph.nodes[0]) is None
