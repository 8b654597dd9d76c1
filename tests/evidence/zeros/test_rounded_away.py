"""What FP16 makes zero of differences and what comes of them, against a plain FP16 model of each form."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, floats, ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.evidence.zeros.rounded_away import find_rounded_away
from overflow_fixer.records import Array, PrecisionPlan
from overflow_fixer.verification.comparison import open_reference

SUB = node("Sub", "p m", "d")
FORMS: dict[str, list[onnx.NodeProto]] = {
    "Sub": [node("Sub", "p m", "y")],
    "Add": [node("Neg", "m", "n"), node("Add", "p n", "y")],
    "Sum": [node("Neg", "m", "n"), node("Sum", "p n", "y")],
    "Sum of three": [
        node("Sub", "m q", "d"),
        node("Neg", "d", "n"),
        node("Neg", "q", "o"),
        node("Sum", "p n o", "y"),
    ],
    "Abs": [SUB, node("Abs", "d", "y")],
    "Max": [SUB, node("Neg", "d", "n"), node("Max", "d n", "y")],
    "square": [SUB, node("Mul", "d d", "y")],
    "Pow": [SUB, node("Pow", "d two", "y")],
    "Sqrt": [SUB, node("Abs", "d", "a"), node("Sqrt", "a", "y")],
    "factor": [SUB, node("Mul", "d two", "y")],
    "factor first": [SUB, node("Mul", "p d", "y")],
    "factor behind": [SUB, node("Mul", "d p", "y")],
    "Div": [SUB, node("Div", "d p", "y")],
    "moved": [SUB, node("Transpose", "d", "t"), node("Reshape", "t shape", "y")],
    "split": [SUB, node("Split", "d", "a b", axis=1), node("Abs", "b", "y")],
    "gradient": [
        SUB,
        node("Split", "d", "a b", axis=1),
        node("Mul", "a a", "aa"),
        node("Mul", "b b", "bb"),
        node("Add", "aa bb", "y"),
    ],
    "ReduceL1": [SUB, node("ReduceL1", "d", "y", axes=[1])],
    "ReduceL2": [SUB, node("ReduceL2", "d", "y", axes=[1])],
    "ReduceSumSquare": [SUB, node("ReduceSumSquare", "d", "y", axes=[1])],
    "ReduceMax": [SUB, node("Abs", "d", "a"), node("ReduceMax", "a", "y", axes=[1])],
    "ReduceMean": [SUB, node("Abs", "d", "a"), node("ReduceMean", "a", "y", axes=[1])],
    "dot": [
        SUB,
        node("Unsqueeze", "d one", "row"),
        node("Transpose", "row", "column", perm=[0, 2, 1]),
        node("MatMul", "row column", "y"),
    ],
    "Einsum": [SUB, node("Einsum", "d d", "y", equation="ij,ij->i")],
    "MatMul": [node("MatMul", "p differences", "y")],
    "Gemm": [node("Gemm", "p differences_t", "y", transB=1)],
    "Conv": [node("Unsqueeze", "p one", "u"), node("Conv", "u kernel", "y")],
    "Conv and a bias of zeros": [node("Unsqueeze", "p one", "u"), node("Conv", "u kernel none", "y")],
    "a vector of differences": [node("MatMul", "p vector", "y")],
    "differences in front": [node("Transpose", "p", "t"), node("MatMul", "differences_t t", "y")],
    "from a constant": [node("Sub", "p hundred", "y")],
    "and zero": [node("Neg", "m", "n"), node("Sum", "p n nothing", "y")],
    "Elu": [SUB, node("Elu", "d", "y")],
}
CONSTANTS: dict[str, Array] = {
    "two": scalar(2),
    "one": ints(1),
    "shape": ints(-1),
    "differences": floats(1, -1, 0, 0).reshape(4, 1),
    "differences_t": floats(1, -1, 0, 0).reshape(1, 4),
    "kernel": floats(-0.5, 0.5).reshape(1, 1, 2),
    "none": floats(0),
    "nothing": scalar(0),
    "vector": floats(1, -1, 0, 0),
    "hundred": scalar(100),
}


def _draw(rng: np.random.Generator) -> dict[str, Array]:
    """Rows of four between 40 and 150, most of them near what is subtracted from them, and near one another."""
    p = rng.uniform(40, 150, (20000, 1)) + rng.normal(size=(20000, 4)) * 10 ** rng.uniform(-4, 0, (20000, 1))
    m = p + rng.normal(size=p.shape) * 10 ** rng.uniform(-4, 1, (20000, 1))
    q = rng.uniform(10, 20, p.shape)
    return {name: value.astype(np.float32) for name, value in (("p", p), ("m", m), ("q", q))}


@pytest.mark.parametrize("name", FORMS)
def test_no_larger_value_is_zero_in_fp16_and_most_of_what_is_told_can_be(name: str, tmp_path: Path) -> None:
    feeds = _draw(np.random.default_rng(5))
    read = {one for each in FORMS[name] for one in each.input}
    feeds = {key: value for key, value in feeds.items() if key in read}
    constants = {key: value for key, value in CONSTANTS.items() if key in read}
    model = make_model(FORMS[name], {key: [None, 4] for key in feeds}, "y", constants, 13)
    graph, ranges = scan(model, tmp_path, feeds)
    (batch,) = InMemoryCalibration((feeds,))
    right = np.abs(open_reference(graph).run(batch)["y"]).astype(np.float64)
    plain = emit(graph, PrecisionPlan(graph.sha256, 10000.0, ()), tmp_path / "plain.onnx")
    zeroed = right[(open_runner(plain).run(batch)["y"] == 0) & (right > 0)]
    told = find_rounded_away(graph, ranges)["y"]
    assert told >= zeroed.max()
    assert told < 300 * zeroed.max()


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Add", "p m", "y")],
        [node("Sub", "p two", "y")],
        [node("Sub", "two p", "y")],
        [node("Sum", "p m two", "y")],
        [node("Sub", "two two", "y"), node("Neg", "p", "z")],
        [SUB, node("Exp", "d", "y")],
        [SUB, node("Abs", "d", "a"), node("Add", "a two", "y")],
        [SUB, node("Mul", "p p", "a"), node("Mul", "d d", "b"), node("Add", "a b", "y")],
        [SUB, node("Pow", "d minus", "y")],
        [SUB, node("Pow", "p d", "y")],
        [SUB, node("Gemm", "d differences bias", "y")],
        [node("MatMul", "p weights", "y")],
        [node("MatMul", "many large", "y")],
        [node("Mul", "p m", "y")],
        [node("Softmax", "p", "y")],
    ],
    ids=lambda nodes: " ".join(one.op_type for one in nodes),
)
def test_what_is_no_difference_has_none(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    constants = {
        **CONSTANTS,
        "minus": scalar(-2),
        "bias": floats(1),
        "weights": floats(1, -1, 0.5, 0).reshape(4, 1),
        "large": np.tile(floats(1, -1), 1 << 16).reshape(-1, 1),
    }
    read = {one for each in nodes for one in each.input}
    feeds = {key: value[:8] for key, value in _draw(np.random.default_rng(6)).items() if key in read}
    if "many" in read:
        feeds = {"many": np.ones((2, 1 << 17), np.float32)}
    constants = {key: value for key, value in constants.items() if key in read}
    model = make_model(
        nodes, {key: [None, value.shape[1]] for key, value in feeds.items()}, "y", constants, 13
    )
    graph, ranges = scan(model, tmp_path, feeds)
    assert "y" not in find_rounded_away(graph, ranges)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_tells_nothing_that_is_not_a_number(value: float, tmp_path: Path) -> None:
    nodes = [SUB, node("Mul", "d d", "s"), node("ReduceSum", "s", "y", keepdims=0)]
    feeds = {"p": floats(1, value, 2), "m": floats(1, 2, 3)}
    graph, ranges = scan(make_model(nodes, {"p": [3], "m": [3]}, "y", {}, 13), tmp_path, feeds)
    assert not any(math.isnan(found) for found in find_rounded_away(graph, ranges).values())


def test_of_what_is_zero_as_a_whole_all_may_be(tmp_path: Path) -> None:
    x = np.array([60000, 60000], np.float32)
    feeds = {"p": x, "m": np.nextafter(x, np.float32(0))}
    nodes = [SUB, node("Pow", "d two", "s"), node("Abs", "s", "y")]
    graph, ranges = scan(make_model(nodes, {"p": [2], "m": [2]}, "y", {"two": scalar(2)}), tmp_path, feeds)
    assert find_rounded_away(graph, ranges)["y"] == math.inf


def test_squares_over_the_range_of_float64_are_infinite(tmp_path: Path) -> None:
    nodes = [
        node("Sub", "p m", "d"),
        node("ReduceSumSquare", "d", "s", axes=[0]),
        node("Cast", "s", "y", to=1),
    ]
    inputs = {name: (TensorProto.DOUBLE, [2]) for name in ("p", "m")}
    feeds = {"p": np.array([1e200, 1e180]), "m": np.array([1e200, 1e190])}
    graph, ranges = scan(make_model(nodes, inputs, "y", {}, 13), tmp_path, feeds)
    assert find_rounded_away(graph, ranges)["s"] == math.inf


def test_an_empty_tensor(tmp_path: Path) -> None:
    nodes = [SUB, node("Abs", "d", "y")]
    model = make_model(nodes, {"p": [0], "m": [0]}, "y")
    graph, ranges = scan(model, tmp_path, {"p": floats(), "m": floats()})
    assert find_rounded_away(graph, ranges) == {}
