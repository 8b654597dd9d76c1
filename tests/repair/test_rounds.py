"""A plan with too few pins is widened until it passes, with few pins, and what helps nothing is taken back."""

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, ints, make_model, node, scalar
from onnx import TensorProto
from repair_trials import (
    CONSTANTS,
    FACTORS,
    POLICY,
    RNG,
    TOLERANCE,
    Trial,
    X,
    cancelling,
    chained,
    layers,
    two_halves,
    vanishing,
    worst_of,
)

from overflow_fixer.errors import BackendError, ModelError
from overflow_fixer.records import (
    Artifact,
    Budget,
    Engine,
    Finding,
    PlanPolicy,
    PrecisionPlan,
    Tolerance,
    Typing,
    Verification,
)
from overflow_fixer.repair.attempts import Attempt
from overflow_fixer.repair.foresight import Foreseer, Foresight
from overflow_fixer.repair.rounds import _Search, repair
from overflow_fixer.repair.switchboard import Switchboard


@pytest.mark.parametrize("max_builds", [1, 40])
def test_a_plan_that_passes_is_left_alone(max_builds: int, tmp_path: Path) -> None:
    trial = Trial(tmp_path, [node("MatMul", "x w0", "y")])
    best, rounds = trial.repair(max_builds=max_builds)
    assert trial.spent == ""
    assert best.verification.passed
    assert (rounds, len(trial.built)) == ((), 1)


@pytest.mark.parametrize(
    ("nodes", "pins"),
    [
        ([*cancelling(), node("MatMul", "h0 w1", "y")], {"Add_b0", "Sub_d0"}),
        (
            [
                *cancelling()[:2],
                node("Reshape", "b0 shape", "r"),
                node("Transpose", "r", "t"),
                node("Sub", "t c", "d"),
                node("Tanh", "d", "y"),
            ],
            {"Add_b0", "Reshape_r", "Transpose_t", "Sub_d"},
        ),
        ([*vanishing(), node("Identity", "h0", "y")], {"Mul_c0", "Mul_e0", "Div_h0"}),
        (
            [
                node("MatMul", "x w0", "a"),
                node("Mul", "a k", "p"),
                node("Mul", "a k2", "q"),
                node("Sub", "p q", "d"),
                node("MatMul", "d w1", "y"),
            ],
            {"Mul_p", "Mul_q", "Sub_d"},
        ),
    ],
    ids=["cancellation", "cancellation behind moves", "underflow", "nearly equal"],
)
def test_what_the_rules_do_not_see_is_repaired_with_the_fewest_pins(
    nodes: list[onnx.NodeProto], pins: set[str], tmp_path: Path
) -> None:
    trial = Trial(tmp_path, nodes)
    assert trial.first().plan.pins == ()
    best, rounds = trial.repair()
    assert best.verification.passed
    assert best.plan.pinned == pins
    assert all(finding.rule == "repair" for pin in best.plan.pins for finding in pin.findings)
    assert rounds[0].kept
    assert rounds[0].passed


@pytest.mark.parametrize(
    ("kind", "pinned"),
    [(cancelling, ("Add_b", "Sub_d")), (vanishing, ("Mul_c", "Mul_e", "Div_h"))],
    ids=["cancellation", "underflow"],
)
def test_a_fault_of_every_layer_is_found_at_once(
    kind: Callable[[int, str], list[onnx.NodeProto]], pinned: tuple[str, ...], tmp_path: Path
) -> None:
    """Behind the first fault every tensor is wrong; each layer's own is found all the same."""
    trial = Trial(tmp_path, layers(10, kind))
    best, rounds = trial.repair()
    assert best.verification.passed
    assert rounds[0].passed
    assert best.plan.pinned == {f"{name}{i}" for name in pinned for i in range(10)}


def test_rounds_are_recorded(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [*vanishing(), node("Identity", "h0", "y")])
    best, rounds = trial.repair()
    assert [done.index for done in rounds] == list(range(1, len(rounds) + 1))
    assert len(trial.built) == 1 + len(rounds)
    first = rounds[0]
    assert first.action.startswith("pinned where ")
    assert {"Mul_c0", "Mul_e0", "Div_h0"} <= set(first.added)
    assert (first.threshold, first.passed, first.mismatched, first.kept) == (10000, True, 0, True)
    back = [done for done in rounds[1:] if done.action.startswith("took back ")]
    assert len(back) == len(rounds) - 1 > 0
    assert all(done.kept is done.passed for done in back)
    assert any(done.kept for done in back)
    kept_plans = [plan for plan, done in zip(trial.built[1:], rounds, strict=True) if done.kept]
    assert best.plan == kept_plans[-1]


@pytest.mark.parametrize("max_builds", [1, 2, 3])
def test_a_budget_of_builds_ends_the_repair_and_the_best_is_kept(max_builds: int, tmp_path: Path) -> None:
    trial = Trial(tmp_path, [*vanishing(), node("Identity", "h0", "y")])
    best, rounds = trial.repair(max_builds=max_builds)
    assert len(trial.built) == max_builds == 1 + len(rounds)
    assert best.verification.passed is (max_builds > 1)
    assert trial.spent == ("" if max_builds == 3 else "max_builds")  # the third takes back all that there is


def test_builds_that_an_engine_took_count_in_the_budget(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [*vanishing(), node("Identity", "h0", "y")])

    def thrice(plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        artifact, found = trial.build(plan)
        engine = Engine("8.6", "GPU", (9, 0), "weak", "obey", 1, 1, 0, 0, 0, builds=3)
        return replace(artifact, engine=engine), found

    _, rounds = trial.repair(build=thrice, max_builds=4)
    assert len(rounds) == 1


class _Stubborn(Trial):
    """As an engine of weak types that keeps in FP16 what takes no pin as long as anything is left in FP16."""

    typing: Typing = "weak"

    def build(self, plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        is_first = not self.built
        artifact, found = super().build(plan)
        if is_first:
            self.wrong = found
        engine = Engine("8.6", "GPU", (9, 0), self.typing, "obey", 1, 1, 0, 0, 0)
        is_all = plan.pinned >= set(self.graph.by_label)
        return replace(artifact, engine=engine), found if is_all else self.wrong


@pytest.mark.parametrize("max_rounds", [3, 6])
def test_an_engine_that_is_wrong_with_all_on_the_way_pinned_is_pinned_whole(
    max_rounds: int, tmp_path: Path
) -> None:
    """What does not lead to what fails, too; nothing of it is taken back, for with less it was wrong."""
    deep = itertools.chain(*(cancelling(i, f"h{i - 1}" if i else "x") for i in range(4)))
    trial = _Stubborn(tmp_path, [*deep, node("Tanh", "x", "z")], outputs="h3 z")
    best, rounds = trial.repair(max_rounds)
    assert best.verification.passed
    assert best.plan.pinned == set(trial.graph.by_label)
    assert [found.passed for found in rounds] == [False] * (len(rounds) - 1) + [True]
    leads_there = {name for name in trial.graph.by_label if name != "Tanh_z"}
    assert any(set(found.added) == leads_there for found in rounds)
    assert rounds[-1].action == "pinned all of the model"
    (reason,) = (f.reason for pin in best.plan.pins if pin.node == "Tanh_z" for f in pin.findings)
    assert reason == "h3 was wrong with all pinned that leads to it, as long as anything was left in FP16"


def test_where_the_rounds_end_before_all_of_an_engine_more_may_help(tmp_path: Path) -> None:
    deep = itertools.chain(*(cancelling(i, f"h{i - 1}" if i else "x") for i in range(4)))
    trial = _Stubborn(tmp_path, [*deep, node("Tanh", "x", "z")], outputs="h3 z")
    _, rounds = trial.repair(max_rounds=2)
    assert rounds[-1].action == "pinned all that leads to h3"
    assert trial.spent == "max_rounds"


@pytest.mark.parametrize("why", ["strong types", "excluded", "nothing else", "no round left"])
def test_not_all_of_an_engine_is_pinned(why: str, tmp_path: Path) -> None:
    """Of typed models the rest is in FP16 for itself; and what has to stay in FP16 leaves FP16 in."""
    deep = itertools.chain(*(cancelling(i, f"h{i - 1}" if i else "x") for i in range(4)))
    beside = [] if why == "nothing else" else [node("Tanh", "x", "z"), node("Sigmoid", "x", "s")]
    policy = replace(POLICY, exclude_nodes=("Tanh_z",)) if why == "excluded" else POLICY
    outputs = "h3" if why == "nothing else" else "h3 z s"
    trial = _Stubborn(tmp_path, [*deep, *beside], outputs=outputs, policy=policy)
    trial.typing = "strong" if why == "strong types" else "weak"
    _, rounds = trial.repair(max_rounds=1 if why == "no round left" else 3)
    leads_there = [found.action for found in rounds if found.action == "pinned all that leads to h3"]
    assert len(leads_there) == (why != "no round left")
    assert not any("all of the model" in found.action for found in rounds)
    assert trial.spent == ("max_rounds" if why == "no round left" else "")


def test_no_round_is_kept_for_all_of_an_engine_of_which_all_leads_to_what_fails(tmp_path: Path) -> None:
    deep = itertools.chain(*(cancelling(i, f"h{i - 1}" if i else "x") for i in range(4)))
    _, rounds = _Stubborn(tmp_path, [*deep], outputs="h3").repair(max_rounds=4)
    assert [found.action == "pinned all that leads to h3" for found in rounds[:4]] == [False] * 3 + [True]


class _InTf32(Trial):
    """As an engine whose pinned products are as wrong in TF32 as they were in FP16."""

    kernels: tuple[bool, int, int] = (True, 2, 0)
    """Whether TF32 is allowed, how many layers are seen in it, and how many show nothing."""

    def build(self, plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        is_first = not self.built
        artifact, found = super().build(plan)
        if is_first:
            self.wrong = found
        allowed, seen, opaque = self.kernels
        tf32 = allowed and plan.tf32
        engine = Engine("8.6", "GPU", (9, 0), "weak", "obey", 1, 1, 0, 0, opaque, tf32=tf32, tf32_layers=seen)
        return replace(artifact, engine=engine), found if not plan.tf32 else self.wrong


@pytest.mark.parametrize("kernels", [(True, 2, 0), (True, 0, 1)], ids=["seen", "hidden"])
def test_an_engine_that_is_wrong_where_simulated_pins_suffice_is_built_without_tf32(
    kernels: tuple[bool, int, int], tmp_path: Path
) -> None:
    trial = _InTf32(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])
    trial.kernels = kernels
    best, rounds = trial.repair()
    assert best.verification.passed
    assert not best.plan.tf32
    assert best.plan.pinned == {"Add_b0", "Sub_d0"}
    pinned, forbade, *narrower = rounds
    assert pinned.action.startswith("pinned where ")
    assert (pinned.kept, pinned.passed) == (False, False)
    assert forbade.action == "forbade TF32, of which products have as few bits as of FP16"
    assert set(forbade.added) == set(pinned.added)
    assert (forbade.kept, forbade.passed) == (True, True)
    assert all(found.action.startswith("took back ") for found in narrower)
    assert [plan.tf32 for plan in trial.built] == [True, True] + [False] * (1 + len(narrower))


@pytest.mark.parametrize(
    "kernels", [(False, 2, 1), (True, 0, 0)], ids=["forbidden by the settings", "none in TF32"]
)
def test_an_engine_without_tf32_is_not_built_without_it_again(
    kernels: tuple[bool, int, int], tmp_path: Path
) -> None:
    trial = _InTf32(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])
    trial.kernels = kernels
    best, rounds = trial.repair()
    assert not best.verification.passed
    assert rounds
    assert all(plan.tf32 for plan in trial.built)


class _WrongWithoutTf32(_InTf32):
    """As an engine that is wrong for another reason."""

    def build(self, plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        return super().build(plan)[0], self.wrong


def test_tf32_is_allowed_again_where_it_was_not_to_blame(tmp_path: Path) -> None:
    """And is blamed once more where nothing is left in FP16."""
    trial = _WrongWithoutTf32(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])
    best, rounds = trial.repair()
    assert best.plan.tf32
    assert [found.kept for found in rounds if found.action.startswith("forbade")] == [False, False]
    tf32 = [plan.tf32 for plan in trial.built]
    assert tf32.count(False) == 2
    assert not tf32[-1]
    assert trial.built[-1].pinned == set(trial.graph.by_label)


class _StubbornInTf32(_InTf32):
    """As an engine that is wrong in FP16 whatever is pinned beside it, and in FP32 by TF32."""

    def build(self, plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        artifact, found = super().build(plan)
        return artifact, found if plan.pinned >= set(self.graph.by_label) else self.wrong


@pytest.mark.parametrize("max_rounds", [3, 6, 12])
def test_tf32_is_blamed_again_once_nothing_is_in_fp16(max_rounds: int, tmp_path: Path) -> None:
    """The engine without both is known to be right, and was the one that was never built."""
    trial = _StubbornInTf32(tmp_path, [*cancelling(), node("Tanh", "x", "z")], outputs="h0 z")
    best, rounds = trial.repair(max_rounds)
    assert best.verification.passed
    assert best.plan.pinned == set(trial.graph.by_label)
    forbade = [found.passed for found in rounds if found.action.startswith("forbade")]
    assert forbade == [False, True]
    passed = [found.passed for found in rounds].index(True)
    assert passed + 1 - len(forbade) <= max_rounds
    assert trial.spent == ""


@pytest.mark.parametrize("max_rounds", [0, 1])
def test_to_forbid_tf32_takes_no_round_of_the_budget(max_rounds: int, tmp_path: Path) -> None:
    trial = _InTf32(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])
    best, rounds = trial.repair(max_rounds)
    assert best.verification.passed is (max_rounds == 1)
    assert [found.action.startswith("forbade") for found in rounds[:2]] == [False, True][: 2 * max_rounds]
    assert trial.spent == ""


def test_without_a_round_tf32_is_not_forbidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Search, "_is_foreseen_to_pass", lambda *_: True)
    trial = _InTf32(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])
    _, rounds = trial.repair(max_rounds=0)
    assert rounds == ()


def test_what_ended_with_its_last_round_was_not_ended_by_its_builds(tmp_path: Path) -> None:
    trial = _Stubborn(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])
    _, rounds = trial.repair(max_rounds=1, max_builds=2)
    assert len(rounds) == 1
    assert trial.spent == "max_rounds"


def test_to_forbid_tf32_takes_a_build_of_the_budget(tmp_path: Path) -> None:
    trial = _InTf32(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])
    _, rounds = trial.repair(1, max_builds=2)
    assert len(rounds) == 1
    assert trial.spent == "max_builds"


def test_an_engine_that_cannot_be_built_without_tf32_is_tried_once(tmp_path: Path) -> None:
    trial = _InTf32(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])

    def refuse(plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        if not plan.tf32:
            raise BackendError("no kernel. Expected one.")
        return trial.build(plan)

    _, rounds = trial.repair(build=refuse)
    failed = [set(found.added) for found in rounds if found.action.startswith("forbade")]
    assert failed == [{"Add_b0", "Sub_d0"}, set(trial.graph.by_label)]
    assert all(found.action.endswith(": no kernel") for found in rounds if found.action.startswith("forbade"))


def test_tf32_is_not_blamed_while_the_pins_are_foreseen_not_to_suffice(tmp_path: Path) -> None:
    trial = _InTf32(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])
    search = _search(trial)
    assert not search._blames_tf32()
    assert not search.blamed_tf32


def test_tf32_of_what_cannot_be_foreseen_is_blamed_behind_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Foreseer, "foresee", lambda *_: None)
    trial = _InTf32(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])
    _, rounds = trial.repair()
    assert [found.action.startswith("forbade") for found in rounds[:2]] == [False, True]


def test_tf32_is_not_blamed_where_memory_ends_while_foreseeing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*_: object) -> bool:
        raise ModelError("bad allocation")

    monkeypatch.setattr(Foresight, "is_bearable", run_out)
    trial = _InTf32(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])
    _, rounds = trial.repair()
    forbade = [set(found.added) for found in rounds if found.action.startswith("forbade")]
    assert forbade == [set(trial.graph.by_label)]


def test_tf32_is_not_blamed_for_what_is_not_finite(tmp_path: Path) -> None:
    """It reaches as far as FP32."""
    trial = _InTf32(tmp_path, [*vanishing(), node("Identity", "h0", "y")])
    trial.repair()
    assert all(plan.tf32 for plan in trial.built)


class _Hopeless(_Stubborn):
    """As an engine that is wrong in FP32, too."""

    def build(self, plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        return super().build(plan)[0], self.wrong


def test_behind_all_of_an_engine_nothing_is_left_to_try(tmp_path: Path) -> None:
    deep = itertools.chain(*(cancelling(i, f"h{i - 1}" if i else "x") for i in range(4)))
    trial = _Hopeless(tmp_path, [*deep, node("Tanh", "x", "z")], outputs="h3 z")
    _, rounds = trial.repair(max_rounds=3)
    assert rounds[-1].action == "pinned all of the model"
    assert not rounds[-1].kept
    assert trial.spent == ""


def test_a_plan_that_cannot_be_built_is_a_round_that_did_not_help(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [*vanishing(), node("Identity", "h0", "y")])
    asked: list[PrecisionPlan] = []

    def build(plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        asked.append(plan)
        if len(asked) == 1:
            raise BackendError("No kernel for it. Expected one. Do without.")
        return trial.build(plan)

    best, rounds = trial.repair(build=build)
    assert rounds[0].action.endswith(": No kernel for it")
    assert (rounds[0].passed, rounds[0].kept, len(rounds[0].added) > 0) == (False, False, True)
    assert best.verification.passed is any(found.kept for found in rounds)


def test_a_budget_of_minutes_ends_the_repair(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [*vanishing(), node("Identity", "h0", "y")])
    best, rounds = trial.repair(max_minutes=1e-9)
    assert (rounds, trial.spent) == ((), "max_minutes")
    assert not best.verification.passed


@pytest.mark.parametrize("max_rounds", [0, 1, 2, 3])
def test_there_are_at_most_so_many_rounds_of_widening(max_rounds: int, tmp_path: Path) -> None:
    """What does not pass is not narrowed either."""
    policy = PlanPolicy(exclude_nodes=("Add_b0",))
    trial = Trial(tmp_path, layers(2, cancelling), policy=policy)
    best, rounds = trial.repair(max_rounds)
    assert (len(rounds), trial.spent) == (
        max_rounds,
        "max_rounds" if max_rounds == 1 else "",
    )  # later ones pin all
    assert not best.verification.passed


def test_the_best_attempt_is_returned_when_nothing_passes(tmp_path: Path) -> None:
    """The fault of the first output is mended, that of the second is out of reach."""
    policy = PlanPolicy(exclude_nodes=("Add_b1",))
    nodes = [*cancelling(0, "x"), *cancelling(1, "x"), node("Neg", "h0", "y"), node("Neg", "h1", "z")]
    trial = Trial(tmp_path, nodes, outputs="y z", policy=policy)
    best, rounds = trial.repair()
    assert [verdict.passed for verdict in best.verification.outputs] == [True, False]
    assert {"Add_b0", "Sub_d0"} <= best.plan.pinned
    assert rounds[0].kept
    assert not any(done.passed for done in rounds)


def test_nan_of_the_reference_alone_stops_at_once(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w0", "a"), node("Log", "a", "b"), node("Neg", "b", "y")]
    trial = Trial(tmp_path, nodes)
    best, rounds = trial.repair()
    assert (best.verification.passed, rounds) == (False, ())


def test_what_can_be_mended_beside_nan_of_the_reference_is(tmp_path: Path) -> None:
    nodes = [*cancelling(), node("Log", "d0", "y"), node("MatMul", "d0 w1", "z")]
    trial = Trial(tmp_path, nodes, outputs="y z")
    best, rounds = trial.repair()
    assert rounds
    assert not best.verification.passed
    verdicts = {verdict.error.tensor: verdict for verdict in best.verification.outputs}
    assert verdicts["z"].passed
    assert verdicts["y"].error.mismatched == verdicts["y"].error.reference_nan


def test_excluded_nodes_are_not_pinned(tmp_path: Path) -> None:
    policy = PlanPolicy(exclude_nodes=("Add_b0",))
    trial = Trial(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")], policy=policy)
    best, rounds = trial.repair()
    assert not best.verification.passed
    assert rounds
    assert all("Add_b0" not in plan.pinned for plan in trial.built)


def test_what_does_not_lead_to_a_failing_output_is_left_alone(tmp_path: Path) -> None:
    nodes = [*cancelling(0, "x"), *cancelling(1, "x"), node("Neg", "h0", "y"), node("Neg", "h1", "z")]
    tolerance = Tolerance(per_output={"z": -100.0})
    best, _ = Trial(tmp_path, nodes, outputs="y z", tolerance=tolerance).repair()
    assert best.verification.passed
    assert best.plan.pinned == {"Add_b0", "Sub_d0"}


def test_every_plan_tried_is_another(tmp_path: Path) -> None:
    policy = PlanPolicy(exclude_nodes=("Add_b0",))
    trial = Trial(tmp_path, layers(3, cancelling), policy=policy)
    _, rounds = trial.repair(8)
    pinned = [plan.pinned for plan in trial.built]
    assert len(set(pinned)) == len(pinned)
    assert any(done.action.startswith("lowered the threshold to ") for done in rounds)


def test_a_lower_threshold_widens_what_the_rules_pin(tmp_path: Path) -> None:
    """With one round there is no room for it; with the nodes themselves out of reach it comes next."""
    trial = Trial(tmp_path, [*cancelling(), node("Identity", "h0", "y")])

    def blind(plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        artifact, found = trial.build(plan)
        return replace(artifact, fp16_nodes=()), replace(found, trace=())

    first = trial.first()
    first = replace(
        first,
        artifact=replace(first.artifact, fp16_nodes=()),
        verification=replace(first.verification, trace=()),
    )
    best, rounds, _ = repair(
        trial.graph, trial.ranges, trial.batches, trial.policy, first, blind, TOLERANCE, Budget(4)
    )
    assert rounds[0].action == "lowered the threshold to 1000"
    assert rounds[0].threshold == 1000
    assert best.verification.passed
    assert best.plan.pinned == {"Add_b0", "Sub_d0"}
    assert best.plan.threshold == 10000
    pattern = r"over the threshold of 1000 \(.*\), lowered in repair from 10000$"
    for pin in best.plan.pins:
        assert any(re.search(pattern, finding.reason) for finding in pin.findings)


def _untyped(trial: Trial) -> tuple[Attempt, Callable[[PrecisionPlan], tuple[Artifact, Verification]]]:
    """The first attempt of a backend whose types are not known, and how it builds."""

    def build(plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        artifact, found = trial.build(plan)
        return replace(artifact, fp16_nodes=()), found

    first = trial.first()
    return replace(first, artifact=replace(first.artifact, fp16_nodes=())), build


def test_without_the_losses_the_trace_leads_there(tmp_path: Path) -> None:
    """A backend whose types are not known: the tensors behind which things get worse still tell."""
    nodes = [
        *cancelling()[:2],
        node("Reshape", "b0 shape", "r"),
        node("Sub", "r c", "d"),
        node("Tanh", "d", "y"),
    ]
    trial = Trial(tmp_path, nodes)
    first, build = _untyped(trial)
    best, rounds, _ = repair(
        trial.graph, trial.ranges, trial.batches, trial.policy, first, build, TOLERANCE, Budget(6)
    )
    assert rounds[0].action == "pinned the neighbourhood of Sub_d"
    assert best.verification.passed
    assert {"Add_b0", "Reshape_r", "Sub_d"} <= best.plan.pinned


def test_nodes_of_more_than_a_twentieth_of_the_flops_are_taken_back_first(tmp_path: Path) -> None:
    """Of the columns that are computed, 892 + 8 + 52 + 48 = 1000, the pinned products have 5.2 % and 4.8 %."""
    nodes = [
        *cancelling()[:3],
        node("MatMul", "d0 w52", "y"),
        node("MatMul", "d0 w48", "z"),
        node("MatMul", "x w892", "o"),
    ]
    drawn = {f"w{n}": RNG.normal(size=(8, n)).astype(np.float32) for n in (892, 52, 48)}
    trial = Trial(tmp_path, nodes, {**CONSTANTS, **drawn}, "y z o")
    first, build = _untyped(trial)
    best, rounds, _ = repair(
        trial.graph, trial.ranges, trial.batches, trial.policy, first, build, TOLERANCE, Budget(6)
    )
    assert set(rounds[0].added) == {"Add_b0", "Sub_d0", "MatMul_y", "MatMul_z"}
    assert (rounds[1].action, rounds[1].kept) == ("took back MatMul_y", True)
    assert best.plan.pinned == {"Add_b0", "Sub_d0"}


def test_a_pin_that_makes_things_worse_is_not_kept(tmp_path: Path) -> None:
    """As an engine may do: with Sub_d0 in FP32 this backend gives something else altogether."""
    trial = Trial(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])

    def spoiling(plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        artifact, found = trial.build(plan)
        if "Sub_d0" not in plan.pinned:
            return artifact, found
        (verdict,) = found.outputs
        error = replace(verdict.error, snr_db=-9.0, worst_batch_snr_db=-9.0)
        return artifact, replace(found, outputs=(replace(verdict, error=error, passed=False),))

    first = trial.first()
    best, rounds = trial.repair(build=spoiling)
    assert rounds
    assert "Sub_d0" in rounds[0].added
    assert all(not done.kept for done in rounds if "Sub_d0" in done.added)
    assert "Sub_d0" not in best.plan.pinned
    assert best.worst_snr_db >= first.worst_snr_db


def _refuse(*arguments: Any) -> None:
    raise ModelError("this model cannot be tried")


def test_what_is_needed_is_not_left_out_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three nodes the third is a half, and in the end one of three."""
    monkeypatch.setattr("overflow_fixer.repair.foresight.Switchboard", _refuse)
    trial = Trial(tmp_path, [*vanishing(), node("Identity", "h0", "y")])
    best, rounds = trial.repair()
    assert best.plan.pinned == {"Mul_c0", "Mul_e0", "Div_h0"}
    assert [done.action for done in rounds if done.action == "took back Div_h0"] == ["took back Div_h0"]
    pinned = [plan.pinned for plan in trial.built]
    assert len(set(pinned)) == len(pinned)


def test_a_costly_node_that_is_needed_is_not_left_out_again_where_fewer_are_left(tmp_path: Path) -> None:
    """It alone is tried first, beside three others, and would be again in the end, beside one."""
    search = _search(Trial(tmp_path, [*cancelling(), node("Neg", "h0", "y")]))
    (verdict,) = search.first.verification.outputs

    def build(plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        passed = "MatMul_a0" in plan.pinned
        found = replace(search.first.verification, outputs=(replace(verdict, passed=passed),))
        return search.first.artifact, found

    search.build = build
    blamed = {"Neg_y": 50.0, "Tanh_h0": 40.0, "MatMul_a0": 20.0, "Sub_d0": 10.0}
    findings = (Finding("repair", label, "", snr_db, 30.0, "") for label, snr_db in blamed.items())
    assert search._try(tuple(findings), "all")
    search._take_back()
    assert search.best.plan.pinned == {"MatMul_a0"}
    tried = [(done.action, done.kept) for done in search.rounds[1:]]
    assert tried == [
        ("took back MatMul_a0", False),
        ("took back Neg_y, Tanh_h0", True),
        ("took back Sub_d0", True),
    ]


def test_of_two_plans_that_pass_alike_the_one_with_fewer_pins_is_kept(tmp_path: Path) -> None:
    trial = Trial(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")])
    search = _Search(
        trial.graph,
        trial.ranges,
        trial.batches,
        trial.policy,
        trial.first(),
        trial.build,
        TOLERANCE,
        Budget(6),
        lambda artifact: None,
    )
    search.widen()
    best, findings = search.best, search.findings
    search.build = lambda plan: (best.artifact, best.verification)
    more = (*findings, replace(findings[0], node="MatMul_a0"))
    assert not search._try(more, "pinned one more")
    assert search.best is best
    assert search._try(findings[:-1], "took back one")
    assert search.best.plan.pinned < best.plan.pinned
    assert [done.passed for done in search.rounds] == [True] * 3


def test_pins_of_the_rules_are_never_taken_back(tmp_path: Path) -> None:
    policy = PlanPolicy(include_nodes=("MatMul_a0",))
    trial = Trial(tmp_path, [*cancelling(), node("MatMul", "h0 w1", "y")], policy=policy)
    best, _ = trial.repair()
    assert best.plan.pinned == {"MatMul_a0", "Add_b0", "Sub_d0"}


def test_what_only_the_outputs_show_is_found_by_trying(tmp_path: Path) -> None:
    """The product of three steps is 363 and loses 2^-11 of it in each; the difference is 1."""
    trial = Trial(tmp_path, chained(), {**CONSTANTS, **FACTORS})
    worst = int((trial.first().verification.outputs[0].error.worst_batch or "")[-1])
    best, rounds = trial.repair()
    assert best.verification.passed
    assert best.plan.pinned == {"Mul_p", "Mul_q", "Mul_r", "Mul_s", "Sub_d"}
    assert [(done.passed, done.kept) for done in rounds] == [(False, False), (True, True)]
    assert rounds[1].action.endswith(", which the outputs do not bear in FP16")
    found = [
        finding for pin in best.plan.pins for finding in pin.findings if "while all else" in finding.reason
    ]
    assert found
    for finding in found:
        share, unit = finding.reason.rpartition("takes ")[2].split()[:2]
        times = float(share) / {"times": 1, "%": 100}[unit]
        assert finding.value == pytest.approx(30 - 10 * math.log10(times), abs=0.03)
        assert finding.value == pytest.approx(_snr_alone(X[worst]["x"], finding.node), abs=0.03)


def _snr_alone(x: np.ndarray, label: str) -> float:
    """Of y, with that node alone in FP16: by numpy."""
    right, found = _run_chained(x, ""), _run_chained(x, label[-1])
    return 10 * math.log10((right**2).sum() / ((right - found) ** 2).sum())


def _run_chained(x: np.ndarray, half: str) -> np.ndarray:
    def rounded(value: np.ndarray, writer: str) -> np.ndarray:
        return value.astype(np.float16).astype(np.float32) if writer == half else value

    values = {"x": x, **{name: (CONSTANTS | FACTORS)[name] for name in ("k", "ka", "kb", "all")}}
    for name, one, other in (("p", "x", "k"), ("q", "p", "ka"), ("r", "q", "kb"), ("s", "x", "all")):
        values[name] = rounded(rounded(values[one], name) * rounded(values[other], name), name)
    difference = rounded(rounded(values["r"], "d") - rounded(values["s"], "d"), "d")
    return np.asarray(difference @ CONSTANTS["w1"], np.float64)


def test_a_plan_that_regions_make_of_other_findings_is_not_built_again(tmp_path: Path) -> None:
    """A softmax is pinned as a whole, at thresholds of 100 and 10 alike."""
    nodes = [
        node("Mul", "x k", "m"),
        node("ReduceMax", "m", "most", axes=[1], keepdims=1),
        node("Sub", "m most", "less"),
        node("Exp", "less", "e"),
        node("ReduceSum", "e one_axis", "total", keepdims=1),
        node("Div", "e total", "share"),
        node("MatMul", "share w1", "y"),
    ]
    trial = Trial(tmp_path, nodes, {**CONSTANTS, "one_axis": ints(1)}, tolerance=Tolerance(min_snr_db=500.0))
    first, build = _untyped(trial)
    repair(trial.graph, trial.ranges, trial.batches, trial.policy, first, build, trial.tolerance, Budget(6))
    built = [plan.pinned for plan in trial.built]
    assert len(set(built)) == len(built) > 3


def misplacing() -> list[onnx.NodeProto]:
    """Row 9999 / 2 of a table of 5000: rounded on the way, it is row 5000, which is not there."""
    return [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Mul", "s zero", "n"),
        node("Add", "n odd", "a"),
        node("Div", "a two", "d"),
        node("Floor", "d", "f"),
        node("Cast", "f", "i", to=TensorProto.INT64),
        node("Gather", "table i", "g"),
        node("MatMul", "g w1", "y"),
    ]


@pytest.mark.parametrize("is_foreseen", [True, False])
def test_a_plan_that_cannot_be_run_is_repaired_and_costly_nodes_are_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_foreseen: bool
) -> None:
    """Nodes that are needed stand between, among the milder ones."""
    if not is_foreseen:
        monkeypatch.setattr("overflow_fixer.repair.foresight.Switchboard", _refuse)
    table = RNG.normal(size=(5000, 8)).astype(np.float32)
    trial = Trial(
        tmp_path,
        misplacing(),
        {**CONSTANTS, "zero": scalar(0), "odd": scalar(9999), "two": scalar(2), "table": table},
    )
    assert "Gather_g" in trial.first().verification.outputs[0].reason
    best, rounds = trial.repair()
    assert best.verification.passed
    assert best.plan.pinned == {"Add_a", "Div_d", "Floor_f"}
    reasons = {finding.reason.partition(":")[0] for pin in best.plan.pins for finding in pin.findings}
    if is_foreseen:
        assert reasons == {
            f"in FP16 while all else is in FP32 {name} leaves no match in y" for name in best.plan.pinned
        }
        assert {f.value for pin in best.plan.pins for f in pin.findings} == {-math.inf}
        assert len(rounds) == 1  # none loses by itself, so the outputs are asked at once
        return
    assert reasons == {"g goes wrong", "f gets worse"}
    back = [(done.action, done.kept) for done in rounds if done.action.startswith("took back ")]
    assert back[0] == ("took back MatMul_y", True)
    assert len(set(back)) == len(back) == 6


def test_the_plan_that_fell_short_is_not_built_again_to_take_the_last_pin_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row 2999.7 of a table of 3000 is row 3000 in FP16."""
    monkeypatch.setattr("overflow_fixer.repair.foresight.Switchboard", _refuse)
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Mul", "s zero", "n"),
        node("Add", "n last", "a"),
        node("Cast", "a", "i", to=TensorProto.INT64),
        node("Gather", "table i", "g"),
        node("Mul", "g two", "y"),
    ]
    table = RNG.normal(size=(3000, 8)).astype(np.float32)
    constants = {"zero": scalar(0), "last": scalar(2999.7), "two": scalar(2), "table": table}
    trial = Trial(tmp_path, nodes, constants)
    best, rounds = trial.repair(max_rounds=12)
    assert best.plan.pinned == {"Add_a"}
    assert any(done.action.startswith("took back ") for done in rounds)
    first, *others = (plan.pinned for plan in trial.built)
    assert first not in others


# ---------------------------------------------------------------- the search


def _search(trial: Trial) -> _Search:
    return _Search(
        trial.graph,
        trial.ranges,
        trial.batches,
        trial.policy,
        trial.first(),
        trial.build,
        trial.tolerance,
        Budget(6),
        lambda artifact: None,
    )


def chaotic(i: int, source: str) -> list[onnx.NodeProto]:
    """The sine of some thousand radians: rounding in any of ten factors before it decides what comes out."""
    names = [source, *(f"f{i}_{j}" for j in range(10))]
    factors = [node("Mul", f"{one} near", other) for one, other in itertools.pairwise(names)]
    return [*factors, node("Mul", f"{names[-1]} k", f"s{i}"), node("Sin", f"s{i}", f"h{i}")]


@pytest.fixture
def blind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time to ask the outputs."""
    monkeypatch.setattr("overflow_fixer.repair.foresight._SHARE_OF_TIME", -1.0)


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("stages", [1, 2])
def test_where_rounding_anywhere_before_decides_all_before_is_pinned(stages: int, tmp_path: Path) -> None:
    """First all before the first wrong tensor, which is enough where there is one such stage, then before the output."""
    nodes = [*chaotic(0, "x"), *(chaotic(1, "h0") if stages == 2 else [])]
    nodes += [node("Relu", f"h{stages - 1}", "r"), node("Neg", "r", "y")]
    trial = Trial(tmp_path, nodes, {"near": scalar(1.0001), "k": scalar(3000)})
    best, rounds = trial.repair(max_rounds=4)
    widened = rounds[:4]
    assert [done.passed for done in widened] == [False] * (len(widened) - 1) + [True]
    all_before = [done.action for done in widened if "all that leads to" in done.action]
    assert all_before == ["pinned all that leads to h0", "pinned all that leads to y"][:stages]
    assert best.verification.passed
    needed = {item.name for item in nodes if item.op_type not in ("Relu", "Neg")}
    assert best.plan.pinned == needed if stages == 1 else best.plan.pinned > needed
    reasons = {finding.reason for pin in best.plan.pins for finding in pin.findings}
    assert any(
        reason.startswith(
            f"leads to {all_before[-1].split()[-1]}, which narrower plans tried before had left wrong"
        )
        for reason in reasons
    )


@pytest.mark.usefixtures("blind")
@pytest.mark.parametrize("max_rounds", [1, 2, 3])
def test_all_is_pinned_in_no_first_round_and_in_the_last(max_rounds: int, tmp_path: Path) -> None:
    nodes = [*chaotic(0, "x"), node("Relu", "h0", "y")]
    trial = Trial(tmp_path, nodes, {"near": scalar(1.0001), "k": scalar(3000)})
    best, rounds = trial.repair(max_rounds)
    assert "all that leads to" not in rounds[0].action
    assert best.verification.passed is (max_rounds > 1)


def test_the_first_artifact_is_not_discarded(tmp_path: Path) -> None:
    trial = Trial(tmp_path, layers(3, cancelling))
    first = trial.first()
    lost: list[Artifact] = []
    best, rounds, _ = repair(
        trial.graph,
        trial.ranges,
        trial.batches,
        trial.policy,
        first,
        trial.build,
        trial.tolerance,
        Budget(6),
        lost.append,
    )
    assert rounds[0].kept
    assert first.artifact not in lost
    assert best.artifact not in lost
    assert len(lost) == len(rounds) - 1


def test_builds_that_fail_count_in_the_budget(tmp_path: Path) -> None:
    trial = Trial(tmp_path, layers(3, cancelling))

    def fail(plan: PrecisionPlan) -> tuple[Artifact, Verification]:
        raise BackendError("no kernel. Expected one.")

    _, rounds = trial.repair(6, build=fail, max_builds=3)
    assert len(rounds) == 2  # and the first, which was built before


def test_the_mildest_come_first_each_by_its_worst(tmp_path: Path) -> None:
    """Of two that are as bad, the one that hands on what is lost, and not the one that loses it."""
    search = _search(Trial(tmp_path, [*cancelling(), node("Neg", "h0", "y")]))
    blamed = [("Sub_d0", 20.0), ("Add_b0", 20.0), ("MatMul_a0", 30.0), ("MatMul_a0", 50.0), ("Tanh_h0", 40.0)]
    search.findings = tuple(Finding("repair", label, "d0", snr_db, 60.0, "") for label, snr_db in blamed)
    assert search._mildest_first() == ["Tanh_h0", "MatMul_a0", "Add_b0", "Sub_d0"]
    lowered = Finding("threshold", "Neg_y", "h0", 1e9, 1.0, "")
    search.findings = (*search.findings, lowered)
    assert search._mildest_first()[0] == "Neg_y"


def test_pins_are_taken_back_beside_a_batch_that_is_quiet(tmp_path: Path) -> None:
    """4096 spoils every batch; 4 spoils one that is quiet, which passes all the same, for it is judged as if it were louder."""
    nodes = [*two_halves(4096, 4)[:2], node("Sub", "a c4096", "d"), *two_halves(4096, 4)[3:]]
    nodes.append(node("Concat", "d z", "y", axis=1))
    trial = Trial(tmp_path, nodes, {"c4096": scalar(4096), "c4": scalar(4)})
    quiet = np.concatenate([np.zeros((4, 4), np.float32), 0.02 * X[0]["x"][:, 4:]], axis=1)
    trial.batches = InMemoryCalibration((*X, {"x": quiet}))
    assert trial.first().verification.outputs[0].error.quiet_batch == "batch_2"
    search = _search(trial)
    everything = [node.label for node in trial.graph.nodes]
    findings = tuple(Finding("repair", label, "", 0.0, 30.0, "") for label in everything)
    assert search._try(findings, "all")
    search.narrow()
    assert search.best.plan.pinned == {"Add_a", "Sub_d"}
    assert len(search.rounds) == 2


def test_nothing_is_foreseen_where_another_batch_is_foreseen_not_to_pass_at_all(tmp_path: Path) -> None:
    """Of an engine, say, which passes on it all the same: then pins are taken back by trying."""
    nodes = [*two_halves(8192, 4096)[:2], node("Sub", "a c8192", "d"), *two_halves(8192, 4096)[3:]]
    nodes.append(node("Concat", "d z", "y", axis=1))
    trial = Trial(tmp_path, nodes, {"c8192": scalar(8192), "c4096": scalar(4096)})
    left, right = X[0]["x"].copy(), X[1]["x"].copy()
    left[:, 4:], right[:, :4] = 0, 0
    trial.batches = InMemoryCalibration(({"x": left}, {"x": right}))
    search = _search(trial)
    assert worst_of(search.first) == "batch_0"
    search.findings = tuple(
        Finding("repair", label, "", 0.0, 30.0, "") for label in ("Add_a", "Sub_d", "Split_u")
    )
    assert search._find_needed() is None
    assert not search._leave_out()


@pytest.mark.parametrize("stage", ["_foreseen", "_leave_out"])
def test_where_memory_runs_out_on_another_batch_nothing_is_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    trial = Trial(tmp_path, chained(), {**CONSTANTS, **FACTORS})
    search = _search(trial)
    if stage == "_leave_out":
        pinned = tuple(Finding("repair", label, "", 0.0, 30.0, "") for label in trial.graph.by_label)
        assert search._try(pinned, "all")
    worst, run = worst_of(search.first), Switchboard.run

    def run_out(board: Switchboard, batch: Any, in_fp16: Any = ()) -> Any:
        if batch.name != worst:
            raise ModelError("memory ran out")
        return run(board, batch, in_fp16)

    monkeypatch.setattr(Switchboard, "run", run_out)
    find = search._leave_out if stage == "_leave_out" else search.proposals._foreseen
    assert not find()


def test_where_the_first_plan_is_foreseen_to_pass_trying_tells_what_is_needed(tmp_path: Path) -> None:
    """An engine can be worse than what is foreseen."""
    search = _search(Trial(tmp_path, [node("Neg", "x", "n"), node("Mul", "n k", "y")]))
    search.findings = (Finding("repair", "Neg_n", "", 0.0, 30.0, ""),)
    assert search._find_needed() is None


@pytest.mark.parametrize("is_engine", [False, True])
def test_of_an_engine_pins_are_taken_back_by_trying_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_engine: bool
) -> None:
    search = _search(Trial(tmp_path, [node("Neg", "x", "y")]))
    engine = Engine("8.6", "GPU", (9, 0), "weak", "obey", 1, 1, 0, 0, 0, builds=1) if is_engine else None
    search.best = replace(search.first, artifact=replace(search.first.artifact, engine=engine))
    search.findings = (Finding("repair", "Neg_y", "", 0.0, 30.0, ""),)
    called: list[str] = []
    monkeypatch.setattr(search, "_leave_out", lambda: True)
    monkeypatch.setattr(search, "_take_back", lambda: called.append("took back"))
    search.narrow()
    assert bool(called) == is_engine


def test_the_plan_does_not_hang_on_the_order_of_hashes(tmp_path: Path) -> None:
    """Of seven layers alike, each of a good share of the FLOPs, the outputs bear some in FP16, whichever are taken back first."""
    rng = np.random.default_rng(2)
    layers = [(f"t{at}", rng.normal(0, 3 / 8, (64, 64)).astype(np.float32)) for at in range(8)]
    nodes = [
        one
        for (read, _), (written, _) in itertools.pairwise(layers)
        for one in (node("MatMul", f"{read} w{written}", f"m{written}"), node("Tanh", f"m{written}", written))
    ]
    weights = {f"w{name}": value for name, value in layers}
    onnx.save(make_model(nodes, {"t0": [None, 64]}, "t7", weights), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", rng.normal(size=(60, 64)).astype(np.float32))
    plans = [_plan_with_hashes(tmp_path, seed) for seed in "01"]
    assert b'"repair"' in plans[0]
    assert len(set(plans)) == 1


def _plan_with_hashes(folder: Path, seed: str) -> bytes:
    out = folder / f"out{seed}"
    command = [sys.executable, "-m", "overflow_fixer", "m.onnx", "--calib", "x.npy", "--min-snr-db", "46"]
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    subprocess.run([*command, "--out", out, "--quiet"], cwd=folder, env=environment, check=True)
    return (out / "plan.json").read_bytes()
