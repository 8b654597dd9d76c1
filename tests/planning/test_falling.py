"""What is divided by, and may fall under FP16's numbers with more data."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import floats, ints, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.zeros.divisors import FEW_STEPS
from overflow_fixer.planning.confidence import judge_confidence
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.records import Confidence, Fall, PlanPolicy
from overflow_fixer.reports import say_confidence

DIVIDED = [node("Exp", "x", "d"), node("Div", "one d", "y")]
UNDER_A_LOGARITHM = [node("Exp", "x", "d"), node("Log", "d", "y")]
CONSTANTS = {"one": scalar(1), "eps": scalar(1e-5), "tiny": scalar(1e-7), "axes": ints(0)}


def _judge(folder: Path, nodes: list[onnx.NodeProto], values: np.ndarray, user: str = "") -> Confidence:
    used = {name for one in nodes for name in one.input}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    graph, ranges = scan(make_model(nodes, {"x": None}, "y", constants), folder, {"x": values}, {"x": values})
    policy = PlanPolicy(include_nodes=(user,)) if user else PlanPolicy()
    return judge_confidence(graph, ranges, plan_precision(graph, ranges, policy))


def _logarithms(least: float, elements: int = 8) -> np.ndarray:
    return np.linspace(math.log(least), 0, elements).astype(np.float32)


@pytest.mark.parametrize("nodes", [DIVIDED, UNDER_A_LOGARITHM])
def test_what_is_spread_over_orders_of_magnitude_may_fall(
    nodes: list[onnx.NodeProto], tmp_path: Path
) -> None:
    """Two batches of eight elements over 20 bits fall by 20 / log2(16) = 5 bits a doubling, and 1 is left."""
    (fall,) = _judge(tmp_path, nodes, _logarithms(2.0**-20)).falling
    assert fall.tensor == "d"
    assert fall.min_nonzero_abs == pytest.approx(2.0**-20, rel=1e-5)
    assert (fall.margin_bits, fall.fall_bits) == (pytest.approx(1, abs=1e-4), pytest.approx(5, abs=1e-4))


@pytest.mark.parametrize(
    ("least", "elements", "falls"),
    [
        (2.0**-13.5, 8, False),
        (2.0**-14.5, 8, True),
        (2.0**-14.5, 1024, False),
        (FEW_STEPS * 0.9, 8, False),
        (1.0, 8, False),
    ],
)
def test_four_times_the_data_are_asked_about(
    least: float, elements: int, falls: bool, tmp_path: Path
) -> None:
    """Over 14 bits 16 elements fall by 7 in two doublings, and 7 are left; under 2^-21 the rule pins it."""
    assert bool(_judge(tmp_path, DIVIDED, _logarithms(least, elements)).falling) == falls


@pytest.mark.parametrize(
    "nodes",
    [
        [node("Exp", "x", "e"), node("Add", "e eps", "d"), node("Div", "one d", "y")],
        [node("Exp", "x", "e"), node("Max", "e eps", "m"), node("Abs", "m", "d"), node("Div", "one d", "y")],
        [
            node("Exp", "x", "e"),
            node("Max", "e eps", "m"),
            node("Min", "m one", "d"),
            node("Div", "one d", "y"),
        ],
        [node("Exp", "x", "d"), node("Mul", "one d", "y")],
        [node("Sigmoid", "x", "e"), node("Add", "e one", "d"), node("Log", "d", "y")],
    ],
)
def test_not_where_a_guard_holds_it_or_nothing_divides(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    assert _judge(tmp_path, nodes, _logarithms(2.0**-18)).falling == ()


@pytest.mark.parametrize(("added", "falls"), [("e eps", False), ("e e", True)])
def test_a_guard_behind_a_move_and_a_root(added: str, falls: bool, tmp_path: Path) -> None:
    nodes = [
        node("Exp", "x", "e"),
        node("Add", added, "m"),
        node("Unsqueeze", "m axes", "u"),
        node("Sqrt", "u", "d"),
        node("Div", "one d", "y"),
    ]
    values = np.linspace(math.log(2.0**-18), math.log(2.0**20), 3).astype(np.float32)
    assert bool(_judge(tmp_path, nodes, values).falling) == falls


@pytest.mark.parametrize(
    ("between", "falls"),
    [
        ([node("Sqrt", "d", "r")], True),
        ([node("Pow", "d half", "r")], True),
        ([node("Sqrt", "d", "s"), node("Add", "s eps", "r")], True),
        ([node("Sqrt", "d", "s"), node("Unsqueeze", "s axes", "u"), node("Max", "eps u", "r")], True),
        ([node("Sqrt", "d", "s"), node("Add", "s guard", "r")], False),
        ([node("Add", "d eps", "s"), node("Sqrt", "s", "r")], False),
        ([node("Sqrt", "d", "s"), node("Add", "s s", "r")], False),
        ([node("Exp", "d", "r")], False),
    ],
)
def test_so_may_what_is_under_a_root(between: list[onnx.NodeProto], falls: bool, tmp_path: Path) -> None:
    """Of 2^-18 three bits are left, of its root twelve: the variance falls under FP16's numbers long before the deviation."""
    nodes = [node("Exp", "x", "d"), *between, node("Div", "one r", "y")]
    constants = {**CONSTANTS, "half": scalar(0.5), "guard": scalar(1e-3)}
    used = {name for one in nodes for name in one.input}
    model = make_model(nodes, {"x": None}, "y", {k: v for k, v in constants.items() if k in used})
    values = {"x": _logarithms(2.0**-18)}
    graph, ranges = scan(model, tmp_path, values, values)
    found = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy())).falling
    assert [fall.tensor for fall in found] == ["d"] * falls
    plan = plan_precision(graph, ranges, PlanPolicy(include_nodes=("Exp_d", graph.nodes[1].label)))
    assert judge_confidence(graph, ranges, plan).falling == ()


@pytest.mark.parametrize(
    ("scale", "factor", "falls"),
    [
        ("Mul", 2.0, False),
        ("Mul", 0.5, False),
        ("Div", 4.0, False),
        ("Mul", 1 / 32, True),
        ("Div", 32.0, True),
    ],
)
def test_a_guard_that_a_constant_scales(scale: str, factor: float, falls: bool, tmp_path: Path) -> None:
    """1e-5 is 21 times 2^-21."""
    nodes = [node("Exp", "x", "e"), node("Add", "e eps", "g"), node(scale, "g k", "d")]
    nodes.append(node("Div", "one d", "y"))
    constants = {"one": CONSTANTS["one"], "eps": CONSTANTS["eps"], "k": scalar(factor)}
    values = {"x": np.linspace(math.log(2.0**-15), 0, 4).astype(np.float32)}
    graph, ranges = scan(make_model(nodes, {"x": None}, "y", constants), tmp_path, values)
    confidence = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy()))
    assert bool(confidence.falling) == falls


def test_a_guard_that_is_smaller_than_fp16_holds_well_is_none(tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "e"), node("Add", "e tiny", "d"), node("Div", "one d", "y")]
    assert _judge(tmp_path, nodes, _logarithms(2.0**-18)).falling


def test_the_nearest_comes_first_and_what_is_at_the_limit_has_nothing_left(tmp_path: Path) -> None:
    nodes = [node("Abs", "x", "far"), node("Mul", "far half", "near")]
    nodes += [node("Div", "one far", "a"), node("Div", "a near", "y")]
    constants = {"one": scalar(1), "half": scalar(0.5)}
    data = {"x": floats(2 * FEW_STEPS, 1)}
    graph, ranges = scan(make_model(nodes, {"x": None}, "y", constants), tmp_path, data)
    falls = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy())).falling
    assert [(fall.tensor, fall.margin_bits) for fall in falls] == [("near", 0), ("far", 1)]


def test_fp64_is_not_asked_about(tmp_path: Path) -> None:
    nodes = [node("Cast", "x", "w", to=TensorProto.DOUBLE), node("Exp", "w", "d"), node("Log", "d", "l")]
    nodes.append(node("Cast", "l", "y", to=TensorProto.FLOAT))
    assert _judge(tmp_path, nodes, _logarithms(2.0**-18)).falling == ()


@pytest.mark.parametrize("values", [floats(math.nan, -12), floats(-12, -12), floats(-np.inf, -12), floats()])
def test_nothing_is_told_of_nan_of_one_magnitude_or_of_nothing(values: np.ndarray, tmp_path: Path) -> None:
    assert _judge(tmp_path, DIVIDED, values).falling == ()


def test_not_where_all_is_pinned(tmp_path: Path) -> None:
    nodes = [node("Exp", "x", "d"), node("Log", "d", "y")]
    assert _judge(tmp_path, nodes, _logarithms(2.0**-18), "Exp_d").falling
    graph, ranges = scan(make_model(nodes, {"x": None}, "y"), tmp_path, {"x": _logarithms(2.0**-18)})
    plan = plan_precision(graph, ranges, PlanPolicy(include_nodes=("Exp_d", "Log_y")))
    assert judge_confidence(graph, ranges, plan).falling == ()


def test_it_is_said(tmp_path: Path) -> None:
    said = say_confidence(_judge(tmp_path, DIVIDED, _logarithms(2.0**-20)))
    assert "hardly" not in said
    assert (
        "would bring under 8 of FP16's steps d (min |x| 9.54e-07, 1.00 bits left, falling 5.00 a doubling)."
        in said
    )


def test_the_nearest_three_are_named() -> None:
    falls = tuple(Fall(f"t{i}", 1e-6, float(i), 3.0) for i in range(5))
    said = say_confidence(Confidence(2, (), (), falls))
    assert "t2 (min |x| 1e-06, 2.00 bits left, falling 3.00 a doubling) and 2 more." in said
    assert "t3" not in said
