"""What a small value is made of, and back to where FP16 makes zero of it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory_calibration import floats, ints, make_model, node, scalar, scan

from overflow_fixer.evidence.zeros.small_sources import Part, carry_back, is_lost, trace_small
from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable

NEXT = float(np.nextafter(np.float32(FP16_UNDERFLOW), np.float32(1)))
WEIGHTS = np.array([[0.5, 3], [0, 1], [2, 0]], np.float32)
CONSTANTS = {
    "axes": ints(-1),
    "first": np.asarray(0, np.int64),
    "starts": ints(0),
    "two": scalar(2),
    "three": scalar(3),
    "both": floats(1, 2, 3),
    "both_in_a_row": np.array([[1, 2, 3]], np.float32),
    "zero": scalar(0),
    "zeros": np.zeros((3, 1), np.float32),
    "tiny": scalar(1e-12),
    "columns": WEIGHTS[:, :1],
    "rows": WEIGHTS[:, :1].T.copy(),
    "vector": WEIGHTS[:, 0].copy(),
    "bank": WEIGHTS,
    "bias": floats(0, 0),
    "signed": floats(1, -1, 1),
    "large": np.ones((1 << 18, 2), np.float32),
    "mask": np.array([[True, False, True]]),
    "pads": ints(0, 1, 0, 1),
    "places": np.array([[0, 2, 1]]),
    "count": ints(3),
}


def _scan(nodes: list[onnx.NodeProto], folder: Path, *values: Any) -> tuple[Graph, RangeTable]:
    """The values come in as x, and are copied to a, of which the smallest is not taken where both signs or zeros come."""
    copy = node("LeakyRelu", "x", "a", alpha=1.0)
    constants = {name: CONSTANTS[name] for one in nodes for name in one.input if name in CONSTANTS}
    model = make_model([copy, *nodes], {"x": None}, "y", constants, 18)
    return scan(model, folder, *({"x": np.asarray(value, np.float32)} for value in values))


def _carry(given_node: onnx.NodeProto, folder: Path, *values: Any, magnitude: float = 1e-6) -> list[Part]:
    graph, ranges = _scan([given_node], folder, *values)
    return list(carry_back(graph, ranges, graph.nodes[-1], magnitude))


MEANS: dict[str, tuple[onnx.NodeProto, Callable[[Any], Any]]] = {
    "ReduceSum": (node("ReduceSum", "a axes", "y"), np.mean),
    "ReduceMean": (node("ReduceMean", "a axes", "y"), np.mean),
    "ReduceL1": (node("ReduceL1", "a axes", "y"), np.mean),
    "ReduceL2": (node("ReduceL2", "a axes", "y"), lambda a: np.sqrt(np.mean(a * a))),
    "ReduceSumSquare": (node("ReduceSumSquare", "a axes", "y"), lambda a: np.sqrt(np.mean(a * a))),
    "MatMul": (node("MatMul", "a columns", "y"), lambda a: np.average(a, weights=WEIGHTS[:, 0])),
    "MatMul, from the left": (
        node("MatMul", "vector a", "y"),
        lambda a: np.average(a, weights=WEIGHTS[:, 0]),
    ),
    "MatMul, vectors": (node("MatMul", "a vector", "y"), lambda a: np.average(a, weights=WEIGHTS[:, 0])),
}


@pytest.mark.parametrize("name", MEANS)
@settings(max_examples=15, deadline=None)
@given(values=st.lists(st.floats(2.0**-30, 1.0, width=32), min_size=3, max_size=3))
def test_what_is_carried_back_is_the_mean_of_what_went_in(name: str, values: list[float]) -> None:
    given_node, mean = MEANS[name]
    a = np.asarray(values, np.float64)
    with tempfile.TemporaryDirectory() as folder:
        graph, ranges = _scan([given_node], Path(folder), a)
    ((tensor, magnitude),) = carry_back(graph, ranges, graph.nodes[-1], ranges.by_tensor["y"].max)
    assert (tensor, magnitude) == ("a", pytest.approx(float(mean(a)), rel=1e-5))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(["transA", "transB", "alpha", ""]), st.floats(0.25, 4.0, width=32))
def test_a_gemm_of_equal_elements_is_of_these(attribute: str, value: float) -> None:
    attributes = {attribute: 0.5 if attribute == "alpha" else 1} if attribute else {}
    read = "a rows" if attribute == "transB" else "a columns"
    a = np.full((3, 2) if attribute == "transA" else (2, 3), value)
    with tempfile.TemporaryDirectory() as folder:
        graph, ranges = _scan([node("Gemm", read, "y", **attributes)], Path(folder), a)
    ((tensor, magnitude),) = carry_back(graph, ranges, graph.nodes[-1], ranges.by_tensor["y"].max)
    assert (tensor, magnitude) == ("a", pytest.approx(value, rel=1e-6))


@pytest.mark.parametrize(
    ("given_node", "magnitude"),
    [
        (node("Abs", "a", "y"), 1e-6),
        (node("Sqrt", "a", "y"), 1e-12),
        (node("Mul", "a a", "y"), 1e-3),
        (node("Pow", "a two", "y"), 1e-3),
        (node("Mul", "a three", "y"), 1e-6 / 3),
        (node("Mul", "three a", "y"), 1e-6 / 3),
        (node("Div", "a three", "y"), 3e-6),
        (node("Transpose", "a", "y"), 1e-6),
        (node("Slice", "a starts axes", "y"), 1e-6),
        (node("CumSum", "a first", "y"), None),
        (node("MatMul", "a columns", "y"), None),
        (node("ReduceSum", "a axes", "y"), None),
        (node("Relu", "a", "y"), None),
        (node("Concat", "a a", "y", axis=0), None),
        (node("Pow", "a three", "y"), None),
        (node("Mul", "a both", "y"), None),
        (node("Mul", "a zero", "y"), None),
        (node("Div", "three a", "y"), None),
        (node("Sub", "a three", "y"), None),
        (node("Exp", "a", "y"), None),
        (node("Where", "mask a three", "y"), 1e-6),
        (node("Where", "mask three a", "y"), 1e-6),
        (node("Where", "mask tiny a", "y"), None),
        (node("Min", "three a", "y"), 1e-6),
        (node("Pad", "a pads three", "y"), 1e-6),
        (node("Trilu", "a", "y"), 1e-6),
        (node("ScatterElements", "both_in_a_row places a", "y", axis=1), 1e-6),
        (node("ScatterElements", "a places both_in_a_row", "y", axis=1, reduction="max"), 1e-6),
        (node("ScatterElements", "a places both_in_a_row", "y", axis=1, reduction="add"), None),
        (node("ScatterElements", "a places both_in_a_row", "y", axis=1, reduction="mul"), None),
    ],
    ids=lambda given: f"{given.op_type} {' '.join(given.input)}" if isinstance(given, onnx.NodeProto) else "",
)
def test_of_values_of_both_signs(given_node: onnx.NodeProto, magnitude: float | None, tmp_path: Path) -> None:
    parts = _carry(given_node, tmp_path, [[1, -2, 3]])
    assert parts == ([] if magnitude is None else [("a", pytest.approx(magnitude))])


@pytest.mark.parametrize(
    ("values", "is_carried"),
    [
        ([3e-6, -1e-6, 1e-6], True),
        ([3e-6, 2.0**-18, -1e-6], False),
        ([3e-6, -(2.0**-18), 1e-6], False),
        ([0, 0, 0], True),
        ([3e-6, math.nan, -1e-6], True),
        ([3e-6, math.inf, -1e-6], False),
        ([], False),
    ],
)
def test_of_small_terms_of_both_signs_all_count(
    values: list[float], is_carried: bool, tmp_path: Path
) -> None:
    """A sum of FP16's numbers is a multiple of 2^-24, so what is less is lost with its terms."""
    parts = _carry(node("ReduceSum", "a axes", "y"), tmp_path, [values], magnitude=1e-9)
    assert parts == ([("a", pytest.approx(1e-9 / 3))] if is_carried else [])


@pytest.mark.parametrize(
    "given_node",
    [
        node("ReduceMax", "a axes", "y"),
        node("ReduceMin", "a axes", "y"),
        node("CumSum", "a first", "y"),
        node("Clip", "a tiny", "y"),
        node("Relu", "a", "y"),
        node("Max", "a tiny", "y"),
        node("Add", "tiny a", "y"),
        node("Sum", "a tiny", "y"),
        node("Concat", "a", "y", axis=0),
        node("Concat", "rows a", "y", axis=0),
        node("Max", "tiny a", "y"),
        node("Sum", "tiny a", "y"),
        node("ScatterElements", "both_in_a_row places a", "y", axis=1, reduction="add"),
        node("ScatterElements", "a places both_in_a_row", "y", axis=1, reduction="add"),
    ],
    ids=lambda given_node: f"{given_node.op_type} {' '.join(given_node.input)}",
)
def test_of_what_is_never_negative(given_node: onnx.NodeProto, tmp_path: Path) -> None:
    assert _carry(given_node, tmp_path, [[1, 2, 0]]) == [("a", 1e-6)]


@pytest.mark.parametrize("op", ["Where", "Min"])
def test_of_a_choice_what_has_elements_as_small(op: str, tmp_path: Path) -> None:
    """Each that FP16 makes zero of; of `a`, with a zero in it, the smallest was not taken, and `d` has none as small."""
    nodes = [
        node("Exp", "a", "e"),
        node("Mul", "e three", "f"),
        node("Add", "e three", "d"),
        node(op, "mask e f" if op == "Where" else "a e f d", "y"),
    ]
    graph, ranges = _scan(nodes, tmp_path, [[-20, 0, 4]])
    least = math.exp(-20)
    parts = list(carry_back(graph, ranges, graph.nodes[-1], least))
    assert parts == [("e", pytest.approx(least)), ("f", pytest.approx(3 * least))]


def test_of_the_largest_few_what_they_were_chosen_of(tmp_path: Path) -> None:
    nodes = [node("TopK", "a count", "y places_of_them")]
    graph, ranges = _scan(nodes, tmp_path, [[1, -2, 3]])
    assert list(carry_back(graph, ranges, graph.nodes[-1], 1e-6)) == [("a", 1e-6)]


def test_of_a_bound_nothing_is_told(tmp_path: Path) -> None:
    nodes = [node("ReduceMin", "a", "least", keepdims=0), node("Clip", "a least", "y")]
    graph, ranges = _scan(nodes, tmp_path, [1, 2])
    assert list(carry_back(graph, ranges, graph.nodes[-1], 1e-6)) == [("a", 1e-6)]


@pytest.mark.parametrize(
    ("given_node", "magnitude"),
    [
        (node("ReduceSum", "a axes", "y"), 1e-6 / 3),
        (node("ReduceMean", "a axes", "y"), 1e-6),
        (node("CumSum", "a first", "y"), 1e-6),
        (node("Concat", "a", "y", axis=0), 1e-6),
        (node("ReduceMax", "a axes", "y"), None),
        (node("Clip", "a tiny", "y"), None),
        (node("Relu", "a", "y"), None),
    ],
    ids=lambda given: given.op_type if isinstance(given, onnx.NodeProto) else "",
)
def test_of_what_is_never_positive_sums_alone(
    given_node: onnx.NodeProto, magnitude: float | None, tmp_path: Path
) -> None:
    """As p log p of an entropy. A maximum may be of larger ones below it."""
    parts = _carry(given_node, tmp_path, [[-1, -2, 0]])
    assert parts == ([] if magnitude is None else [("a", pytest.approx(magnitude))])


def test_of_a_product_of_data_factors_whose_smallest_was_taken(tmp_path: Path) -> None:
    """The smallest of an exponential follows from its signs; that of `a`, with a zero in it, was not taken."""
    nodes = [node("Exp", "a", "e"), node("Mul", "e a", "y")]
    graph, ranges = _scan(nodes, tmp_path, [-20, -1, 0, 4])
    parts = list(carry_back(graph, ranges, graph.nodes[-1], 1e-6))
    assert parts == [("e", pytest.approx(1e-6 / 20))]


def test_of_a_product_with_infinities_no_other_factor(tmp_path: Path) -> None:
    nodes = [node("Exp", "a", "e"), node("Tanh", "a", "t"), node("Exp", "t", "f"), node("Mul", "e f", "y")]
    graph, ranges = _scan(nodes, tmp_path, [-20, math.inf])
    parts = list(carry_back(graph, ranges, graph.nodes[-1], 1e-6))
    assert parts == [("e", pytest.approx(1e-6 / math.e))]


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"])
def test_of_pools(op: str, tmp_path: Path) -> None:
    attributes = {} if op.startswith("Global") else {"kernel_shape": [2]}
    assert _carry(node(op, "a", "y", **attributes), tmp_path, [[[1, 2, 0]]]) == [("a", 1e-6)]


@pytest.mark.parametrize(
    ("given_node", "magnitude"),
    [
        (node("MatMul", "a bank", "y"), 1e-6 / 2.5),
        (node("Gemm", "a bank", "y"), 1e-6 / 2.5),
        (node("Gemm", "a bank bias", "y"), None),
        (node("MatMul", "a signed", "y"), None),
        (node("MatMul", "a a", "y"), None),
    ],
    ids=lambda given: f"{given.op_type} {' '.join(given.input)}" if isinstance(given, onnx.NodeProto) else "",
)
def test_of_products(given_node: onnx.NodeProto, magnitude: float | None, tmp_path: Path) -> None:
    """By the least column: 2.5 of 2.5 and 4."""
    parts = _carry(given_node, tmp_path, np.ones((3, 3)))
    assert parts == ([] if magnitude is None else [("a", pytest.approx(magnitude))])


def test_a_large_constant_is_not_read(tmp_path: Path) -> None:
    assert _carry(node("MatMul", "a large", "y"), tmp_path, np.ones((1, 1 << 18))) == []


def test_a_constant_of_zeros_makes_nothing(tmp_path: Path) -> None:
    assert _carry(node("MatMul", "a zeros", "y"), tmp_path, [1, 1, 1]) == []


@pytest.mark.parametrize(
    ("magnitude", "is_found"),
    [
        (FP16_UNDERFLOW, True),
        (NEXT, False),
        (1e-300, True),
        (0.0, False),
        (math.nan, False),
        (math.inf, False),
    ],
)
def test_boundary(magnitude: float, is_found: bool, tmp_path: Path) -> None:
    nodes = [
        node("Constant", "", "k", value_float=1e-9),
        node("Cast", "a", "wide", to=onnx.TensorProto.DOUBLE),
        node("Add", "a k", "y"),
    ]
    graph, ranges = _scan(nodes, tmp_path, [1, -1e-9])
    assert is_lost(graph, ranges, Part("a", magnitude)) == is_found
    assert ranges.get("wide") is not None
    for not_computed in ("x", "two", "k", "wide", "nowhere"):
        assert not is_lost(graph, ranges, Part(not_computed, magnitude))


@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        ([2.0, 1.0], False),
        ([1, FP16_UNDERFLOW], True),
        ([1, NEXT], False),
        ([1e-9, math.nan], True),
        ([1e-9, math.inf], True),
        ([0, 0], False),
        ([math.nan], False),
        ([], False),
        (1e-9, True),
        ([1, 0], True),
    ],
)
def test_what_was_measured_says_otherwise(values: Any, is_found: bool, tmp_path: Path) -> None:
    """Where there are zeros, its smallest is not taken: it may be as small."""
    graph, ranges = _scan([node("Exp", "a", "y")], tmp_path, values)
    assert is_lost(graph, ranges, Part("a", 1e-9)) == is_found


def test_the_walk_ends_where_fp16_holds_what_is_read(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "a three", "b"),
        node("Mul", "b b", "q"),
        node("ReduceMax", "q axes", "m"),
        node("Add", "m m", "y"),
    ]
    graph, ranges = _scan(nodes, tmp_path, [1e-6, -1e-6, 0])
    found = [one.label for one in trace_small(graph, ranges, [Part("m", 9e-12), Part("m", 9e-12)])]
    assert found == ["ReduceMax_m", "Mul_q"]
    found = [one.label for one in trace_small(graph, ranges, [Part("m", 1e-18)])]
    assert found == ["ReduceMax_m", "Mul_q", "Mul_b", "LeakyRelu_a"]
