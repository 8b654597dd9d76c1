"""Softmax and LogSoftmax, written out or not, of logits so large, all of them, that FP16 rounds their differences away."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.records import Finding, PlanPolicy
from overflow_fixer.rules.lost_logit import find_lost_logits

RNG = np.random.default_rng(0)
SPREAD = RNG.normal(size=(8, 64)).astype(np.float32)
NODES = [node("Mul", "x half", "a"), node("Softmax", "a", "y")]


def _pins(folder: Path, *batches: Any, nodes: list[onnx.NodeProto] = NODES, opset: int = 17) -> list[str]:
    dims = [None] * np.ndim(batches[0])
    model = make_model(nodes, {"x": dims}, "y", {"half": scalar(0.5)}, opset)
    graph, ranges = scan(model, folder, *({"x": 2 * np.asarray(logits, np.float32)} for logits in batches))
    return pinned_by(find_lost_logits, graph, ranges)


def _softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("offset", "is_found"), [(0, False), (100, False), (600, True), (-4500, True), (30000, True)]
)
def test_where_rounding_leaves_less_than_30_db(offset: float, is_found: bool, tmp_path: Path) -> None:
    logits = SPREAD.astype(np.float64) + offset
    right, found = _softmax(logits), _softmax(logits.astype(np.float16).astype(np.float64))
    snr_db = 10 * np.log10(np.square(right).sum() / np.square(right - found).sum())
    assert bool(snr_db < 30) == is_found
    assert _pins(tmp_path, logits) == (["Mul_a", "Softmax_y"] if is_found else [])


PAIR = np.array([[0, 0.001]])


BOUNDARIES: list[tuple[list[Any], bool]] = [
    ([PAIR + 256], True),
    ([PAIR + 255.9], False),
    ([PAIR - 256.1], True),
    ([PAIR - 255.9], False),
    ([[[2000, 0]]], False),
    ([PAIR + 3000, [[2000, 0]]], True),
    ([np.array([[3000.1, 3000.3], [0, 1]])], False),
    ([np.array([[3000.1, 3000.3], [-3000, -3000.4]])], False),
    ([PAIR + 70000], False),
    ([PAIR + 3000, np.zeros((0, 2))], True),
    ([[[3000, math.nan]]], False),
    ([[[3000, math.inf]]], False),
    ([[[3000.1, -math.inf, 3000.2]]], True),
    ([[[3000.1]]], False),
]


@pytest.mark.parametrize(
    ("batches", "is_found"),
    [
        *BOUNDARIES,
        ([[[2000, 1996.5]]], False),
        ([floats(3000.1, 3000.3)], True),
        ([np.zeros((2, 0))], False),
    ],
)
def test_boundary(batches: list[Any], is_found: bool, tmp_path: Path) -> None:
    assert _pins(tmp_path, *batches) == (["Mul_a", "Softmax_y"] if is_found else [])


def test_a_scalar_has_no_other(tmp_path: Path) -> None:
    model = make_model([node("Softmax", "x", "y", axis=0)], {"x": [1]}, "y", {})
    graph, ranges = scan(model, tmp_path, {"x": floats(3000.1)})
    assert ask(find_lost_logits, graph, ranges) == []


def test_logits_that_fp16_holds(tmp_path: Path) -> None:
    nodes = [node("Floor", "x", "a"), node("Softmax", "a", "y")]
    assert _pins(tmp_path, [[1000, 1001]], nodes=nodes) == []


def test_rows_below_opset_13(tmp_path: Path) -> None:
    nodes = [node("Mul", "x half", "a"), node("Softmax", "a", "y", axis=0)]
    assert _pins(tmp_path, [[3000.1, 3000.3], [3000.2, 3000]], nodes=nodes, opset=11) == [
        "Mul_a",
        "Softmax_y",
    ]


def test_back_to_the_layer_that_writes_them(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x eye", "m"),
        node("Add", "m far", "s"),
        node("Div", "s half", "a"),
        node("Softmax", "a", "y"),
    ]
    constants = {"half": scalar(0.5), "far": scalar(3000.3), "eye": np.eye(2, dtype=np.float32)}
    model = make_model(nodes, {"x": [1, 2]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": floats([0.1, 0.2])})
    assert pinned_by(find_lost_logits, graph, ranges) == ["Add_s", "Div_a", "Softmax_y"]


def test_the_evidence(tmp_path: Path) -> None:
    model = make_model(NODES, {"x": [2, 2]}, "y", {"half": scalar(0.5)})
    near = np.array([[1500, 1500.25], [2500, 2501]], np.float32)
    graph, ranges = scan(model, tmp_path, {"x": 2 * near + floats(0, 9)}, {"x": 2 * near})
    found = ask(find_lost_logits, graph, ranges)
    assert [(one.node, one.tensor, one.batch, one.limit) for one in found] == [
        (label, "a", "batch_1", 512) for label in ("Mul_a", "Softmax_y")
    ]
    assert found[0].value == 1500.25
    assert "no more than 0.731 to any in that batch" in found[0].reason


LOGARITHM = [node("Mul", "x half", "a"), node("LogSoftmax", "a", "y")]


@pytest.mark.parametrize(
    ("offset", "is_found"),
    [(0, False), (100, False), (300, False), (1500, True), (-4500, True), (30000, True)],
)
def test_where_rounding_leaves_less_than_30_db_of_logarithms(
    offset: float, is_found: bool, tmp_path: Path
) -> None:
    logits = SPREAD.astype(np.float64) + offset
    right, found = (np.log(_softmax(one.astype(np.float64))) for one in (logits, logits.astype(np.float16)))
    snr_db = 10 * np.log10(np.square(right).sum() / np.square(right - found).sum())
    assert bool(snr_db < 30) == is_found
    pins = _pins(tmp_path, logits, nodes=LOGARITHM)
    assert pins == (["Mul_a", "LogSoftmax_y"] if is_found else [])


@pytest.mark.parametrize(
    ("batches", "is_found"),
    [
        ([[[1024.1, 1024.1 - 18]]], True),
        ([[[1024.1, 1024.1 - 18.5]]], False),
        ([[[1023.9, 1023.9 - 18]]], False),
        ([[[-1024.1, -1024.1 - 18]]], True),
        ([[[1024.1, 1024.1 - 18]], [[0.1, 18]]], False),
        ([[[1600.1, 1600.3]], [[2000.3, 0]]], True),
        ([[[2000, 0]]], False),
        ([[[1600.1, 1600.3]], np.zeros((0, 2))], True),
        ([[[1600.1, math.nan]]], False),
        ([[[1600.1, math.inf]]], False),
        ([[[1600.1, -math.inf, 1600.2]]], False),
        ([PAIR + 70000], False),
        ([[[1600.1]]], False),
        ([np.zeros((2, 0))], False),
    ],
)
def test_boundary_of_logarithms(batches: list[Any], is_found: bool, tmp_path: Path) -> None:
    """FP16's steps of 1 over the root of 12 are 3 % of one half of 18.26."""
    pins = _pins(tmp_path, *batches, nodes=LOGARITHM)
    assert pins == (["Mul_a", "LogSoftmax_y"] if is_found else [])


def test_the_evidence_of_logarithms(tmp_path: Path) -> None:
    near = np.array([[1500, 1500.25], [2500, 2501]], np.float32)
    graph, ranges = scan(
        make_model(LOGARITHM, {"x": [2, 2]}, "y", {"half": scalar(0.5)}),
        tmp_path,
        {"x": 2 * near + floats(0, 9)},
        {"x": 2 * near},
    )
    found = ask(find_lost_logits, graph, ranges)
    assert [(one.node, one.tensor, one.value, one.batch, one.limit) for one in found] == [
        (label, "a", 1500.25, "batch_1", 128) for label in ("Mul_a", "LogSoftmax_y")
    ]
    assert "LogSoftmax LogSoftmax_y gives no less than -1.31 to any in that batch" in found[0].reason


SHIFTED = [
    node("Mul", "x half", "a"),
    node("ReduceMax", "a", "m", axes=[-1]),
    node("Sub", "a m", "d"),
    node("Exp", "d", "e"),
    node("ReduceSum", "e last", "t"),
]
WRITTEN_OUT = [*SHIFTED, node("Div", "e t", "y")]
LOG_SUM = [*SHIFTED, node("Log", "t", "l"), node("Add", "m l", "s"), node("Sub", "a s", "y")]


def _ask(folder: Path, nodes: list[onnx.NodeProto], *batches: Any) -> list[Finding]:
    output = nodes[-1].output[0]
    constants = {"half": scalar(0.5), "last": ints(-1)}
    model = make_model(nodes, {"x": [None, None]}, output, constants)
    return ask(
        find_lost_logits, *scan(model, folder, *({"x": 2 * np.asarray(x, np.float32)} for x in batches))
    )


@pytest.mark.parametrize(("batches", "is_found"), [*BOUNDARIES, ([np.zeros((0, 2))], False)])
def test_one_that_is_written_out_counts_as_the_operator_does(
    batches: list[Any], is_found: bool, tmp_path: Path
) -> None:
    found = [one.node for one in _ask(tmp_path, WRITTEN_OUT, *batches)]
    assert found == (["Mul_a", "Sub_d"] if is_found else [])


def test_the_rest_of_what_is_written_out_stays_with_it(tmp_path: Path) -> None:
    constants = {"half": scalar(0.5), "last": ints(-1)}
    model = make_model(WRITTEN_OUT, {"x": [None, 64]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": 2 * SPREAD - 1800})
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert {pin.node for pin in plan.pins} == {one.name for one in WRITTEN_OUT}


def test_the_evidence_of_what_is_written_out(tmp_path: Path) -> None:
    found = _ask(tmp_path, WRITTEN_OUT, [[1500, 1500.25], [2500, 2501]])
    assert [(one.node, one.tensor, one.value, one.limit) for one in found] == [
        (label, "a", 1500.25, 512) for label in ("Mul_a", "Sub_d")
    ]
    assert found[0].reason == (
        "what Sub_d subtracts from each row of a is 1500.25 or more in magnitude, where FP16's steps are 1, and Div Div_y "
        "gives no more than 0.731 to any in that batch"
    )


@pytest.mark.parametrize(("offset", "is_found"), [(500, False), (2000, True), (-4500, True)])
def test_a_log_sum_exp_counts_as_the_operator_of_logarithms(
    offset: float, is_found: bool, tmp_path: Path
) -> None:
    assert bool(_ask(tmp_path, LOG_SUM, SPREAD + offset)) == is_found


def test_probabilities_of_logarithms_count_as_a_softmax(tmp_path: Path) -> None:
    """Logarithms bear steps of 1/4, as the test above has it, and their exponentials do not."""
    for nodes in (LOG_SUM, LOGARITHM):
        found = _ask(tmp_path, [*nodes, node("Exp", "y", "p")], SPREAD + 500)
        assert [one.node for one in found] == ["Mul_a", "Sub_d" if nodes is LOG_SUM else "LogSoftmax_y"]
        assert "Exp Exp_p gives no more than" in found[0].reason


SLOPES = np.array([0.25, 1 / 16, 1 / 64, 1 / 256], np.float32)[:, None, None]


@pytest.mark.parametrize(("first", "is_found"), [(0, False), (300, False), (3000, True)])
def test_a_bias_that_grows_with_the_place_is_large_in_some_heads_alone(
    first: int, is_found: bool, tmp_path: Path
) -> None:
    nodes = [
        node("Cast", "places", "p", to=TensorProto.FLOAT),
        node("Mul", "p slopes", "b"),
        node("Add", "x b", "a"),
        node("Softmax", "a", "y"),
    ]
    inputs = {"x": [1, 4, 20, 20], "places": (TensorProto.INT64, [20])}
    graph, ranges = scan(
        make_model(nodes, inputs, "y", {"slopes": SLOPES}),
        tmp_path,
        {"x": RNG.normal(size=(1, 4, 20, 20)).astype(np.float32), "places": first + np.arange(20)},
    )
    found = ask(find_lost_logits, graph, ranges)
    assert [one.node for one in found] == (["Cast_p", "Mul_b", "Add_a", "Softmax_y"] if is_found else [])
    loss = ranges.inner_of["Softmax_y"]["softmax loss"].seen.max_abs
    assert all(one.value == pytest.approx(loss) and one.limit < loss for one in found)
    assert all(
        f"Softmax_y loses {loss:.3g} of what it gives where a is rounded" in one.reason for one in found
    )
