"""Quotients of which the largest are near a pole, where FP16 leaves a few steps of the divisor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.differences.poles import find_poles
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

# FP16's steps at 3 are 2^-9, so that 16 of them are 1/32
NEAR, FAR = np.float32(2.9 + 0.02), np.float32(2.9 + 0.05)
_DIFFERENCE = [node("Sub", "x three", "d"), node("Div", "n d", "y")]
_CONSTANTS = {"three": scalar(2.9), "minus": scalar(-2.9), "epsilon": scalar(1e-3), "shape": np.array([4])}


def _batch(*x: float, n: float = 1.0) -> dict[str, np.ndarray]:
    return {"x": floats(*x), "n": np.full(len(x), n, np.float32)}


def _scan(
    folder: Path, nodes: list[onnx.NodeProto], *batches: dict[str, np.ndarray]
) -> tuple[Graph, RangeTable]:
    read = {name for one in nodes for name in one.input}
    inputs = {name: ["k"] for name in ("x", "n") if name in read}
    model = make_model(nodes, inputs, nodes[-1].output[0], _CONSTANTS)
    return scan(model, folder, *({name: batch[name] for name in inputs} for batch in batches))


FORMS = {
    "a quotient": _DIFFERENCE,
    "a reciprocal": [node("Sub", "x three", "d"), node("Reciprocal", "d", "y")],
    "a sum of what has both signs": [node("Add", "x minus", "d"), node("Div", "n d", "y")],
    "moved before": [node("Sub", "x three", "d"), node("Reshape", "d shape", "r"), node("Div", "n r", "y")],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("nearest", "is_found"), [(NEAR, True), (FAR, False)])
def test_a_divisor_of_less_than_16_steps_is_lost(
    form: str, nearest: float, is_found: bool, tmp_path: Path
) -> None:
    graph, ranges = _scan(tmp_path, FORMS[form], _batch(nearest, 4, 5, 6))
    difference = f"{FORMS[form][0].op_type}_d"
    assert pinned_by(find_lost_differences, graph, ranges) == [difference] * is_found


@pytest.mark.parametrize(("steps", "is_found"), [(4, True), (64, False)])
def test_what_is_found_has_less_than_30_db(steps: int, is_found: bool, tmp_path: Path) -> None:
    """As many divisors of each magnitude, from so many steps to 2."""
    spread = np.random.default_rng(1).uniform(np.log(steps * 2.0**-9), np.log(2), 4096)
    x = (2.9 + np.exp(spread)).astype(np.float32)
    graph, ranges = _scan(tmp_path, _DIFFERENCE, _batch(*x.tolist()))
    assert pinned_by(find_lost_differences, graph, ranges) == ["Sub_d"] * is_found
    right = 1 / (x.astype(np.float64) - float(np.float32(2.9)))
    in_fp16 = (np.float16(1) / (x.astype(np.float16) - np.float16(2.9))).astype(np.float64)
    snr_db = 10 * np.log10((right**2).sum() / ((in_fp16 - right) ** 2).sum())
    assert bool(snr_db < 30) is is_found


def test_the_evidence_is_of_the_worst_batch_and_can_be_computed_again(tmp_path: Path) -> None:
    batches = _batch(3, 4, 5), _batch(2.905, 4, n=3), _batch(2.91, 4)
    graph, ranges = _scan(tmp_path, _DIFFERENCE, *batches)
    (found,) = ask(find_lost_differences, graph, ranges)
    divisor = float(batches[1]["x"].min()) - float(np.float32(2.9))
    assert (found.tensor, found.batch, found.limit) == ("d", "batch_1", 2.0**-5)
    assert found.value == pytest.approx(divisor, rel=1e-5)
    assert found.reason == (
        f"Div Div_y divides by d, which is {found.value:.6g} at most where it gives {3 / divisor:.6g}, since it divides nothing "
        "over 3, and terms of up to 2.9 that cancel lose much: FP16's steps are 0.00195312 there"
    )


def test_what_is_divided_may_be_as_small(tmp_path: Path) -> None:
    """Then the largest quotient is no sign of a small divisor."""
    nodes = [node("Sub", "x three", "d"), node("Mul", "d n", "m"), node("Div", "m d", "y")]
    graph, ranges = _scan(tmp_path, nodes, _batch(NEAR, 4, 5, 6))
    assert list(find_poles(graph, ranges)) == []


def test_a_batch_in_which_a_term_is_zero_loses_nothing(tmp_path: Path) -> None:
    model = make_model([node("Sub", "x b", "d"), node("Div", "n d", "y")], {key: ["k"] for key in "xbn"}, "y")
    batches = [{**_batch(1e-3, 2e-3), "b": floats(0, 0)}, {**_batch(4, 5), "b": floats(-3, 1)}]
    graph, ranges = scan(model, tmp_path, *batches)
    assert list(find_poles(graph, ranges)) == []


def test_a_sum_of_one_term_is_no_difference(tmp_path: Path) -> None:
    graph, ranges = _scan(
        tmp_path, [node("Sum", "x", "d"), node("Div", "n d", "y")], _batch(1e-3, -2e-3, 1, 1)
    )
    assert list(find_poles(graph, ranges)) == []


@pytest.mark.parametrize(("beside", "is_found"), [(0.01, False), (5.0, True)])
def test_a_part_of_the_divisor_answers_for_itself_alone(
    beside: float, is_found: bool, tmp_path: Path
) -> None:
    """1 over x - 2.9, of 0.02 and more, and what stands beside it."""
    nodes = [node("Sub", "x three", "d"), node("Concat", "d s", "c", axis=0), node("Reciprocal", "c", "y")]
    model = make_model(nodes, {"x": ["k"], "s": ["m"]}, "y", _CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"x": floats(NEAR, 4, 5), "s": floats(beside)})
    assert [found.nodes[0].label for found in find_poles(graph, ranges)] == ["Sub_d"] * is_found


@pytest.mark.parametrize(("op", "is_found"), [("Log", False), ("Atan", False), ("Abs", True)])
def test_where_a_function_levels_large_quotients_they_are_not_most_of_it(
    op: str, is_found: bool, tmp_path: Path
) -> None:
    nodes = [node("Sub", "x three", "d"), node("Div", "n d", "q"), node(op, "q", "y")]
    graph, ranges = _scan(tmp_path, nodes, _batch(NEAR, 4, 5, 6))
    assert len(list(find_poles(graph, ranges))) == is_found
    graph, ranges = _scan(tmp_path, [*nodes, node("Neg", "q", "z")], _batch(NEAR, 4, 5, 6))
    assert len(list(find_poles(graph, ranges))) == 1


def test_of_a_sum_of_one_sign_nothing_cancels(tmp_path: Path) -> None:
    nodes = [node("Mul", "x x", "s"), node("Add", "s epsilon", "d"), node("Div", "n d", "y")]
    graph, ranges = _scan(tmp_path, nodes, _batch(0.01, 4, 5, 6))
    assert list(find_poles(graph, ranges)) == []
    nodes = [node("Neg", "x", "m"), node("Sub", "epsilon m", "d"), node("Div", "n d", "y")]
    graph, ranges = _scan(tmp_path, nodes, _batch(0.01, 4, 5, 6))
    assert list(find_poles(graph, ranges)) == []


def test_terms_that_fp16_holds_lose_nothing(tmp_path: Path) -> None:
    nodes = [node("Floor", "x", "f"), node("Sub", "f big", "d"), node("Div", "n d", "y")]
    model = make_model(nodes, {"x": ["k"], "n": ["k"]}, "y", {"big": scalar(1500)})
    graph, ranges = scan(model, tmp_path, _batch(1501.5, 1700, 1900))
    assert list(find_poles(graph, ranges)) == []


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["x", "n"])
def test_nothing_is_said_beside_nan_and_infinities(bad: float, where: str, tmp_path: Path) -> None:
    batch = _batch(NEAR, 4, 5, 6)
    batch[where][1] = bad
    graph, ranges = _scan(tmp_path, _DIFFERENCE, batch, _batch(NEAR, 4))
    assert list(find_poles(graph, ranges)) == []


def test_a_pole_itself_is_the_matter_of_others(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, _DIFFERENCE, _batch(2.9, 4, 5, 6))
    assert list(find_poles(graph, ranges)) == []


def test_batches_of_nothing_and_of_zeros_are_passed_over(tmp_path: Path) -> None:
    batches = _batch(), _batch(NEAR, 4, n=0), _batch(NEAR, 4)
    graph, ranges = _scan(tmp_path, _DIFFERENCE, *batches)
    (found,) = find_poles(graph, ranges)
    assert found.batch == "batch_2"


def test_a_scalar_is_small_as_a_whole_too(tmp_path: Path) -> None:
    model = make_model(_DIFFERENCE, {"x": [], "n": []}, "y", _CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"x": scalar(NEAR), "n": scalar(1)})
    (found,) = find_poles(graph, ranges)
    told = [finding.reason for finding in ask(find_lost_differences, graph, ranges)]
    assert told
    assert found.reason not in told
