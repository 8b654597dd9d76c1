"""Differences of floats in an exponent, of which FP16's steps are too large there."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

GENERATOR = np.random.default_rng(0)
TIMES = np.sort(GENERATOR.uniform(0, 1000, (2, 200)), 1).astype(np.float32)
GAPS = [node("Slice", "x one end last", "later"), node("Slice", "x start minus_one last", "sooner")]
DIFFERENCE = [*GAPS, node("Sub", "later sooner", "d"), node("Mul", "d rate", "e"), node("Exp", "e", "f")]
PINS = {"Slice_later", "Slice_sooner", "Sub_d"}
CONSTANTS = {
    "one": ints(1),
    "start": ints(0),
    "end": ints(2**31),
    "minus_one": ints(-1),
    "last": ints(-1),
    "rate": scalar(-1.5),
    "unit": scalar(1),
    "far": scalar(40),
}
FORMS: dict[str, list[onnx.NodeProto]] = {
    "given out": [node("Identity", "f", "y")],
    "multiplied": [node("Mul", "f d", "y")],
    "added to as little": [node("Add", "f unit", "y")],
    "in a sum": [node("ReduceSum", "f last", "y")],
}
HIDDEN: dict[str, list[onnx.NodeProto]] = {
    "added to more": [node("Add", "f far", "y")],
    "under a logarithm": [node("Add", "f unit", "s"), node("Log", "s", "y")],
    "under a logarithm of a sum": [
        node("ReduceSum", "f last", "t"),
        node("Add", "t unit", "s"),
        node("Log", "s", "y"),
    ],
    "read by nothing": [node("Relu", "d", "y")],
}


def _scan(
    folder: Path, behind: list[onnx.NodeProto], *batches: np.ndarray, rate: float = -1.5
) -> tuple[Graph, RangeTable]:
    constants = CONSTANTS | {"rate": scalar(rate)}
    model = make_model([*DIFFERENCE, *behind], {"x": [None, None]}, "y", constants, 18)
    return scan(model, folder, *({"x": one} for one in batches))


def _told(graph: Graph, ranges: RangeTable) -> list[str]:
    found = ask(find_lost_differences, graph, ranges)
    return [one.node for one in found if "are rounded to FP16" in one.reason]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_lost_is_told_and_right_with_the_pins(form: str, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, FORMS[form], TIMES)
    assert set(_told(graph, ranges)) == PINS
    pinned = set(pinned_by(find_lost_differences, graph, ranges))
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    assert _snr_db(tmp_path, set()) < 35
    assert _snr_db(tmp_path, fp32) > 50


def _snr_db(folder: Path, fp32: set[str]) -> float:
    return measure_snr_db(folder / "model.onnx", {"x": TIMES}, fp32)


@pytest.mark.parametrize("form", HIDDEN)
def test_what_hides_the_loss(form: str, tmp_path: Path) -> None:
    assert not _told(*_scan(tmp_path, HIDDEN[form], TIMES))


@pytest.mark.parametrize(
    ("most", "rate", "is_found"),
    [(1000, -1.5, True), (1000, -0.02, False), (100, -1.5, False), (100, -15, True)],
)
def test_steps_in_the_exponent_count(most: float, rate: float, is_found: bool, tmp_path: Path) -> None:
    """The larger the times or the rate, the more is lost; of the slowest decays FP16 tells enough."""
    told = _told(*_scan(tmp_path, FORMS["given out"], TIMES * np.float32(most / 1000), rate=rate))
    assert bool(told) == is_found


def test_the_boundary(tmp_path: Path) -> None:
    """Of one number x less what FP16 has, the exponential errs by e^d - 1, d being what rounding takes from x, times the rate."""
    nodes = [node("Sub", "x z", "d"), node("Mul", "d rate", "e"), node("Exp", "e", "y")]
    x = np.array([[1.0 + 2.0**-12]], np.float32)  # FP16 makes 1 of it
    for loss, is_found in ((1.02 / 32, True), (0.98 / 32, False)):
        rate = scalar(-math.log1p(loss) * 2**12)
        model = make_model(nodes, {"x": [1, 1], "z": [1, 1]}, "y", {"rate": rate})
        assert (_told(*scan(model, tmp_path, {"x": x, "z": np.ones_like(x)})) == ["Sub_d"]) == is_found


@pytest.mark.parametrize(("far", "near"), [(1000.0, 10.0), (10.0, 10.0), (10.0, 1000.0)])
def test_both_terms_count_where_they_cancel(far: float, near: float, tmp_path: Path) -> None:
    """However much larger one of them is elsewhere, where its exponential is zero."""
    nodes = [
        node("Unsqueeze", "x last", "a"),
        node("Unsqueeze", "z start", "b"),
        node("Sub", "a b", "d"),
        node("Mul", "d d", "s"),
        node("Mul", "s rate", "e"),
        node("Exp", "e", "y"),
    ]
    model = make_model(nodes, {"x": [400], "z": [300]}, "y", CONSTANTS | {"rate": scalar(-400)})
    ends = np.random.default_rng(1).uniform(0, 10, (2, 200)).astype(np.float32)
    x = np.concatenate([ends[0], np.linspace(0, far, 200, dtype=np.float32)])
    z = np.concatenate([ends[1], np.linspace(0, near, 100, dtype=np.float32)])
    graph, ranges = scan(model, tmp_path, {"x": x, "z": z})
    assert set(_told(graph, ranges)) == {"Unsqueeze_a", "Unsqueeze_b", "Sub_d"}
    assert measure_snr_db(tmp_path / "model.onnx", {"x": x, "z": z}, {"a", "b", "d"}) > 40


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, FORMS["given out"], TIMES / 100, TIMES)
    found = [one for one in ask(find_lost_differences, graph, ranges) if "are rounded" in one.reason]
    assert {(one.tensor, one.limit, one.batch) for one in found} == {("d", 1 / 32, "batch_1")}
    loss = float(ranges.inner_of["Exp_f"]["exponent loss"].batch_max_abs[1])
    assert {one.value for one in found} == {loss}
    assert found[0].reason.startswith(
        f"Exp Exp_f loses {loss:.3g} of what it gives where later and sooner, up to 99"
    )
    assert found[0].reason.endswith(
        "of which d in its exponent is made, are rounded to FP16: FP16's steps are 0.5 there"
    )


def test_back_to_the_layer_or_sum_that_makes_the_terms(tmp_path: Path) -> None:
    nodes = [node("CumSum", "x axis", "t"), *(one for one in DIFFERENCE)]
    nodes[1] = node("Slice", "t one end last", "later")
    nodes[2] = node("Slice", "t start minus_one last", "sooner")
    constants = CONSTANTS | {"axis": np.asarray(1, np.int64)}
    model = make_model(nodes, {"x": [None, None]}, "f", constants, 18)
    gaps = GENERATOR.uniform(0.1, 3, (2, 400)).astype(np.float32)
    assert set(_told(*scan(model, tmp_path, {"x": gaps}))) == PINS | {"CumSum_t"}


def test_a_softmax_that_is_written_out_is_the_rule_lost_logits(tmp_path: Path) -> None:
    """A row far from zero, of which one element is far above all others, and one that is not."""
    nodes = [
        node("ReduceLogSumExp", "x last", "l"),
        node("Sub", "x l", "d"),
        node("Exp", "d", "y"),
    ]
    x = np.array([[3000.3, 10.0, 20.0], [0.1, 0.2, 0.3]], np.float32)
    model = make_model(nodes, {"x": [2, 3]}, "y", CONSTANTS, 18)
    graph, ranges = scan(model, tmp_path, {"x": x})
    assert not _told(graph, ranges)


@pytest.mark.parametrize("other", [math.nan, math.inf])
def test_of_what_is_not_finite_or_empty_nothing_is_concluded(other: float, tmp_path: Path) -> None:
    broken = TIMES.copy()
    broken[0, 3] = other
    for x in (broken, TIMES[:0]):
        assert not _told(*_scan(tmp_path, FORMS["given out"], x))
