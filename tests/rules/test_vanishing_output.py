"""Outputs that are never zero, and hold values that FP16 makes zero of."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import (
    InMemoryCalibration,
    ask,
    floats,
    ints,
    make_model,
    node,
    pinned_by,
    scalar,
    scan,
)
from tensor_parts import PART_CONSTANTS, take_part

from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.formats import FP16_MIN_SUBNORMAL
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.records import Finding, PlanPolicy, PrecisionPlan
from overflow_fixer.rules.vanishing_output import find_vanishing_outputs
from overflow_fixer.verification.comparison import open_reference

LEAST = FP16_MIN_SUBNORMAL
BELOW = float(np.nextafter(np.float32(LEAST), np.float32(0)))


def _pins(folder: Path, nodes: list[onnx.NodeProto], values: Any, constants: dict[str, Any]) -> list[str]:
    model = make_model(nodes, {"x": None}, "y", constants)
    graph, ranges = scan(model, folder, {"x": np.asarray(values, np.float32)})
    return pinned_by(find_vanishing_outputs, graph, ranges)


def _left(folder: Path, nodes: list[onnx.NodeProto], values: Any, constants: dict[str, Any]) -> list[Finding]:
    """What is told of outputs and not pinned."""
    model = make_model(nodes, {"x": None}, "y", constants)
    graph, ranges = scan(model, folder, {"x": np.asarray(values, np.float32)})
    return [found for found in ask(find_vanishing_outputs, graph, ranges) if found.action == "none"]


@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        ([1, LEAST], False),
        ([1, BELOW], True),
        ([1, 2.0**-25], True),
        ([-1, -BELOW], True),
        ([1, -BELOW], False),
        ([1, BELOW, 0], False),
        ([BELOW, math.nan], False),
        ([BELOW, math.inf], False),
        (BELOW, True),
        (LEAST, False),
        ([], False),
    ],
)
def test_boundary(values: Any, is_found: bool, tmp_path: Path) -> None:
    pins = _pins(tmp_path, [node("Mul", "x one", "y")], values, {"one": scalar(1)})
    assert pins == (["Mul_y"] if is_found else [])


@pytest.mark.parametrize("last", [node("Abs", "a", "y"), node("Mul", "a a", "y")], ids=["Abs", "Mul"])
def test_small_values_of_both_signs_are_kept_for_what_takes_their_sign(
    last: onnx.NodeProto, tmp_path: Path
) -> None:
    values = floats(-1e-7, 1, 1e-7, 0.5)
    model = make_model([node("Mul", "x c", "a"), last], {"x": None}, "y", {"c": scalar(0.01)})
    graph, ranges = scan(model, tmp_path, {"x": values})
    assert pinned_by(find_vanishing_outputs, graph, ranges) == ["Mul_a", last.name]
    plan = plan_precision(graph, ranges, PlanPolicy())
    (batch,) = InMemoryCalibration(({"x": values},))
    found = open_runner(emit(graph, plan, tmp_path / "fixed.onnx")).run(batch)["y"]
    expected = (values * np.float32(0.01)).astype(np.float64)
    np.testing.assert_allclose(found, np.abs(expected) if last.op_type == "Abs" else expected**2, rtol=1e-5)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([1, -BELOW], "it has values of both signs, so that small ones are about zero by chance"),
        ([1, BELOW, 0, -1], "it has values of both signs, so that small ones are about zero by chance"),
        ([1, BELOW, 0], "zeros are among its values, so that its reader takes zeros"),
        ([-1, -BELOW, 0], "zeros are among its values, so that its reader takes zeros"),
        ([1, LEAST, 0], ""),
        ([1, -LEAST], ""),
        ([1, -BELOW, math.nan], ""),
        ([1, -BELOW, math.inf], ""),
        ([0, 0], ""),
        (0, ""),
        (BELOW, ""),
        ([], ""),
    ],
)
def test_what_is_left_is_told(values: Any, why: str, tmp_path: Path) -> None:
    found = _left(tmp_path, [node("Mul", "x one", "y")], values, {"one": scalar(1)})
    assert [(f.node, f.value, f.reason.partition("; not pinned: ")[2]) for f in found] == (
        [("Mul_y", BELOW, why)] if why else []
    )


def test_the_plan_keeps_what_is_left_with_its_number(tmp_path: Path) -> None:
    model = make_model([node("Mul", "x one", "y")], {"x": [3]}, "y", {"one": scalar(1)})
    graph, ranges = scan(model, tmp_path, {"x": floats(0, 3.5e-8, 1)})
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert plan.pins == ()
    (found,) = plan.considered
    assert (found.node, found.tensor, found.action, found.limit) == ("Mul_y", "y", "none", LEAST)
    assert found.value == pytest.approx(3.5e-8)
    assert found.reason == (
        "the output y has values down to 3.5e-08, which FP16 makes 5.96e-08; not pinned: zeros are among its values, so "
        "that its reader takes zeros"
    )


def test_one_finding_for_what_is_left_of_an_output(tmp_path: Path) -> None:
    """A classifier of many classes, and heads that are joined: what computes the smallest is named."""
    nodes = [
        node("Softmax", "x", "p", axis=0),
        node("Mul", "x x", "squares"),
        node("Concat", "p squares", "all", axis=0),
        node("Identity", "all", "y"),
    ]
    (found,) = _left(tmp_path, nodes, np.linspace(0, 60, 100), {})
    assert (found.node, found.tensor) == ("Softmax_p", "y")
    assert found.value == pytest.approx(math.exp(-60), rel=0.5)
    assert "a share of a whole" in found.reason


def test_zeros_come_out_without_the_pins_and_none_with_them(tmp_path: Path) -> None:
    """A variance of exp(x): a ratio or logarithm of it is what its reader takes."""
    nodes = [
        node("MatMul", "x w", "a"),
        node("Exp", "a", "e"),
        node("Mul", "e scale", "v"),
        node("Transpose", "v", "y"),
    ]
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=(64, 16)).astype(np.float32), "scale": scalar(1e-3)}
    feeds = {"x": (rng.normal(size=(8, 64)) / 2 - 0.02).astype(np.float32)}
    graph, ranges = scan(make_model(nodes, {"x": [8, 64]}, "y", constants), tmp_path, feeds)
    found = ask(find_vanishing_outputs, graph, ranges)
    assert [finding.node for finding in found] == ["Mul_v", "Transpose_y"]
    plan = plan_precision(graph, ranges, PlanPolicy())
    plain = PrecisionPlan(graph.sha256, 10000.0, ())
    (batch,) = InMemoryCalibration((feeds,))
    right = np.exp(feeds["x"].astype(np.float64) @ constants["w"]).T * 1e-3
    errors = []
    for each, name in ((plain, "plain"), (plan, "planned")):
        values = open_runner(emit(graph, each, tmp_path / f"{name}.onnx")).run(batch)["y"]
        errors.append((int((values == 0).sum()), float(np.max(np.abs(values / right - 1)))))
    assert errors[0][0] > 0
    assert errors[0][1] == 1
    assert errors[1][0] == 0
    assert errors[1][1] < 0.02


def test_probabilities_do_not_matter(tmp_path: Path) -> None:
    values = floats(20, -20, 0, 3)
    for name, nodes in {
        "softmax": [node("Softmax", "x", "y", axis=0)],
        "sigmoid": [node("Sigmoid", "x", "a"), node("Unsqueeze", "a axes", "y")],
        "product": [node("Sigmoid", "x", "a"), node("Softmax", "x", "b", axis=0), node("Mul", "a b", "y")],
        "written out": [
            node("Exp", "x", "e"),
            node("ReduceSum", "e axes", "s"),
            node("Div", "e s", "y"),
        ],
    }.items():
        (tmp_path / name).mkdir()
        assert _pins(tmp_path / name, nodes, values, {"axes": np.asarray([0])}) == [], name


JAX_SOFTMAX = [
    node("Shape", "x", "shape"),
    node("Slice", "shape zero one", "batch"),
    node("Concat", "batch one", "kept", axis=0),
    node("ReduceMax", "x", "m", axes=[1], keepdims=0),
    node("Max", "low m", "f"),
    node("Reshape", "f kept", "g"),
    node("Expand", "g kept", "h"),
    node("Sub", "x h", "d"),
    node("Exp", "d", "e"),
    node("ReduceSum", "e axes", "t", keepdims=0),
    node("Reshape", "t kept", "r"),
    node("Expand", "r kept", "s"),
    node("Div", "e s", "y"),
]


def _share_pins(folder: Path, nodes: list[onnx.NodeProto], opset: int = 13) -> tuple[list[str], np.ndarray]:
    """What is pinned in a model of rows of four, and what it computes of logits with e^-30 among their probabilities."""
    logits = np.asarray([[0, -30, 2, 1], [3, 1, -30, -29], [-28, 0, 0, 0], [1, 2, 3, -30]], np.float32)
    constants = {"axes": ints(1), "zero": ints(0), "one": ints(1), "low": scalar(-np.inf)}
    model = make_model(nodes, {"x": ["n", 4]}, "y", constants, opset)
    graph, ranges = scan(model, folder, {"x": logits})
    (batch,) = InMemoryCalibration(({"x": logits},))
    plan = PrecisionPlan(graph.sha256, 10000.0, ())
    values = open_runner(emit(graph, plan, folder / "plain.onnx")).run(batch)["y"]
    return pinned_by(find_vanishing_outputs, graph, ranges), values


@pytest.mark.parametrize("opset", [13, 15])
@pytest.mark.parametrize(
    "nodes",
    [
        JAX_SOFTMAX,
        [*JAX_SOFTMAX[:-1], node("Reciprocal", "s", "i"), node("Mul", "e i", "y")],
    ],
    ids=["Div", "Reciprocal"],
)
def test_a_softmax_whose_sum_is_put_back_is_a_share(
    nodes: list[onnx.NodeProto], opset: int, tmp_path: Path
) -> None:
    pins, values = _share_pins(tmp_path, nodes, opset)
    assert pins == []
    np.testing.assert_allclose(values.sum(1), 1, atol=2e-3)
    assert values.min() == 0


def test_a_quotient_by_the_sums_of_other_rows_is_no_share(tmp_path: Path) -> None:
    nodes = [*JAX_SOFTMAX[:-3], node("Div", "e t", "y")]
    pins, values = _share_pins(tmp_path, nodes)
    assert pins == ["Exp_e", "Div_y"]
    assert np.abs(values.sum(1) - 1).max() > 0.5


def test_one_part_of_what_is_joined(tmp_path: Path) -> None:
    nodes = [
        node("Exp", "x", "rate"),
        node("Softmax", "x", "p", axis=0),
        node("Concat", "x rate p", "all", axis=0),
        node("Identity", "all", "y"),
    ]
    assert _pins(tmp_path, nodes, [-20, 1], {}) == ["Exp_rate", "Concat_all", "Identity_y"]


def test_what_writes_values_as_small_before_is_part_of_it(tmp_path: Path) -> None:
    """Each is zero in FP16 before the output is; the exponents are not."""
    nodes = [
        node("Neg", "x", "minus"),
        node("Exp", "minus", "rate"),
        node("Mul", "rate two", "double"),
        node("Add", "double rate", "y"),
    ]
    x = floats(20, 1)
    assert np.exp(-x).astype(np.float16)[0] == 0
    assert _pins(tmp_path, nodes, x, {"two": scalar(2)}) == ["Exp_rate", "Mul_double", "Add_y"]


LAST = {
    "Clip": [node("Clip", "m zero one", "y")],
    "Relu": [node("Relu", "m", "y")],
    "LeakyRelu": [node("LeakyRelu", "m", "y")],
    "PRelu": [node("PRelu", "m half", "y")],
    "ThresholdedRelu": [node("ThresholdedRelu", "m", "y", alpha=0.0)],
    "Elu": [node("Elu", "m", "y")],
    "HardSwish": [node("HardSwish", "m", "y")],
    "Softsign": [node("Softsign", "m", "y")],
    "Tanh": [node("Tanh", "m", "y")],
    "Sin": [node("Sin", "m", "y")],
    "Pow": [node("Pow", "m three_halves", "y")],
    "Max": [node("Max", "m zero", "y")],
    "Min": [node("Min", "m one", "y")],
    "Where": [node("Less", "m one", "is_low"), node("Where", "is_low m one", "y")],
    "Pad": [node("Pad", "m pads one", "y")],
    "TopK": [node("TopK", "m k", "y places", axis=1, largest=0)],
    "MaxPool": [node("Unsqueeze", "m axes", "u"), node("MaxPool", "u", "y", kernel_shape=[1], strides=[1])],
    "AveragePool": [node("Unsqueeze", "m axes", "u"), node("AveragePool", "u", "y", kernel_shape=[1])],
    "Resize": [node("Resize", "m - scales", "y", mode="nearest")],
    "Mean": [node("Mean", "m m", "y")],
    "Sum": [node("Sum", "m m m", "y")],
    "MatMul": [node("MatMul", "m identity", "y")],
    "Gemm": [node("Gemm", "m identity", "y")],
    "Einsum": [node("Einsum", "m identity", "y", equation="ij,jk->ik")],
    "CumSum": [node("CumSum", "m last", "y")],
    "ReduceMax": [node("ReduceMax", "m", "y", axes=[1])],
    "ReduceProd": [node("ReduceProd", "m", "y", axes=[0])],
    "ReduceL1": [node("ReduceL1", "m", "y", axes=[0])],
    "ReduceL2": [node("ReduceL2", "m", "y", axes=[0])],
}


@pytest.mark.parametrize("name", LAST)
def test_whatever_operator_comes_last_none_of_its_values_is_zero_then(name: str, tmp_path: Path) -> None:
    constants = {
        "zero": scalar(0),
        "one": scalar(1),
        "half": scalar(0.5),
        "three_halves": scalar(1.5),
        "pads": ints(0, 1, 0, 0),
        "k": ints(3),
        "axes": ints(1),
        "scales": floats(1, 2),
        "identity": np.eye(8, dtype=np.float32),
        "last": np.asarray(1),
    }
    nodes = [node("Exp", "x", "e"), node("Mul", "e e", "m"), *LAST[name]]
    feeds = {"x": np.sort(np.random.default_rng(1).uniform(-10, -8, (2, 8)).astype(np.float32))}
    graph, ranges = scan(make_model(nodes, {"x": [2, 8]}, "y", constants, 14), tmp_path, feeds)
    plan = plan_precision(graph, ranges, PlanPolicy())
    (batch,) = InMemoryCalibration((feeds,))
    right = open_reference(graph).run(batch)["y"].astype(np.float64)
    assert 0 < right.min() < LEAST
    plain = PrecisionPlan(graph.sha256, 10000.0, ())
    lost = open_runner(emit(graph, plain, tmp_path / "plain.onnx")).run(batch)["y"]
    found = open_runner(emit(graph, plan, tmp_path / "planned.onnx")).run(batch)["y"]
    assert np.max(np.abs(lost / right - 1)) > 0.2
    np.testing.assert_allclose(found, right, rtol=0.02)


@pytest.mark.parametrize("last", [node("Abs", "m", "y"), node("ReduceL2", "m", "y", axes=[1])], ids=str)
def test_what_an_output_bears_was_as_small_before_taken_or_not(last: onnx.NodeProto, tmp_path: Path) -> None:
    """Behind a product of matrices, of whose small values of both signs nothing is known."""
    nodes = [node("MatMul", "x w", "p"), node("Mul", "p small", "m"), last]
    w = np.random.default_rng(2).normal(size=(4, 2)).astype(np.float32)
    x = np.random.default_rng(3).normal(size=(9, 4)).astype(np.float32)
    model = make_model(nodes, {"x": [9, 4]}, "y", {"w": w, "small": scalar(1e-8)}, 13)
    graph, ranges = scan(model, tmp_path, {"x": x})
    assert ranges.by_tensor["m"].min_nonzero_abs == -math.inf
    assert pinned_by(find_vanishing_outputs, graph, ranges) == ["Mul_m", last.name]


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = scan(
        make_model([node("Exp", "x", "y")], {"x": [2]}, "y"), tmp_path, {"x": floats(-20, 1)}
    )
    (found,) = ask(find_vanishing_outputs, graph, ranges)
    assert (found.node, found.tensor, found.batch, found.limit) == ("Exp_y", "y", None, LEAST)
    assert found.value == pytest.approx(math.exp(-20), rel=1e-5)
    assert found.reason == "the output y is never zero and has values down to 2.06e-09, which FP16 makes zero"
    graph, ranges = scan(
        make_model([node("Exp", "x", "y")], {"x": [2]}, "y"), tmp_path, {"x": floats(-17, 1)}
    )
    (found,) = ask(find_vanishing_outputs, graph, ranges)
    assert found.reason.endswith("values down to 4.14e-08, which FP16 makes 5.96e-08")


def test_an_empty_batch_beside_another(tmp_path: Path) -> None:
    model = make_model([node("Exp", "x", "y")], {"x": [None]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats()}, {"x": floats(-20, 1)})
    assert pinned_by(find_vanishing_outputs, graph, ranges) == ["Exp_y"]


PARTS = take_part("v", "y")
CHOICE = PART_CONSTANTS | {"one": scalar(1)}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        ([1e-11, 1, 1, 2], False),
        ([1e-11, 1, LEAST, 2], False),
        ([1e-11, 1, 0, 2], False),
        ([1e-11, 1, 0, 0], False),
        ([1, 1, BELOW, 2], True),
        ([1, -1, BELOW, 2], True),
        ([0, -1, -BELOW, -2], True),
        ([1e-11, 1, BELOW, -2], False),
    ],
)
def test_what_a_part_holds_decides(
    part: onnx.NodeProto, values: list[float], is_found: bool, tmp_path: Path
) -> None:
    pins = _pins(tmp_path, [node("Mul", "x one", "v"), part], values, CHOICE)
    assert pins == (["Mul_v", part.name] if is_found else [])


def test_a_part_tells_of_its_own_smallest(tmp_path: Path) -> None:
    (found,) = _left(tmp_path, [node("Mul", "x one", "v"), PARTS["Slice"]], [1e-11, 1, 2e-9, -1], CHOICE)
    assert found.value == pytest.approx(2e-9)
    assert "down to 2e-09" in found.reason


def test_two_parts_of_one_tensor_that_are_joined(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x one", "v"),
        node("Split", "v sizes", "a b", axis=0),
        node("Neg", "b", "c"),
        node("Concat", "a c b", "y", axis=0),
    ]
    assert _pins(tmp_path, nodes, [1, 2, 1e-9, 1], CHOICE) == ["Mul_v", "Split_a", "Neg_c", "Concat_y"]
    assert _pins(tmp_path, nodes, [1e-9, 2, 1, 1], CHOICE) == ["Mul_v", "Split_a", "Concat_y"]
    assert _pins(tmp_path, nodes, [1, 2, 1, 1], CHOICE) == []


def test_what_joins_parts_is_told_of_the_last_whatever_their_names(tmp_path: Path) -> None:
    """In the order of the graph, and not of a set, which differs from process to process."""
    parts = [node("Mul", f"x f{index}", f"p{index}") for index in range(8)]
    joined = node("Concat", " ".join(one.output[0] for one in parts), "y", axis=0)
    factors = {f"f{index}": floats(10.0**-index) for index in range(8)}
    model = make_model([*parts, joined], {"x": None}, "y", factors)
    graph, ranges = scan(model, tmp_path, {"x": floats(1e-9, 2e-9)})
    told = {found.node: found.value for found in ask(find_vanishing_outputs, graph, ranges)}
    assert told["Concat_y"] == told["Mul_p7"] == pytest.approx(1e-16)
    assert told["Mul_p0"] == pytest.approx(1e-9)


def test_a_part_of_what_was_joined(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x one", "v"),
        node("Neg", "v", "c"),
        node("Concat", "v c", "d", axis=0),
        node("Slice", "d from to axis", "y"),
    ]
    assert _pins(tmp_path, nodes, [1e-11, 1, 1, 1], CHOICE) == []
    pins = _pins(tmp_path, nodes, [1, 1, 1, 1e-9], CHOICE)
    assert pins == ["Mul_v", "Neg_c", "Concat_d", "Slice_y"]  # of which of them it is, nobody knows


def test_many_parts_joined_again_and_again(tmp_path: Path) -> None:
    nodes = [node("Mul", "x one", "v0")]
    for i in range(40):
        nodes += [
            node("Split", f"v{i} sizes", f"a{i} b{i}", axis=0),
            node("Concat", f"b{i} a{i}", f"v{i + 1}", axis=0),
        ]
    nodes.append(node("Identity", "v40", "y"))
    assert _pins(tmp_path, nodes, [1e-9, 1, 1, 2], CHOICE)[:2] == ["Mul_v0", "Split_a0"]
