"""Infinities of constants go as far as FP16 makes of them what FP32 does, and no further."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scalar, scan
from onnx.numpy_helper import from_array

from overflow_fixer.evidence.constants.infinite_constants import (
    find_infinities_handed_on,
    find_masked_rows,
    find_nan_of_constants,
)
from overflow_fixer.formats import FP16_MIN_NORMAL
from overflow_fixer.rules.non_finite import find_non_finite

LOW = {"low": scalar(-math.inf)}


def _scan(folder: Path, nodes: list[onnx.NodeProto], constants: dict[str, Any], x: Any) -> tuple[Any, Any]:
    return scan(make_model(nodes, {"x": [2, 3]}, "y", constants), folder, {"x": x})


def test_moves_and_choices_hand_them_on(tmp_path: Path) -> None:
    nodes = [
        node("Greater", "x zero", "c"),
        node("Where", "c x low", "a"),
        node("Transpose", "a", "b", perm=[1, 0]),
        node("ReduceMax", "b", "m", axes=[0]),
        node("Relu", "m", "y"),
    ]
    constants = {**LOW, "zero": scalar(0)}
    graph, ranges = _scan(tmp_path, nodes, constants, floats([1, -2, 3], [-1, -2, -3]))
    assert find_infinities_handed_on(graph, ranges) == {"low", "a", "b", "m"}
    assert pinned_by(find_non_finite, graph, ranges) == []
    assert {f.action for f in ask(find_non_finite, graph, ranges)} == {"none"}


SAME = {
    "an exponential, as in the decay of a state": [node("Exp", "b", "y")],
    "less a maximum": [
        node("ReduceMax", "b", "m", axes=[1]),
        node("Sub", "b m", "s"),
        node("Exp", "s", "y"),
    ],
    "added and scaled": [node("Add", "b x", "s"), node("Mul", "s half", "t"), node("Sigmoid", "t", "y")],
    "divided": [node("Div", "b half", "s"), node("Tanh", "s", "y")],
    "scaled from the left, then a Softmax": [node("Mul", "half b", "s"), node("Softmax", "s", "y")],
    "scaled by the least normal number": [node("Mul", "b least", "s"), node("Sigmoid", "s", "y")],
    "one of a sum": [node("Sum", "b half half", "s"), node("Exp", "s", "y")],
    "beside zero": [node("Relu", "b", "y")],
    **{
        f"at the end {op}": [node(op, "b", "y")]
        for op in "Softmax Exp Sigmoid HardSigmoid Tanh Erf Softplus Elu Celu".split()
    },
}
OTHERS = {
    "a norm": ([node("LogSoftmax", "b", "s"), node("Exp", "s", "y")], ["LogSoftmax_s", "Exp_y"]),
    "a scale that FP16 rounds to zero": (
        [node("Mul", "b tiny", "s"), node("Exp", "s", "y")],
        ["Mul_s", "Exp_y"],
    ),
    "a scale that is infinite": (
        [node("Mul", "b low", "s"), node("Sigmoid", "s", "y")],
        ["Mul_s", "Sigmoid_y"],
    ),
    "a constant that is divided": ([node("Div", "half b", "s"), node("Exp", "s", "y")], ["Div_s"]),
    "exponentials that are added up inside": (
        [node("ReduceLogSumExp", "b", "y", axes=[1])],
        ["ReduceLogSumExp_y"],
    ),
    "a scale of the data": ([node("Mul", "b x", "s"), node("Exp", "s", "y")], ["Mul_s", "Exp_y"]),
    "an end that is infinite": (
        [node("Neg", "b", "n"), node("Exp", "n", "e"), node("Relu", "e", "y")],
        ["Exp_e", "Relu_y"],
    ),
    "NaN of some, infinities of others": (
        [node("Where", "others b low", "o"), node("Sub", "b o", "s"), node("Exp", "s", "y")],
        ["Sub_s", "Exp_y"],
    ),
    "NaN of two": ([node("Sub", "b b", "s"), node("Exp", "s", "y")], ["Sub_s", "Exp_y"]),
}
MASKED = [node("Max", "x low", "a"), node("Where", "c low a", "b")]
MASKS = {**LOW, "c": np.asarray([False, True, False]), "half": scalar(0.5), "tiny": scalar(1e-9)} | {
    "least": scalar(FP16_MIN_NORMAL),
    "others": np.asarray([True, False, False]),
}


@pytest.mark.parametrize("form", SAME)
def test_of_which_fp16_makes_the_same_nothing_is_pinned(form: str, tmp_path: Path) -> None:
    x = floats([1, 2, 3], [4, 5, 6])
    graph, ranges = _scan(tmp_path, [*MASKED, *SAME[form]], MASKS, x)
    assert pinned_by(find_non_finite, graph, ranges) == []
    assert {f.action for f in ask(find_non_finite, graph, ranges)} == {"none"}
    right, found = (
        run(tmp_path / "model.onnx", {"x": x}) for run in (run_fp32, lambda *a: run_fp16(*a, set()))
    )
    np.testing.assert_allclose(found["y"], right["y"], rtol=2e-3)


@pytest.mark.parametrize("form", OTHERS)
def test_what_else_computes_with_them_is_pinned(form: str, tmp_path: Path) -> None:
    nodes, pinned = OTHERS[form]
    graph, ranges = _scan(tmp_path, [*MASKED, *nodes], MASKS, floats([1, 2, 3], [4, 5, 6]))
    assert pinned_by(find_non_finite, graph, ranges) == pinned


@pytest.mark.parametrize("other", [math.inf, math.nan, 1e6])
def test_beside_infinities_of_the_data_nothing_is_concluded(other: float, tmp_path: Path) -> None:
    """Nor beside a finite number that FP16 makes infinite as well."""
    nodes = [node("Where", "c low x", "a"), node("Abs", "a", "y")]
    constants = {**LOW, "c": np.asarray([False, True, False])}
    graph, ranges = _scan(tmp_path, nodes, constants, floats([1, 2, other], [4, 5, 6]))
    assert find_infinities_handed_on(graph, ranges) == {"low"}
    assert "Where_a" in pinned_by(find_non_finite, graph, ranges)


def test_without_infinite_constants_there_are_none(tmp_path: Path) -> None:
    nodes = [node("Log", "x", "a"), node("Abs", "a", "y")]
    graph, ranges = _scan(tmp_path, nodes, {}, floats([0, 1, 2], [3, 4, 5]))
    assert find_infinities_handed_on(graph, ranges) == frozenset()
    assert pinned_by(find_non_finite, graph, ranges) == ["Log_a", "Abs_y"]


def test_a_finite_constant_that_fp16_cannot_hold_is_none(tmp_path: Path) -> None:
    nodes = [node("Where", "c large x", "a"), node("Mul", "a large", "y")]
    constants = {"c": MASKS["c"], "large": scalar(-1e30)}
    graph, ranges = _scan(tmp_path, nodes, constants, floats([1, 2, 3], [4, 5, 6]))
    assert ranges.by_tensor["y"].inf_count
    assert find_infinities_handed_on(graph, ranges) == frozenset()


def test_what_overflows_beside_them_is_none(tmp_path: Path) -> None:
    nodes = [node("Where", "c low x", "a"), node("Add", "x x", "b"), node("Sum", "a b", "y")]
    constants = {**LOW, "c": MASKS["c"]}
    graph, ranges = _scan(tmp_path, nodes, constants, floats([1, 2, 3e38], [4, 5, 6]))
    assert find_infinities_handed_on(graph, ranges) == {"low"}


SOFTMAX = [node("Greater", "x zero", "c"), node("Where", "c x low", "b"), node("Softmax", "b", "p", axis=-1)]
ROWS = floats([1, -2, 3], [-1, -2, -3])
"""The second is masked as a whole."""
HANDED_ON = {
    "asked for and replaced": ([node("IsNaN", "p", "n"), node("Where", "n zero p", "y")], {"p"}),
    "moved": ([node("Transpose", "p", "y", perm=[1, 0])], {"p", "y"}),
    "chosen": ([node("Where", "c p zero", "q"), node("Where", "c zero p", "y")], {"p", "y"}),
    "the weights of another": ([node("Softmax", "p", "y", axis=-1)], {"p", "y"}),
}
NOT_EXCUSED: dict[str, tuple[list[onnx.NodeProto], list[str]]] = {
    "multiplied": ([node("MatMul", "p values", "y")], ["MatMul_y"]),
    "beside NaN of the data": (
        [node("Log", "x", "l"), node("Where", "c p l", "y")],
        ["Log_l", "Where_y"],
    ),
    "the logarithm": ([node("Log", "p", "l"), node("Identity", "l", "y")], ["Log_l", "Identity_y"]),
}


def _scan_masked(folder: Path, nodes: list[onnx.NodeProto], x: Any = ROWS) -> tuple[Any, Any]:
    constants = {**LOW, "zero": scalar(0), "values": np.ones((3, 2), np.float32)}
    used = {name for one in (*SOFTMAX, *nodes) for name in one.input}
    constants = {name: value for name, value in constants.items() if name in used}
    return _scan(folder, [*SOFTMAX, *nodes], constants, x)


@pytest.mark.parametrize("name", HANDED_ON)
def test_rows_that_are_masked_as_a_whole_are_nan_in_fp16_as_well(name: str, tmp_path: Path) -> None:
    nodes, masked = HANDED_ON[name]
    graph, ranges = _scan_masked(tmp_path, nodes)
    assert ranges.by_tensor["p"].nan_count == 3
    assert find_masked_rows(graph, ranges) == masked
    assert pinned_by(find_non_finite, graph, ranges) == []
    told = [one for one in ask(find_non_finite, graph, ranges) if one.tensor == "p"]
    assert told
    assert all(one.reason.endswith("masks as a whole are NaN in FP16 as well") for one in told)
    feeds = {"x": ROWS}
    right, found = (run(tmp_path / "model.onnx", feeds)["y"] for run in (run_fp32, run_fp16))
    np.testing.assert_allclose(found, right, atol=1e-3)


@pytest.mark.parametrize("name", NOT_EXCUSED)
def test_what_computes_with_them_is_pinned(name: str, tmp_path: Path) -> None:
    nodes, pinned = NOT_EXCUSED[name]
    assert pinned_by(find_non_finite, *_scan_masked(tmp_path, nodes)) == pinned


@pytest.mark.parametrize("value", [math.nan, math.inf, 70000])
def test_beside_what_fp16_does_not_hold_no_row_is_known(value: float, tmp_path: Path) -> None:
    x = ROWS.copy()
    x[0, 0] = value
    graph, ranges = _scan_masked(tmp_path, [node("Identity", "p", "y")], x)
    assert find_masked_rows(graph, ranges) == set()
    assert "Softmax_p" in pinned_by(find_non_finite, graph, ranges)


def test_without_a_row_that_is_masked_as_a_whole_there_is_none(tmp_path: Path) -> None:
    graph, ranges = _scan_masked(tmp_path, [node("Identity", "p", "y")], np.abs(ROWS) - floats(0, 0, 3))
    assert find_masked_rows(graph, ranges) == set()


def test_rows_that_the_data_mask_are_not_known(tmp_path: Path) -> None:
    nodes = [node("Softmax", "x", "p", axis=-1), node("Identity", "p", "y")]
    graph, ranges = _scan(tmp_path, nodes, {}, floats([1, 2, 3], [-math.inf] * 3))
    assert find_masked_rows(graph, ranges) == set()
    assert pinned_by(find_non_finite, graph, ranges) == ["Softmax_p", "Identity_y"]


NO_ELEMENTS = {"none": scalar(math.nan), "zero": scalar(0)}
IS_SOME = node("Greater", "x zero", "c")
OF_CONSTANTS: dict[str, tuple[list[onnx.NodeProto], set[str]]] = {
    "one that is never chosen": ([node("Where", "yes x none", "y")], {"none"}),
    "one that is chosen": ([IS_SOME, node("Where", "c x none", "y")], {"none", "y"}),
    "repeated": ([node("Expand", "none shape", "e"), node("Where", "yes x e", "y")], {"none", "e"}),
    "filled in": (
        [
            node("ConstantOfShape", "shape", "e", value=from_array(floats(math.nan))),
            node("Where", "yes x e", "y"),
        ],
        {"e"},
    ),
}


def _scan_with_nan(folder: Path, nodes: list[onnx.NodeProto]) -> tuple[Any, Any]:
    constants = {**NO_ELEMENTS, "yes": np.array(True), "shape": np.array([2, 3])}
    used = {name for one in nodes for name in one.input}
    return _scan(folder, nodes, {name: constants[name] for name in sorted(used & constants.keys())}, ROWS)


@pytest.mark.parametrize("name", OF_CONSTANTS)
def test_nan_of_a_constant_is_one_in_fp16_as_well(name: str, tmp_path: Path) -> None:
    nodes, expected = OF_CONSTANTS[name]
    graph, ranges = _scan_with_nan(tmp_path, nodes)
    assert find_nan_of_constants(graph, ranges) == expected
    assert pinned_by(find_non_finite, graph, ranges) == []
    told = ask(find_non_finite, graph, ranges)
    assert told
    assert all(one.reason.endswith("; a constant is NaN in FP16 as well") for one in told)


def test_what_computes_with_the_nan_of_a_constant_is_pinned(tmp_path: Path) -> None:
    nodes = [IS_SOME, node("Where", "c x none", "w"), node("Abs", "w", "y")]
    assert pinned_by(find_non_finite, *_scan_with_nan(tmp_path, nodes)) == ["Abs_y"]


def test_beside_what_fp16_does_not_hold_the_nan_of_a_constant_is_pinned(tmp_path: Path) -> None:
    nodes = [node("Where", "yes x low", "y")]
    constants = {"yes": np.array([True, True, False]), "low": floats(math.nan, 70000, 1)}
    graph, ranges = _scan(tmp_path, nodes, constants, ROWS)
    assert find_nan_of_constants(graph, ranges) == set()
    assert pinned_by(find_non_finite, graph, ranges) == ["Where_y"]
