"""Where an error begins, and what stands around a node."""

from __future__ import annotations

from pathlib import Path

from in_memory_calibration import make_model, node, save
from repair_trials import CONSTANTS, Trial, cancelling

from overflow_fixer.records import PrecisionPlan
from overflow_fixer.repair.suspects import find_around, find_suspects


def test_a_long_chain_of_movers_is_followed(tmp_path: Path) -> None:
    chain = [node("Identity", "b0" if i == 0 else f"t{i}", f"t{i + 1}") for i in range(1200)]
    model = make_model(
        [*cancelling()[:2], *chain, node("Sub", "t1200 c", "y")], {"x": [4, 8]}, "y", CONSTANTS
    )
    graph = save(model, tmp_path)
    for label in ("Sub_y", "Add_b0"):
        near = {at.label for at in find_around(graph, graph.by_label[label], 1)}
        assert {"Add_b0", "Sub_y"} <= near
        assert len(near) >= 1202


def test_only_where_infinity_begins_is_suspected_of_it(tmp_path: Path) -> None:
    nodes = [node("Mul", "x c", "a"), node("Mul", "a k", "b"), node("Neg", "b", "d"), node("Abs", "d", "y")]
    trial = Trial(tmp_path, nodes)
    naive = PrecisionPlan(trial.graph.sha256, 10000.0, ())
    _, found = trial.build(naive)
    broken = [error.tensor for error in found.trace if error.mismatched]
    assert broken == ["b", "d", "y"]
    suspects = [error.tensor for error in find_suspects(found, trial.graph)]
    assert [name for name in suspects if name in broken] == ["b"]
