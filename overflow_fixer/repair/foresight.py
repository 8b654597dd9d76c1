"""What a plan would make of the outputs, foreseen without building it: as an artifact is simulated, in one session."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.repeatability import is_repeatable
from overflow_fixer.metrics.parts import find_parts
from overflow_fixer.planning.plan import add_pins
from overflow_fixer.progress import TIMED, Progress, silent
from overflow_fixer.records import Batch, Finding, PlanPolicy, PrecisionPlan, TensorError, Tolerance
from overflow_fixer.repair.attempts import Attempt, is_hopeless
from overflow_fixer.repair.culprits import BEARABLE, CulpritSearch, IsLate, excess
from overflow_fixer.repair.switchboard import Case, Switchboard
from overflow_fixer.verification.comparison import find_worst_batch

_MOST_CASES = 4
_LONGEST_SECONDS = 1e9
_STAGE = f"repair: search{TIMED}"
_SHARE_OF_TIME = 0.1
"""Of what is left until the deadline, that foreseeing may take."""


@dataclass(frozen=True)
class Foreseer:
    """Foresees what findings added to the plan of `first` make of the outputs, on `batches`, before the `deadline`."""

    graph: Graph
    batches: Iterable[Batch]
    policy: PlanPolicy
    first: Attempt
    tolerance: Tolerance
    deadline: float
    """Seconds of time.monotonic."""
    progress: Progress = silent
    """Told the seconds that foreseeing has taken, and those that it may take."""

    def foresee(self, attempt: Attempt, best: Attempt) -> Foresight | None:
        """On the batch that is worst for the attempt; None where a model gives other values each time, or cannot be tried.

        One that draws random numbers may scale them by zero, so that it gives the same.
        """
        errors = [verdict.error for verdict in attempt.verification.outputs]
        outputs = dict.fromkeys(error.tensor for error in errors if not is_hopeless(error, self.tolerance))
        batch = find_worst_batch(attempt.verification, self.batches)
        log_energies = {v.error.name: v.error.log_energy for v in best.verification.outputs}
        now = time.monotonic()
        latest = now + _SHARE_OF_TIME * min(self.deadline - now, _LONGEST_SECONDS)
        plan = self.first.plan
        try:
            board = Switchboard(self.graph, self.first.artifact.fp16_nodes, tuple(outputs), plan.clamped)
            parts = find_parts(self.tolerance, self.graph.outputs)
            case = Case(board, batch, log_energies, parts, self.tolerance)
            if not is_repeatable(self.graph) and excess(case.compare(()), self.tolerance) > 0:
                return None
        except ModelError:
            return None

        def tell() -> None:
            self.progress(_STAGE, int(time.monotonic() - now), int(latest - now))

        known = self.graph, self.policy, plan, board, self.tolerance, self.batches, log_energies
        return Foresight(*known, lambda: time.monotonic() >= latest, tell, [case])


@dataclass
class Foresight:
    """Of plans that add findings to `plan`, of which the nodes in FP16 are those of the board.

    `cases` are the batches on which everything is tried; what comes of that is tried on the other `batches` too, of which
    those that it fails on become cases. `log_energies` are of the outputs over all batches: see Case. Nothing more is tried
    once it `is_late`; each trial is one to `tell`. All that tries raises ModelError where memory runs out.
    """

    graph: Graph
    policy: PlanPolicy
    plan: PrecisionPlan
    board: Switchboard
    tolerance: Tolerance
    batches: Iterable[Batch]
    log_energies: Mapping[str, float]
    is_late: IsLate
    tell: Callable[[], None]
    cases: list[Case] = field(default_factory=list)

    def is_bearable(self, findings: Sequence[Finding]) -> bool:
        """Whether the outputs pass in the cases, with 1 dB in hand; the latest is asked first, on which others failed."""
        self.tell()
        in_fp16 = self._in_fp16(findings)
        return all(excess(case.compare(in_fp16), self.tolerance) <= BEARABLE for case in reversed(self.cases))

    def find_culprits(
        self,
        findings: tuple[Finding, ...],
        movable: Collection[str],
        accuse: Callable[[str, TensorError], Finding],
    ) -> tuple[Finding, ...]:
        """The findings, and those about other nodes, all `movable`, without which the outputs do not pass.

        `accuse` makes them, of a node and the error of the output that bears it worst with that node alone in FP16.
        """

        def find() -> tuple[Finding, ...]:
            worst: dict[str, TensorError] = {}

            def cost(in_fp16: Collection[str]) -> list[float]:
                errors = self._try(in_fp16)
                times = [excess([error], self.tolerance) for error in errors]
                worst.update(dict.fromkeys(in_fp16 if len(in_fp16) == 1 else (), errors[np.argmax(times)]))
                return times

            found = CulpritSearch(cost, self._in_fp16(findings), movable, self.is_late).run()
            mildest_first = sorted(found, key=lambda label: found[label])
            added = tuple(accuse(label, worst[label]) for label in mildest_first)
            return self._leave_out((*findings, *added), mildest_first)

        return self._settle(find)

    def leave_out(self, findings: tuple[Finding, ...], labels: Sequence[str]) -> tuple[Finding, ...]:
        """The findings without those of nodes that the outputs bear in FP16 too: of `labels`, the first of them first."""
        return self._settle(lambda: self._leave_out(findings, labels))

    def _settle(self, find: Callable[[], tuple[Finding, ...]]) -> tuple[Finding, ...]:
        """What is found, until it holds on all batches, or cases are enough."""
        found = find()
        while len(self.cases) < _MOST_CASES and (case := self._find_worse(found)) is not None:
            self.cases.append(case)
            found = find()
        return found

    def _find_worse(self, findings: Sequence[Finding]) -> Case | None:
        """The first other batch on which the outputs do not pass, if there is one."""
        in_fp16 = self._in_fp16(findings)
        known = {case.batch for case in self.cases}
        parts = find_parts(self.tolerance, self.graph.outputs)
        for batch in self.batches:
            if self.is_late():
                return None
            if batch.name in known:
                continue
            case = Case(self.board, batch, self.log_energies, parts, self.tolerance)
            if excess(case.compare(in_fp16), self.tolerance) > BEARABLE:
                return case
        return None

    def _leave_out(self, findings: tuple[Finding, ...], labels: Sequence[str]) -> tuple[Finding, ...]:
        pending = [tuple(labels)] if labels else []
        while pending and not self.is_late():
            group = pending.pop()
            fewer = tuple(finding for finding in findings if finding.node not in group)
            if self.is_bearable(fewer):
                findings = fewer
            elif len(group) > 1:
                half = len(group) // 2
                pending += [group[half:], group[:half]]
        return findings

    def _try(self, in_fp16: Collection[str]) -> list[TensorError]:
        """The errors of the outputs, and of parts of them, in each case."""
        self.tell()
        return [error for case in self.cases for error in case.compare(in_fp16)]

    def _in_fp16(self, findings: Iterable[Finding]) -> tuple[str, ...]:
        pinned = add_pins(self.plan, self.graph, self.policy, findings).pinned
        return tuple(label for label in self.board.nodes if label not in pinned)
