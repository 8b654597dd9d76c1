"""A plan widened, round by round, until the artifact passes; what helped nothing is taken back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from overflow_fixer.errors import BackendError, ModelError
from overflow_fixer.flops import count_flops
from overflow_fixer.graph.model import Graph
from overflow_fixer.planning.plan import add_pins
from overflow_fixer.plurals import name_few
from overflow_fixer.progress import Progress, silent
from overflow_fixer.records import (
    Artifact,
    Batch,
    Budget,
    Clamp,
    Finding,
    PlanPolicy,
    PrecisionPlan,
    RangeTable,
    RepairRound,
    Tolerance,
    Verification,
)
from overflow_fixer.repair.attempts import Attempt, is_better, is_hopeless, may_lose_by_tf32
from overflow_fixer.repair.foresight import Foreseer
from overflow_fixer.repair.proposals import RULE, Proposals

Build = Callable[[PrecisionPlan], tuple[Artifact, Verification]]
"""Builds the plan's artifact and verifies it; a failing verification comes with its trace."""

Discard = Callable[[Artifact], None]
"""Told of an artifact that was built and is not needed any more."""

_Key = tuple[frozenset[str], tuple[Clamp, ...], bool]

_COSTLY_SHARE = 0.05
_FORBADE_TF32 = "forbade TF32, of which products have as few bits as of FP16"


def repair(
    graph: Graph,
    ranges: RangeTable,
    batches: Iterable[Batch],
    policy: PlanPolicy,
    first: Attempt,
    build: Build,
    tolerance: Tolerance,
    budget: Budget,
    discard: Discard = lambda artifact: None,
    progress: Progress = silent,
) -> Repaired:
    """Widen the plan of `first` within a budget; returns the best attempt, every round, and what ended it.

    What each round pins is told in proposals; one may forbid an engine TF32 instead. A round that does not help is taken back.
    Once an attempt passes, pins of the repair that are foreseen not to be needed are taken back; where that is not what comes of
    it, at most `max_rounds` more try it, first with those of all costly nodes, then with the mildest. Nodes that the user excludes
    are not pinned. Stops at once where no precision can help: outputs that are NaN in FP32. `max_rounds` is the budget's.

    A plan that the backend cannot build is a round that did not help. `discard` is given each artifact
    that is not the best any more, that of `first` excepted. `progress` is told of what takes long besides building.
    `batches` are those that `build` verifies on.
    Raises what else building and running raise.
    """
    search = _Search(graph, ranges, batches, policy, first, build, tolerance, budget, discard, progress)
    search.widen()
    search.narrow()
    return Repaired(search.best, tuple(search.rounds), search.spent)


class Repaired(NamedTuple):
    """What came of a repair. `spent` is the key of the budget that ended it with more left to try; "" for none."""

    best: Attempt
    rounds: tuple[RepairRound, ...]
    spent: str


@dataclass
class _Search:
    """The state of a repair: the best attempt, and the findings that took it there from `first`."""

    graph: Graph
    ranges: RangeTable
    batches: Iterable[Batch]
    policy: PlanPolicy
    first: Attempt
    build: Build
    tolerance: Tolerance
    budget: Budget
    discard: Discard
    progress: Progress = silent
    rounds: list[RepairRound] = field(default_factory=list)
    findings: tuple[Finding, ...] = ()
    built: set[_Key] = field(default_factory=set)
    spent: str = ""
    blamed_tf32: bool = False
    rounds_against_tf32: int = 0

    def __post_init__(self) -> None:
        self.best = self.first
        self.latest: tuple[Attempt, tuple[Finding, ...]] = self.first, ()
        self.built.add(_key_of(self.first.plan))
        self.builds = self.first.builds
        self.deadline = time.monotonic() + 60 * self.budget.max_minutes
        known = self.graph, self.batches, self.policy, self.first, self.tolerance
        self.foreseer = Foreseer(*known, self.deadline, self.progress)
        self.proposals = Proposals(self.foreseer, self.ranges, self.budget.max_rounds)

    def widen(self) -> None:
        """Propose and try more pins, until the best attempt passes or nothing is left to try."""
        while self.budget.max_rounds and not self._is_over() and self._step():
            pass
        if self.rounds and not self.spent and not self._is_over() and self.proposals.has_wider(self.best):
            self.spent = "max_rounds"

    def _step(self) -> bool:
        """Forbid TF32, which is no widening and takes no round of the budget, or pin more; False where neither is left."""
        widenings = len(self.rounds) - self.rounds_against_tf32
        has_rounds = widenings < self.budget.max_rounds
        if has_rounds and self._is_spent():
            return False
        if self._blames_tf32() and not self._is_spent():
            self.rounds_against_tf32 += 1
            self._try(self.latest[1], _FORBADE_TF32, tf32=False)
            return True
        if not has_rounds or self.spent:
            return False
        proposal = self.proposals.propose(self.best, self.findings, widenings)
        if proposal is None:
            return False
        action, added = proposal
        self._try((*self.findings, *added), action)
        return True

    def _blames_tf32(self) -> bool:
        """Whether the latest engine may be wrong by its products in TF32 alone, which is asked until it is said once.

        That is where it runs some in TF32, or hides what it runs, and its outputs are foreseen to pass: as simulated, what is
        pinned has all of FP32's bits. Of a model of which nothing can be foreseen a round is tried before. Where nothing is in
        FP16 any more, it is so whatever was blamed before.
        """
        attempt, findings = self.latest
        if not may_lose_by_tf32(attempt) or _key_of(self._plan(findings, tf32=False)) in self.built:
            return False
        if not attempt.artifact.fp16_nodes:
            return True
        if self.blamed_tf32:
            return False
        self.blamed_tf32 = self._is_foreseen_to_pass(attempt, findings)
        return self.blamed_tf32

    def _is_foreseen_to_pass(self, attempt: Attempt, findings: tuple[Finding, ...]) -> bool:
        foresight = self.foreseer.foresee(attempt, self.best)
        if foresight is None:
            return bool(self.rounds)
        with suppress(ModelError):  # memory can run out on another batch
            return foresight.is_bearable(findings)
        return False

    def narrow(self) -> None:
        """Take back pins that the repair added: what is foreseen not to be needed, else by trying.

        None where all was pinned: with anything in FP16 it was wrong.
        """
        if self.proposals.pinned_all:
            return
        can_foresee = self.findings and self.best.verification.passed and not self._is_spent()
        if not (can_foresee and self._leave_out() and self.best.artifact.engine is None):
            self._take_back()

    def _leave_out(self) -> bool:
        """Take back all that the outputs are foreseen to bear in FP16, at once; False where nothing sure is foreseen."""
        left = self._find_needed()
        if left is None:
            return False
        if self._pins_the_same(left):
            self.findings = left
            return True
        taken = {finding.node for finding in self.findings} - {finding.node for finding in left}
        return self._try(left, f"took back {name_few(sorted(taken))}")

    def _find_needed(self) -> tuple[Finding, ...] | None:
        """The findings without which the outputs are foreseen not to pass; None where with all of them they are not foreseen to."""
        foresight = self.foreseer.foresee(self.first, self.best)
        if foresight is None:
            return None
        costly = self._costly()
        order = sorted(self._mildest_first(), key=lambda name: name not in costly)
        with suppress(ModelError):  # memory can run out on another batch
            if not foresight.is_bearable(()) and foresight.is_bearable(self.findings):
                left = foresight.leave_out(self.findings, order)
                return left if foresight.is_bearable(left) else None
        return None

    def _take_back(self) -> None:
        """Pins of costly nodes at once, then the mildest first, in halves, quarters and so on."""
        most = len(self.rounds) + self.budget.max_rounds if self.best.verification.passed else 0
        needed: set[frozenset[str]] = set()
        for group in self._groups():
            if len(self.rounds) >= most or self._is_spent():
                return
            left = tuple(finding for finding in self.findings if finding.node not in group)
            if self._pins_the_same(left):
                self.findings = left
            elif left and group not in needed and not self._try(left, f"took back {name_few(sorted(group))}"):
                needed.add(group)

    def _groups(self) -> Iterator[frozenset[str]]:
        """What to take back next; never all that is left, for without it the plan did not pass."""
        size = len(self._mildest_first())
        if size > 1 and self.best.verification.passed:
            yield self._costly()
        while size > 1:
            size = (size + 1) // 2
            yield from _cut(self._mildest_first(), size)

    def _costly(self) -> frozenset[str]:
        """The nodes that the repair pinned of which each has a good share of the model's FLOPs."""
        counted = count_flops(self.graph, next(iter(self.batches)))
        flops = {label: count for label, count in counted.items() if count}
        least = _COSTLY_SHARE * sum(flops.values())
        return frozenset(label for label in self._mildest_first() if flops.get(label, 0) > least)

    def _pins_the_same(self, findings: tuple[Finding, ...]) -> bool:
        """Whether a plan with these findings has the best plan's pins, since nodes left out share a region with others."""
        plan = add_pins(self.first.plan, self.graph, self.policy, findings)
        return plan.pinned == self.best.plan.pinned

    def _is_over(self) -> bool:
        """Whether every output passes, or fails by nothing but what is NaN in FP32."""
        return all(v.passed or is_hopeless(v.error, self.tolerance) for v in self.best.verification.outputs)

    def _is_spent(self) -> bool:
        """Whether nothing is left of the budget; asked where there is more to do, so that `spent` tells what ended it."""
        if time.monotonic() >= self.deadline:
            self.spent = "max_minutes"
        elif self.builds >= self.budget.max_builds:
            self.spent = "max_builds"
        return bool(self.spent)

    def _try(self, findings: tuple[Finding, ...], action: str, tf32: bool = True) -> bool:
        """Build and verify the first plan with these findings; keep it if it helps, or passes with fewer.

        A plan that was built before, which regions can make of other findings, is not built again.
        """
        plan = self._plan(findings, tf32)
        if _key_of(plan) in self.built:
            return False
        self.built.add(_key_of(plan))
        try:
            attempt = Attempt(plan, *self.build(plan))
        except BackendError as error:
            self.builds += 1
            self._note(plan, f"{action}: {str(error).split('. Expected')[0]}")
            return False
        self.builds += attempt.builds
        self.latest = attempt, findings
        is_narrower = len(findings) < len(self.findings) and attempt.verification.passed
        kept = is_narrower or is_better(attempt, self.best, self.tolerance)
        self._note(plan, action, attempt, kept)
        loser = self.best if kept else attempt
        if kept:
            self.best, self.findings = attempt, findings
        if loser is not self.first:
            self.discard(loser.artifact)
        return kept

    def _plan(self, findings: tuple[Finding, ...], tf32: bool) -> PrecisionPlan:
        """The first plan with these findings; TF32 is forbidden where it is in the best plan, too."""
        plan = add_pins(self.first.plan, self.graph, self.policy, findings)
        return replace(plan, tf32=tf32 and self.best.plan.tf32)

    def _note(
        self, plan: PrecisionPlan, action: str, attempt: Attempt | None = None, kept: bool = False
    ) -> None:
        """Record a round; without an attempt its plan could not be built."""
        self.rounds.append(
            RepairRound(
                index=len(self.rounds) + 1,
                action=action,
                added=tuple(pin.node for pin in plan.pins if pin.node not in self.best.plan.pinned),
                threshold=self.proposals.threshold,
                passed=attempt is not None and attempt.verification.passed,
                worst_snr_db=math.nan if attempt is None else attempt.worst_snr_db,
                mismatched=0 if attempt is None else attempt.mismatched,
                kept=kept,
            )
        )

    def _mildest_first(self) -> list[str]:
        """Labels of the nodes that the repair pinned: for a lower threshold, then by SNR, the best first."""
        worst: dict[str, tuple[bool, float, bool]] = {}
        for finding in self.findings:
            severity = self._severity(finding)
            worst[finding.node] = max(worst.get(finding.node, severity), severity)
        return sorted(worst, key=lambda label: worst[label])

    def _severity(self, finding: Finding) -> tuple[bool, float, bool]:
        if finding.rule != RULE:
            return False, finding.value, False
        return True, -finding.value, finding.tensor in self.graph.by_label[finding.node].outputs


def _key_of(plan: PrecisionPlan) -> _Key:
    """What an artifact depends on."""
    return plan.pinned, plan.clamps, plan.tf32


def _cut(labels: Sequence[str], size: int) -> list[frozenset[str]]:
    return [frozenset(labels[start : start + size]) for start in range(0, len(labels), size)]
