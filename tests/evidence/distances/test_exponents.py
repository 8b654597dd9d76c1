"""Squared distances in an exponent, of which FP16's steps are too large there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan
from written_distances import DISTANCES

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

GENERATOR = np.random.default_rng(9)
POINTS, CENTRES = (GENERATOR.normal(0, 0.5, (count, 3)).astype(np.float32) for count in (32, 8))
FORMS: dict[str, list[onnx.NodeProto]] = {
    "a kernel": [node("Mul", "d minus", "e"), node("Exp", "e", "y")],
    "a kernel, divided and turned": [
        node("Neg", "d", "n"),
        node("Div", "n half", "e"),
        node("Exp", "e", "y"),
    ],
    "bounded": [node("Relu", "d", "r"), node("Mul", "minus r", "e"), node("Exp", "e", "y")],
    "a softmax": [node("Mul", "d minus", "e"), node("Softmax", "e", "y")],
    "a softmax, written out": [
        node("Mul", "d minus", "e"),
        node("ReduceMax", "e last", "m"),
        node("Sub", "e m", "z"),
        node("Exp", "z", "k"),
        node("ReduceSum", "k last", "s"),
        node("Div", "k s", "y"),
    ],
}
STEEP: dict[str, list[onnx.NodeProto]] = {
    "under a sigmoid": [node("Mul", "d minus", "e"), node("Sigmoid", "e", "y")],
    "student's kernel": [node("Add", "d half", "e"), node("Div", "two e", "y")],
    "its reciprocal, bounded": [node("Clip", "d half", "e"), node("Reciprocal", "e", "y")],
    "a rational quadratic": [
        node("Mul", "d half", "s"),
        node("Add", "half s", "e"),
        node("Pow", "e minus", "y"),
    ],
}
ROOTS = [node("Relu", "d", "r"), node("Sqrt", "r", "s"), node("Mul", "s minus", "e"), node("Exp", "e", "y")]
OTHERS: dict[str, list[onnx.NodeProto]] = {
    "by data": [node("Mul", "d a", "e"), node("Neg", "e", "n"), node("Exp", "n", "y")],
    "by many numbers": [node("Mul", "d rates", "e"), node("Exp", "e", "y")],
    "in a sum": [node("ReduceMean", "d last", "s"), node("Exp", "s", "y")],
    "no distance": [node("Mul", "c minus", "e"), node("Exp", "e", "y")],
    "a quotient by it": [node("Div", "minus d", "e"), node("Exp", "e", "y")],
    "a LogSoftmax": [node("Mul", "d minus", "e"), node("LogSoftmax", "e", "y")],
    "a softmax under a logarithm": [
        node("Mul", "d minus", "e"),
        node("Softmax", "e", "p"),
        node("Log", "p", "y"),
    ],
    "a softmax that is written out, under a logarithm": [
        node("Mul", "d minus", "e"),
        node("Exp", "e", "k"),
        node("ReduceSum", "k last", "s"),
        node("Div", "k s", "p"),
        node("Log", "p", "y"),
    ],
    "a logarithm of a sum that is subtracted": [
        node("Mul", "d minus", "e"),
        node("Exp", "e", "k"),
        node("ReduceSum", "k last", "s"),
        node("Log", "s", "l"),
        node("Sub", "e l", "y"),
    ],
}
PINS = {"ReduceSum_a", "MatMul_c", "Mul_c2", "Sub_t", "Add_d"}


def _scan(
    folder: Path,
    behind: list[onnx.NodeProto],
    offset: float = 12,
    x: np.ndarray = POINTS,
    distances: list[onnx.NodeProto] = DISTANCES,
) -> tuple[Graph, RangeTable]:
    centres = CENTRES + np.float32(offset)
    constants = {
        "last": ints(-1),
        "few": ints(3),
        "two": scalar(2),
        "minus": scalar(-2),
        "half": scalar(0.5),
        "rates": np.linspace(-3, -1, 8, dtype=np.float32),
        "ct": np.ascontiguousarray(centres.T),
        "cc": np.square(centres).sum(1)[None],
    }
    model = make_model([*distances, *behind], {"x": [None, 3]}, "y", constants, 18)
    return scan(model, folder, {"x": x + np.float32(offset)})


@pytest.mark.parametrize("form", FORMS)
def test_what_is_lost_is_told_and_right_with_the_pins(form: str, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, FORMS[form])
    pinned = set(pinned_by(find_lost_differences, graph, ranges))
    assert pinned >= PINS
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    assert not _snr_db(tmp_path, set()) > 20
    assert _snr_db(tmp_path, fp32) > 40


@pytest.mark.parametrize("form", STEEP)
def test_what_changes_as_much_of_itself_is_told_too(form: str, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, STEEP[form])
    pinned = set(pinned_by(find_lost_differences, graph, ranges))
    assert pinned >= PINS
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    assert not _snr_db(tmp_path, set()) > 20
    assert _snr_db(tmp_path, fp32) > 40


@pytest.mark.parametrize(("number", "is_told"), [(1.5, True), (4.0, False)])
def test_a_number_beside_the_distance_makes_it_less_steep(
    number: float, is_told: bool, tmp_path: Path
) -> None:
    """FP16's steps are 1/4 there: of 1.5 and more, 1/6 at most, of 4 1/16."""
    behind = [
        node("Constant", "", "k", value_float=number),
        node("Add", "d k", "e"),
        node("Div", "two e", "y"),
    ]
    found = ask(find_lost_differences, *_scan(tmp_path, behind))
    assert any("Div Div_y changes by" in one.reason for one in found) == is_told


def _snr_db(folder: Path, fp32_nodes: set[str], offset: float = 12) -> float:
    return measure_snr_db(folder / "model.onnx", {"x": POINTS + np.float32(offset)}, fp32_nodes)


@pytest.mark.parametrize("offset", [13.0, 16.0])
@pytest.mark.parametrize("behind", [FORMS["a kernel"], ROOTS])
def test_where_a_sum_is_over_1024_the_squares_are_pinned_too(
    behind: list[onnx.NodeProto], offset: float, tmp_path: Path
) -> None:
    """Of the largest distance their rounding is little, in the exponent it is not."""
    summed = [*DISTANCES[:4], node("Add", "a cc", "t"), node("Sub", "t c2", "d")]
    spread = np.vstack([POINTS, 4 * POINTS[:4]])
    graph, ranges = _scan(tmp_path, behind, offset, spread, summed)
    assert ranges.by_tensor["t"].max_abs > 1024 > ranges.by_tensor["a"].max_abs
    pinned = set(pinned_by(find_lost_differences, graph, ranges))
    assert pinned >= {"Mul_xx", "ReduceSum_a", "MatMul_c", "Mul_c2", "Add_t", "Sub_d"}
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    assert _snr_db(tmp_path, fp32, offset) > 40


def test_where_the_nearest_is_chosen_too_both_are_told(tmp_path: Path) -> None:
    """Of what is nearest to a point far from all the squares' rounding is little; in the exponent it is not."""
    summed = [*DISTANCES[:4], node("Add", "a cc", "t"), node("Sub", "t c2", "d")]
    behind = [
        node("ReduceMin", "d last", "m"),
        node("Mul", "d minus", "e"),
        node("Exp", "e", "k"),
        node("Add", "m k", "y"),
    ]
    spread = np.vstack([POINTS, np.full((1, 3), 2.5, np.float32)])
    graph, ranges = _scan(tmp_path, behind, 9, spread, summed)
    found = ask(find_lost_differences, graph, ranges)
    reasons = [one.reason for one in found if one.node == "Sub_d"]
    assert any("ReduceMin ReduceMin_m" in reason for reason in reasons)
    assert any("for an exponent" in reason for reason in reasons)
    assert "Mul_xx" in {one.node for one in found}


@pytest.mark.parametrize(
    "chooses", [node("ReduceMin", "d last", "v"), node("TopK", "d few", "v i", largest=0)]
)
def test_of_the_nearest_the_steps_are_the_same(chooses: onnx.NodeProto, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [chooses, node("Mul", "v minus", "e"), node("Exp", "e", "y")])
    assert _told(graph, ranges)


@pytest.mark.parametrize("form", OTHERS)
def test_other_readers_make_no_exponent_of_it(form: str, tmp_path: Path) -> None:
    assert not _told(*_scan(tmp_path, OTHERS[form]))


def _told(graph: Graph, ranges: RangeTable) -> list[str]:
    found = ask(find_lost_differences, graph, ranges)
    return [one.reason for one in found if "for an exponent" in one.reason]


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, FORMS["a kernel"])
    found = next(one for one in ask(find_lost_differences, graph, ranges) if "for an exponent" in one.reason)
    least = np.square(CENTRES + np.float32(12)).sum(1).min()
    assert (found.tensor, found.value, found.limit) == ("d", 2 * 0.25, 1 / 8)
    assert 256 < least < 512
    assert found.reason.startswith("Exp Exp_y takes 2 times d for an exponent, whose terms are ")
    assert found.reason.endswith("and more: FP16's steps are 0.25 there, and 0.5 in the exponent")


@pytest.mark.parametrize(("offset", "is_found"), [(0.0, False), (4.0, False), (8.0, True)])
def test_near_the_origin_the_steps_are_small(offset: float, is_found: bool, tmp_path: Path) -> None:
    """Three coordinates of 8 make 192 and steps of 1/8, which are 1/4 in the exponent; of 4, 48 and 1/16."""
    assert bool(_told(*_scan(tmp_path, FORMS["a kernel"], offset))) == is_found


@pytest.mark.parametrize("other", [math.nan, math.inf])
def test_of_what_is_not_finite_or_empty_nothing_is_concluded(other: float, tmp_path: Path) -> None:
    broken = POINTS.copy()
    broken[0, 0] = other
    for x in (broken, POINTS[:0]):
        assert not _told(*_scan(tmp_path, FORMS["a kernel"], x=x))
