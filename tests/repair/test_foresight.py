"""What is foreseen holds on every batch, and no node is named that need not be."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, make_model, node, save, scalar
from repair_trials import CONSTANTS, FACTORS, Trial, cancelling, chained
from typed_models import plan_of

from overflow_fixer.records import Batch, Finding, PlanPolicy, TensorError, Tolerance
from overflow_fixer.repair.foresight import Foresight
from overflow_fixer.repair.switchboard import Case, Switchboard

ROWS = {"x": np.linspace(0.5, 1.5, 8, dtype=np.float32).reshape(1, 8)}
BATCHES = tuple({**ROWS, "gate": np.float32([[a, b]])} for a, b in ((1, 0), (1, 0), (0, 1)))
"""The first factor lets what one half of the model computes through, the second the other."""


def _foresee(folder: Path, is_late: bool = False) -> Foresight:
    """(x + 4096 - 4096) a + (x + 8192 - 8192) b, of which only one counts in each batch; and a harmless x x."""
    nodes = [
        node("Add", "x c", "b0"),
        node("Sub", "b0 c", "d0"),
        node("Add", "x e", "b1"),
        node("Sub", "b1 e", "d1"),
        node("Split", "gate", "a b", axis=1),
        node("Mul", "d0 a", "m0"),
        node("Mul", "d1 b", "m1"),
        node("Add", "m0 m1", "s"),
        node("Mul", "x x", "q"),
        node("Add", "s q", "y"),
    ]
    constants = {"c": scalar(4096), "e": scalar(8192)}
    model = make_model(nodes, {"x": [1, 8], "gate": [1, 2]}, "y", constants)
    graph = save(model, folder)
    board = Switchboard(graph, [one.label for one in graph.nodes], ["y"])
    batches = InMemoryCalibration(BATCHES)
    cases = [Case(board, next(iter(batches)), {}, (), Tolerance())]
    known = graph, PlanPolicy(), plan_of(graph), board, Tolerance(), batches, {}
    return Foresight(*known, is_late=lambda: is_late, tell=lambda: None, cases=cases)


def _accuse(label: str, error: TensorError) -> Finding:
    return Finding("repair", label, error.tensor, error.snr_db, 30.0, error.worst_batch or "")


def _about(label: str) -> Finding:
    return Finding("repair", label, "", 0.0, 30.0, "")


def test_culprits_are_found_for_batches_that_come_later(tmp_path: Path) -> None:
    foresight = _foresee(tmp_path)
    movable = set(foresight.board.nodes)
    found = foresight.find_culprits((), movable, _accuse)
    assert {finding.node for finding in found} == {"Add_b0", "Sub_d0", "Add_b1", "Sub_d1"}
    assert len(foresight.cases) == 2
    assert foresight.is_bearable(found)
    assert not foresight.is_bearable(found[1:])
    assert all(finding.value < 30 for finding in found)


def test_what_is_known_already_stays_in_front(tmp_path: Path) -> None:
    foresight = _foresee(tmp_path)
    known = (_about("Sub_d0"), _about("Mul_q"))
    found = foresight.find_culprits(known, set(foresight.board.nodes), _accuse)
    assert found[:2] == known
    assert {finding.node for finding in found[2:]} == {"Add_b0", "Add_b1", "Sub_d1"}


def test_what_may_not_be_moved_is_not_named(tmp_path: Path) -> None:
    found = _foresee(tmp_path).find_culprits((), {"Add_b0"}, _accuse)
    assert {finding.node for finding in found} <= {"Add_b0"}


def test_what_the_outputs_bear_is_left_out_on_all_batches(tmp_path: Path) -> None:
    foresight = _foresee(tmp_path)
    labels = [label for label in foresight.board.nodes if label != "Split_a"]
    left = foresight.leave_out(tuple(_about(label) for label in labels), labels)
    assert {finding.node for finding in left} == {"Add_b0", "Sub_d0", "Add_b1", "Sub_d1"}


@pytest.mark.parametrize("labels", [["Mul_q"], []])
def test_only_of_those_named_any_is_left_out(tmp_path: Path, labels: list[str]) -> None:
    foresight = _foresee(tmp_path)
    findings = tuple(_about(label) for label in foresight.board.nodes)
    left = foresight.leave_out(findings, labels)
    assert [one for one in findings if one not in left] == [one for one in findings if one.node in labels]


def test_when_it_is_late_nothing_is_left_out(tmp_path: Path) -> None:
    foresight = _foresee(tmp_path, is_late=True)
    findings = tuple(_about(label) for label in foresight.board.nodes)
    assert foresight.leave_out(findings, list(foresight.board.nodes)) == findings
    assert foresight.find_culprits((), set(foresight.board.nodes), _accuse) == ()


def test_a_batch_that_nothing_helps_is_one_case(tmp_path: Path) -> None:
    foresight = _foresee(tmp_path)
    foresight.find_culprits((), {"Add_b0"}, _accuse)
    names = [case.batch for case in foresight.cases]
    assert len(set(names)) == len(names)


def test_no_more_cases_are_taken_than_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overflow_fixer.repair.foresight._MOST_CASES", 1)
    foresight = _foresee(tmp_path)
    found = foresight.find_culprits((), set(foresight.board.nodes), _accuse)
    assert {finding.node for finding in found} == {"Add_b0", "Sub_d0"}
    assert len(foresight.cases) == 1


def test_when_it_is_late_no_other_batch_is_tried(tmp_path: Path) -> None:
    foresight = _foresee(tmp_path, is_late=True)
    assert foresight.leave_out((), []) == ()
    assert len(foresight.cases) == 1


@pytest.mark.parametrize(("share", "is_worse"), [(0.79, False), (0.81, True)])
def test_on_other_batches_too_1_db_is_left(tmp_path: Path, share: float, is_worse: bool) -> None:
    """The third batch takes this share of the error that is allowed."""
    foresight = _foresee(tmp_path)
    *_, third = foresight.batches
    (error,) = Case(foresight.board, third, {}, (), Tolerance()).compare(foresight.board.nodes)
    foresight.tolerance = Tolerance(min_snr_db=error.snr_db + 10 * math.log10(share))
    foresight.batches = [third]
    assert foresight.leave_out((), []) == ()
    assert (len(foresight.cases) == 2) == is_worse


def test_the_mildest_come_first_with_their_own_errors(tmp_path: Path) -> None:
    foresight = _foresee(tmp_path)
    found = foresight.find_culprits((), set(foresight.board.nodes), _accuse)
    values = [finding.value for finding in found]
    assert values == sorted(values, reverse=True)
    for finding in found:
        alone = [case.compare([finding.node])[0].snr_db for case in foresight.cases]
        assert finding.value == min(alone)


@pytest.mark.parametrize("labels", [["Sub_d0", "Mul_q"], ["Mul_q", "Sub_d0"]])
def test_of_two_that_one_of_is_needed_the_other_is_left_out(tmp_path: Path, labels: list[str]) -> None:
    foresight = _foresee(tmp_path)
    findings = tuple(_about(label) for label in foresight.board.nodes)
    left = foresight.leave_out(findings, labels)
    assert [one.node for one in findings if one not in left] == ["Mul_q"]


@pytest.mark.parametrize("labels", [["Mul_m", "Mul_y"], ["Mul_y", "Mul_m"]])
def test_the_first_that_can_be_left_out_is(tmp_path: Path, labels: list[str]) -> None:
    """Both take more than is allowed, each alone does not."""
    model = make_model(
        [node("Mul", "x k", "m"), node("Mul", "m k", "y")], {"x": [1, 8]}, "y", {"k": scalar(1.0001)}
    )
    graph = save(model, tmp_path)
    board = Switchboard(graph, labels, ["y"])
    case = Case(board, Batch("b", ROWS), {}, (), Tolerance())
    (error,) = case.compare(labels)
    tolerance = Tolerance(min_snr_db=error.snr_db + 10 * math.log10(0.85))
    known = graph, PlanPolicy(), plan_of(graph), board, tolerance, [], {}
    foresight = Foresight(*known, is_late=lambda: False, tell=lambda: None, cases=[case])
    (left,) = foresight.leave_out(tuple(map(_about, labels)), labels)
    assert left.node == labels[1]


def test_foreseeing_may_take_a_tenth_of_the_time_that_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(tmp_path, chained(), {**CONSTANTS, **FACTORS})
    first, clock = trial.first(), [1000.0]
    told: list[tuple[str, int, int]] = []
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    foresight = trial.foreseer(first, 100.0, lambda *progress: told.append(progress)).foresee(first, first)
    assert foresight is not None
    for clock[0], is_late in ((1009.9, False), (1010.1, True)):
        assert foresight.is_late() == is_late
    clock[0] = 1004.0
    assert not foresight.is_bearable(())
    assert told == [("repair: search, seconds", 4, 10)]


@pytest.mark.parametrize(("scale", "is_foreseen"), [(0.1, False), (0.0, True)])
def test_of_a_model_that_draws_random_numbers_it_is_only_foreseen_where_they_do_not_count(
    scale: float, is_foreseen: bool, tmp_path: Path
) -> None:
    """As where a synthesis of speech is run with its noise scaled to zero."""
    nodes = [
        node("RandomNormalLike", "x", "noise"),
        node("Mul", "noise scale", "n"),
        *cancelling(),
        node("Sum", "h0 n", "y"),
    ]
    trial = Trial(tmp_path, nodes, {**CONSTANTS, "scale": scalar(scale)})
    first = trial.first()
    foresight = trial.foreseer(first).foresee(first, first)
    assert (foresight is not None) == is_foreseen
    if foresight is not None:
        assert "RandomNormalLike_noise" not in foresight.board.nodes


def test_outputs_that_are_nan_in_fp32_are_not_asked(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [*cancelling(), node("Neg", "h0", "y"), node("Log", "x", "z")], outputs="y z")
    first = trial.first()
    foresight = trial.foreseer(first).foresee(first, first)
    assert foresight is not None
    assert foresight.board.outputs == ("y",)
