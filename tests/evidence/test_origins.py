"""What a tensor is made of, as far as its rounding shows in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.origins import find_origins

LIMIT = 128.0
PART = np.linspace(0.11, 2.97, 64).astype(np.float32)
CONSTANTS = {
    "two": scalar(2),
    "half": scalar(0.5),
    "last": ints(0),
    "far": ints(32),
    "flag": np.asarray([True]),
    "low": scalar(0.2),
    "rois": floats(),
    "scales": floats(3),
}


@pytest.mark.parametrize("factor", [10, 1000])
@pytest.mark.parametrize(
    ("op", "inputs", "compute"),
    [
        ("Relu", "a", lambda a: a),
        ("Tanh", "a", np.tanh),
        ("Sigmoid", "a", lambda a: 1 / (1 + np.exp(-a))),
        ("Softplus", "a", lambda a: np.log1p(np.exp(a))),
        ("LeakyRelu", "a", lambda a: a),
        ("Sin", "a", np.sin),
        ("Sub", "half a", lambda a: 0.5 - a),
        ("Max", "a half", lambda a: np.maximum(a, 0.5)),
        ("Clip", "a low", lambda a: np.maximum(a, 0.2)),
        ("Where", "flag a two", lambda a: a),
        ("Mul", "a two", lambda a: 2 * a),
        ("Div", "a two", lambda a: a / 2),
        ("Div", "two a", lambda a: 2 / a),
        ("Pow", "a two", lambda a: a**2),
        ("Sqrt", "a", np.sqrt),
        ("Reciprocal", "a", lambda a: 1 / a),
        ("Exp", "a", np.exp),
        ("Log", "a", np.log),
        ("CumSum", "a last", np.cumsum),
        ("LogSoftmax", "a", lambda a: a - np.log(np.exp(a).sum())),
        ("Gather", "a far", lambda a: a[32]),
        ("Resize", "a rois scales", lambda a: np.repeat(a, 3)),
    ],
)
def test_what_is_behind_an_operator(
    op: str,
    inputs: str,
    compute: Callable[[np.ndarray], np.ndarray],
    factor: float,
    tmp_path: Path,
) -> None:
    """A tensor that is rounded to FP16 counts where that moves a value of 1000 by 1/32 and more, and of 10 not."""
    _check_what_is_behind(op, inputs, compute, factor, tmp_path, PART)


def _check_what_is_behind(
    op: str,
    inputs: str,
    compute: Callable[[np.ndarray], np.ndarray],
    factor: float,
    tmp_path: Path,
    part: np.ndarray,
) -> None:
    wide = part.astype(np.float64)
    scale = factor / np.abs(compute(wide)).max()
    error = np.abs(compute(part.astype(np.float16).astype(np.float64)) - compute(wide)).max() * scale
    assert (error > 1 / 32) == (factor == 1000)
    nodes = [node("Identity", "x", "a"), node(op, inputs, "b"), node("Mul", "b scale", "y")]
    graph, ranges = scan(
        make_model(nodes, {"x": [64]}, "y", CONSTANTS | {"scale": scalar(scale)}), tmp_path, {"x": part}
    )
    assert ("Identity_a" in _found(graph, ranges)) == (factor == 1000)


def _found(graph: Any, ranges: Any) -> list[str]:
    return [found.label for found in find_origins(graph, ranges, "y", LIMIT)]


@pytest.mark.parametrize("factor", [10, 1000])
@pytest.mark.parametrize(
    ("op", "compute", "least", "most"),
    [
        ("Sinh", np.sinh, 0.11, 2.97),
        ("Sinh", np.sinh, 0.011, 0.103),
        ("Cosh", np.cosh, 0.11, 2.97),
        ("Tan", np.tan, 0.11, 1.43),
        ("Asinh", np.arcsinh, 0.11, 2.97),
        ("Acosh", np.arccosh, 1.11, 2.97),
        ("Asin", np.arcsin, 0.11, 0.93),
        ("Acos", np.arccos, 0.11, 0.93),
        ("Atanh", np.arctanh, 0.11, 0.83),
    ],
)
def test_what_is_behind_a_function_of_angles(
    op: str,
    compute: Callable[[np.ndarray], np.ndarray],
    least: float,
    most: float,
    factor: float,
    tmp_path: Path,
) -> None:
    """As behind other operators."""
    part = np.linspace(least, most, 64).astype(np.float32)
    _check_what_is_behind(op, "a", compute, factor, tmp_path, part)


@pytest.mark.parametrize(
    ("op", "at", "slope"),
    [
        ("Exp", 2.51, math.exp(2.51)),
        ("Log", 2.51, 1 / 2.51),
        ("Sinh", 2.51, math.cosh(2.51)),
        ("Cosh", 2.51, math.sinh(2.51)),
        ("Tan", 1.251, 1 + math.tan(1.251) ** 2),
        ("Acosh", 1.251, 1 / math.sqrt(1.251**2 - 1)),
        ("Asinh", 2.51, 1),
    ],
)
@pytest.mark.parametrize(("share", "is_found"), [(0.99, True), (1.01, False)])
def test_an_error_grows_by_the_slope(
    op: str, at: float, slope: float, share: float, is_found: bool, tmp_path: Path
) -> None:
    model = make_model([node("Identity", "x", "r"), node(op, "r", "y")], {"x": [2]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats(at, at)})
    found = [one.label for one in find_origins(graph, ranges, "y", share * slope * at)]
    assert ("Identity_r" in found) == is_found


@pytest.mark.parametrize(("op", "end"), [("Log", 0), ("Acosh", 1)])
def test_no_way_leads_on_where_a_slope_has_no_end(op: str, end: float, tmp_path: Path) -> None:
    nodes = [node("Identity", "x", "r"), node(op, "r", "y")]
    graph, ranges = scan(make_model(nodes, {"x": [2]}, "y"), tmp_path, {"x": floats(end, end)})
    assert _found(graph, ranges) == [f"{op}_y"]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("Gemm", "a weights", "b"), node("Mul", "b big", "y")], ["Mul_y", "Gemm_b"]),
        ([node("Softmax", "a", "b"), node("Mul", "b big", "y")], ["Mul_y", "Softmax_b"]),
        ([node("Gemm", "place weights", "b"), node("Mul", "b big", "y")], ["Mul_y", "Gemm_b", "Mul_place"]),
        ([node("Gelu", "a", "b", domain="com.microsoft"), node("Mul", "b big", "y")], ["Mul_y", "Gelu_b"]),
    ],
)
def test_the_way_ends_at_the_layer_that_writes_data(
    nodes: list[onnx.NodeProto], expected: list[str], tmp_path: Path
) -> None:
    """A product of places is no layer."""
    start = [node("Sigmoid", "x", "a"), node("Mul", "x big", "place")]
    constants = {"big": scalar(400.3), "weights": np.full((2, 2), 0.6, np.float32)}
    model = make_model([*start, *nodes], {"x": [1, 2]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": floats(0.31, 0.93)[None]})
    assert _found(graph, ranges) == expected


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Mul", "r big", "b"), node("Add", "r b", "y")],
        [node("Neg", "r", "a"), node("Mul", "r big", "b"), node("Add", "a b", "y")],
        [node("Split", "r", "a c", axis=0), node("Mul", "c big", "b"), node("Add", "a b", "y")],
    ],
)
def test_the_larger_of_two_ways_counts(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    """150.7 counts either way, the 0.31 in it only where it comes 1000-fold."""
    start = [node("Relu", "x", "q"), node("Add", "q offset", "r")]
    constants = {"big": scalar(1000.3), "offset": floats(150.4, 150.4)}
    model = make_model([*start, *nodes], {"x": [2]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": floats(0.31, 0.3)})
    assert _found(graph, ranges) == [n.name for n in reversed([*start, *nodes])]


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "share"),
    [
        ("ReduceSum", "r all", {}, 1),
        ("CumSum", "r last", {}, 1),
        ("ReduceMean", "r", {}, 4),
        ("GlobalAveragePool", "r", {}, 4),
        ("Mean", "r turned", {}, 2),
    ],
)
def test_a_sum_that_cancels_passes_an_error_on(
    op: str, inputs: str, attributes: dict[str, Any], share: int, tmp_path: Path
) -> None:
    """The sum is 0.1 at most, of terms of 300.3: an error of one is one of the sum, and a share of the mean."""
    nodes = [node("Identity", "x", "r"), node("Neg", "r", "turned"), node(op, inputs, "y", **attributes)]
    constants = {"all": ints(2, 3), "last": ints(3)}
    terms = floats(300.3, -300.3, 0.1, -0.05).reshape(1, 1, 2, 2)
    graph, ranges = scan(make_model(nodes, {"x": [1, 1, 2, 2]}, "y", constants), tmp_path, {"x": terms})

    def found(limit: float) -> bool:
        return "Identity_r" in [one.label for one in find_origins(graph, ranges, "y", limit)]

    assert (found(300 / share), found(301 / share)) == (True, False)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node("Sub", "r q", "d")], ["Sub_d", "Relu_r", "Abs_q"]),
        ([node("Neg", "q", "n"), node("Add", "r n", "d")], ["Add_d", "Neg_n", "Relu_r", "Abs_q"]),
        ([node("Sub", "r q", "a"), node("ReduceMax", "a", "d")], ["Sub_a", "Relu_r", "Abs_q"]),
        ([node("Sub", "r q", "a"), node("Mul", "a a", "d")], []),
        ([node("Min", "r tiny", "d")], []),
        ([node("Sub", "r q", "a"), node("Tanh", "a", "b"), node("Mul", "b tiny", "d")], []),
    ],
)
def test_the_way_goes_on_through_a_small_difference_of_large_terms(
    nodes: list[onnx.NodeProto], expected: list[str], tmp_path: Path
) -> None:
    """The difference is 0.2 at most, of terms of 300: what only moves or scales it is not rounded by as much, nor is a minimum."""
    start = [node("Relu", "x", "r"), node("Abs", "z", "q")]
    model = make_model(
        [*start, *nodes, node("Add", "d one", "y")],
        {"x": [2], "z": [2]},
        "y",
        {"one": scalar(1), "tiny": scalar(0.1)},
    )
    graph, ranges = scan(model, tmp_path, {"x": floats(300.3, 300.2), "z": floats(300.1, 300.3)})
    assert sorted(_found(graph, ranges)) == sorted(["Add_y", *expected])


def test_what_an_infinity_hides_counts(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "r"), node("Mul", "r big", "y")]
    graph, ranges = scan(
        make_model(nodes, {"x": [2]}, "y", {"big": scalar(1000.3)}), tmp_path, {"x": floats(0.31, np.inf)}
    )
    assert _found(graph, ranges) == ["Mul_y", "Relu_r"]


@pytest.mark.parametrize(("largest", "is_found"), [(100.3, False), (200.3, True)])
def test_a_log_sum_exp_errs_by_as_much_as_its_terms(largest: float, is_found: bool, tmp_path: Path) -> None:
    """Also where a mask of -1e30 is among them, which is a constant."""
    nodes = [node("Identity", "x", "a"), node("Add", "a mask", "b"), node("ReduceLogSumExp", "b", "y")]
    model = make_model(nodes, {"x": [2]}, "y", {"mask": floats(0, -1e30)})
    graph, ranges = scan(model, tmp_path, {"x": floats(largest, largest / 2)})
    assert ("Identity_a" in _found(graph, ranges)) == is_found


@pytest.mark.parametrize(("op", "is_found"), [("Log", True), ("Sqrt", False)])
def test_the_logarithm_of_a_softmax_errs_by_as_much_as_its_logits(
    op: str, is_found: bool, tmp_path: Path
) -> None:
    nodes = [
        node("Mul", "x half", "small"),
        node("Add", "small x", "a"),
        node("Softmax", "a", "s"),
        node(op, "s", "l"),
        node("Mul", "l far", "y"),
    ]
    model = make_model(nodes, {"x": [2]}, "y", {"half": scalar(0.01), "far": scalar(1000.3)})
    graph, ranges = scan(model, tmp_path, {"x": floats(9.3, 0.1)})
    behind = ["Softmax_s", f"{op}_l", "Mul_y"]
    assert sorted(_found(graph, ranges)) == sorted(["Add_a", *behind] if is_found else behind)


def test_what_fp16_holds_and_constants_are_left(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "ids", "p", to=TensorProto.FLOAT),
        node("Constant", "", "k", value_float=6.2831855),
        node("Mul", "p k", "y"),
    ]
    model = make_model(nodes, {"ids": (TensorProto.INT64, [2])}, "y")
    graph, ranges = scan(model, tmp_path, {"ids": ints(1, 2000)})
    assert _found(graph, ranges) == ["Mul_y"]


def test_the_scales_of_a_resize_are_no_part_of_it(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "s big", "scales"),
        node("Relu", "x", "r"),
        node("Resize", "r rois scales", "y"),
    ]
    model = make_model(nodes, {"x": [2], "s": [1]}, "y", {"big": scalar(200.3), "rois": floats()})
    graph, ranges = scan(model, tmp_path, {"x": floats(150.7, 0.31), "s": floats(0.9)})
    assert _found(graph, ranges) == ["Resize_y", "Relu_r"]
