"""What is proposed to pin next, with what each finding tells."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import ints, node, scalar
from onnx import TensorProto
from repair_trials import (
    CONSTANTS,
    FACTORS,
    Trial,
    X,
    cancelling,
    chained,
    layers,
    two_halves,
    vanishing,
    worst_of,
)
from report_factories import make_error

from overflow_fixer.records import Clamp, PlanPolicy, Tolerance
from overflow_fixer.repair.attempts import Attempt
from overflow_fixer.repair.proposals import Proposals


def _proposals(trial: Trial, first: Attempt | None = None) -> Proposals:
    return Proposals(trial.foreseer(first), trial.ranges, max_rounds=6)


def test_of_the_failing_outputs_the_strictest_limit_counts(tmp_path: Path) -> None:
    nodes = [*cancelling(0), *cancelling(1), node("Neg", "h0", "y"), node("Neg", "h1", "z")]
    tolerance = Tolerance(min_snr_db=90.0, per_output={"z": 200.0})
    proposal = _proposals(Trial(tmp_path, nodes, outputs="y z", tolerance=tolerance))._losing()
    assert proposal is not None
    assert {finding.limit for finding in proposal[1]} == {200.0}


def test_what_a_clamp_covers_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(tmp_path, [*cancelling(), node("Neg", "h0", "y")])
    first = trial.first()
    clamp = Clamp("c", 4000.0, "test", covers=("b0", "d0"))
    asked = []

    def measure(*given: Any) -> dict[str, Any]:
        asked.append(given[-1])
        return {}

    monkeypatch.setattr("overflow_fixer.repair.proposals.measure_losses", measure)
    _proposals(trial, replace(first, plan=replace(first.plan, clamps=(clamp,))))._measure()
    assert asked == [{"c", "b0", "d0"}]


SOFTMAX = [
    node("MatMul", "x w0", "m"),
    node("Mul", "m k", "a"),
    node("ReduceMax", "a", "mx", axes=[-1]),
    node("Sub", "a mx", "s"),
    node("Exp", "s", "e"),
    node("ReduceSum", "e ax", "sum"),
    node("Div", "e sum", "p"),
    node("Mul", "p one", "y"),
]


def test_a_lower_threshold_finds_causes_and_no_regions(tmp_path: Path) -> None:
    """What goes along with them in a softmax is pinned by the plan that is made of these."""
    proposal = _proposals(Trial(tmp_path, SOFTMAX, {**CONSTANTS, "ax": ints(-1)}))._lower_threshold()
    assert proposal is not None
    assert proposal[0] == "lowered the threshold to 1000"
    assert "Sub_s" in {finding.node for finding in proposal[1]}
    assert "region" not in {finding.rule for finding in proposal[1]}


def test_the_second_half_of_the_rounds_begins_with_the_threshold(tmp_path: Path) -> None:
    trial = Trial(tmp_path, layers(3, cancelling), tolerance=Tolerance(min_snr_db=500.0))
    proposals = _proposals(trial)
    proposals.foreseen_of = proposals.best
    for count, begins in ((1, "pinned"), (2, "pinned"), (3, "lowered")):
        proposals.round_count = count
        proposal = proposals._narrowest()
        assert proposal is not None
        assert proposal[0].split()[0] == begins


def test_of_all_before_an_output_what_is_nearest_to_it_is_taken_back_first(tmp_path: Path) -> None:
    proposal = _proposals(Trial(tmp_path, layers(2, cancelling)))._all_before_outputs()
    assert proposal is not None
    labels = [finding.node for finding in proposal[1]]
    assert (len(labels), labels[0], labels[-1]) == (9, "Identity_y", "MatMul_a0")


def test_each_finding_tells_the_snr_of_the_output_that_bears_its_node_worst(tmp_path: Path) -> None:
    """The limits of y and z differ by 40 dB, and no node is on the way to both but Split."""
    tolerance = Tolerance(per_output={"y": 20.0, "z": 60.0})
    constants = {"c4096": scalar(4096), "c8": scalar(8)}
    trial = Trial(tmp_path, two_halves(4096, 8), constants, "y z", tolerance=tolerance)
    proposals = _proposals(trial)
    proposal = proposals._foreseen()
    assert proposal is not None
    worst = int(worst_of(proposals.best)[-1])
    found = {finding.node: finding for finding in proposal[1]}
    assert found.keys() >= {"Add_a", "Sub_y", "Add_b", "Sub_z"}
    for label, part, constant, output in (("Add_a", 0, 4096, "y"), ("Add_b", 1, 8, "z")):
        half = X[worst]["x"][:, 4 * part : 4 * part + 4]
        rounded = (half.astype(np.float16).astype(np.float32) + np.float32(constant)).astype(np.float16)
        wrong = (rounded.astype(np.float32) - np.float32(constant)).astype(np.float64)
        right = ((half + np.float32(constant)) - np.float32(constant)).astype(np.float64)
        snr_db = 10 * math.log10((right**2).sum() / ((right - wrong) ** 2).sum())
        assert (found[label].value, found[label].limit) == (
            pytest.approx(snr_db),
            tolerance.per_output[output],
        )
        assert found[label].reason.endswith(f"times the error that {output} may have")


@pytest.mark.parametrize(
    ("snr_db", "end"),
    [
        (33.0, "takes 50.1 % of the error that y may have, but with what else stays in FP16 too much"),
        (27.0, "takes 2 times the error that y may have"),
    ],
)
def test_of_a_node_that_alone_would_pass_it_is_said_that_it_is_not(
    snr_db: float, end: str, tmp_path: Path
) -> None:
    proposals = _proposals(Trial(tmp_path, [*cancelling(), node("Neg", "h0", "y")]))
    error = make_error("y", snr_db, worst_batch_snr_db=snr_db)
    assert proposals._accuse("Add_b0", error).reason.endswith(f"Add_b0 {end}")


def test_of_integers_the_share_that_is_equal_is_told(tmp_path: Path) -> None:
    nodes = [node("Add", "x c", "s"), node("ArgMax", "s", "y", axis=1, keepdims=0)]
    trial = Trial(tmp_path, nodes, {"c": scalar(4096)}, output_types={"y": TensorProto.INT64})
    proposals = _proposals(trial)
    proposal = proposals._foreseen()
    assert proposal is not None
    (finding,) = proposal[1]
    x = X[int(worst_of(proposals.best)[-1])]["x"]
    halves = (x.astype(np.float16).astype(np.float32) + np.float32(4096)).astype(np.float16)
    equal = np.mean(halves.argmax(1) == (x + np.float32(4096)).argmax(1))
    assert (finding.node, finding.value, finding.limit) == ("Add_s", pytest.approx(equal), 0.99)


def test_all_before_outputs_tells_how_each_matches_and_has_to(tmp_path: Path) -> None:
    """Of integers the share that is equal; of values that are all NaN there is no SNR; NaN in FP32 is not mended."""
    nodes = [node("Add", "x c", "s"), node("ArgMax", "s", "i", axis=1, keepdims=0), *vanishing()]
    nodes += [node("Neg", "h0", "y"), node("Sub", "x x", "o"), node("Div", "o o", "z")]
    types = {"i": TensorProto.INT64}
    trial = Trial(tmp_path, nodes, {**CONSTANTS, "c": scalar(4096)}, "i y z", output_types=types)
    proposal = _proposals(trial)._all_before_outputs()
    assert proposal is not None
    assert proposal[0] == "pinned all that leads to i, y"
    errors = {v.error.tensor: v.error for v in trial.first().verification.outputs}
    equal = 1 - errors["i"].mismatched / errors["i"].element_count
    found = {(finding.tensor, finding.value, finding.limit) for finding in proposal[1]}
    assert found == {("i", equal, 0.99), ("y", -math.inf, 30.0)}


def test_what_the_user_excludes_is_not_accused(tmp_path: Path) -> None:
    policy = PlanPolicy(exclude_nodes=("Mul_q",))
    proposals = _proposals(Trial(tmp_path, chained(), {**CONSTANTS, **FACTORS}, policy=policy))
    proposal = proposals._foreseen()
    assert proposal is not None
    assert "Mul_q" not in {finding.node for finding in proposal[1]}
    assert proposals._foreseen() is None  # nothing was tried since
