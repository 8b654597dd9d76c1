"""What is foreseen holds on every batch, and no node is named that need not be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, make_model, node, save, scalar
from typed_models import plan_of

from overflow_fixer.foresight import Foresight
from overflow_fixer.records import Finding, PlanPolicy, Tolerance
from overflow_fixer.switchboard import Case, Switchboard

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
    cases = [Case(board, next(iter(batches)))]
    known = graph, PlanPolicy(), plan_of(graph), board, Tolerance(), batches
    return Foresight(*known, is_late=lambda: is_late, cases=cases)


def _accuse(label: str, excess: float) -> Finding:
    return Finding("repair", label, "", excess, 1.0, "")


def test_culprits_are_found_for_batches_that_come_later(tmp_path: Path) -> None:
    foresight = _foresee(tmp_path)
    movable = set(foresight.board.nodes)
    found = foresight.find_culprits((), movable, _accuse)
    assert {finding.node for finding in found} == {"Add_b0", "Sub_d0", "Add_b1", "Sub_d1"}
    assert len(foresight.cases) == 2
    assert foresight.is_bearable(found)
    assert not foresight.is_bearable(found[1:])
    assert all(finding.value > 1 for finding in found)


def test_what_is_known_already_stays_in_front(tmp_path: Path) -> None:
    foresight = _foresee(tmp_path)
    known = (_accuse("Sub_d0", 5.0), _accuse("Mul_q", 5.0))
    found = foresight.find_culprits(known, set(foresight.board.nodes), _accuse)
    assert found[:2] == known
    assert {finding.node for finding in found[2:]} == {"Add_b0", "Add_b1", "Sub_d1"}


def test_what_may_not_be_moved_is_not_named(tmp_path: Path) -> None:
    found = _foresee(tmp_path).find_culprits((), {"Add_b0"}, _accuse)
    assert {finding.node for finding in found} <= {"Add_b0"}


def test_what_the_outputs_bear_is_left_out_on_all_batches(tmp_path: Path) -> None:
    foresight = _foresee(tmp_path)
    labels = [label for label in foresight.board.nodes if label != "Split_a"]
    left = foresight.leave_out(tuple(_accuse(label, 1.0) for label in labels), labels)
    assert {finding.node for finding in left} == {"Add_b0", "Sub_d0", "Add_b1", "Sub_d1"}


@pytest.mark.parametrize("labels", [["Mul_q"], []])
def test_only_of_those_named_any_is_left_out(tmp_path: Path, labels: list[str]) -> None:
    foresight = _foresee(tmp_path)
    findings = tuple(_accuse(label, 1.0) for label in foresight.board.nodes)
    left = foresight.leave_out(findings, labels)
    assert [one for one in findings if one not in left] == [one for one in findings if one.node in labels]


def test_when_it_is_late_nothing_is_left_out(tmp_path: Path) -> None:
    foresight = _foresee(tmp_path, is_late=True)
    findings = tuple(_accuse(label, 1.0) for label in foresight.board.nodes)
    assert foresight.leave_out(findings, list(foresight.board.nodes)) == findings
    assert foresight.find_culprits((), set(foresight.board.nodes), _accuse) == ()
