"""A plan widened, round by round, until the artifact passes; what helped nothing is taken back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from overflow_fixer.attempts import Attempt, is_better
from overflow_fixer.culprits import excess
from overflow_fixer.errors import BackendError, ModelError
from overflow_fixer.flops import count_flops
from overflow_fixer.foresight import Foresight
from overflow_fixer.graph import Graph
from overflow_fixer.losses import Loss, measure_losses
from overflow_fixer.nodes import Node
from overflow_fixer.planning import REGION, add_pins, is_excluded, plan_precision
from overflow_fixer.ranges.repeatability import is_repeatable
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
    TensorError,
    Tolerance,
    Verification,
)
from overflow_fixer.rules.settling import is_pinnable
from overflow_fixer.suspects import find_ancestors, find_around, find_concerned, find_suspects
from overflow_fixer.switchboard import Case, Switchboard
from overflow_fixer.verification import find_worst_batch, judge, worst_snr_db

Build = Callable[[PrecisionPlan], tuple[Artifact, Verification]]
"""Builds the plan's artifact and verifies it; a failing verification comes with its trace."""

Discard = Callable[[Artifact], None]
"""Told of an artifact that was built and is not needed any more."""

Proposal = tuple[str, list[Finding]]
"""What to try next, in words, and the findings that it adds."""

RULE = "repair"

_LOWER = 10.0
_LEAST_THRESHOLD = 1e-3
_MARGINS_DB = (0.0, 10.0, 20.0, 30.0)
_MORE_SUSPECTS = 4
_WIDEST = 8
_COSTLY_SHARE = 0.05
_SHARE_OF_TIME = 0.1
"""Of what is left of it, that foreseeing may take."""


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
) -> tuple[Attempt, tuple[RepairRound, ...]]:
    """Widen the plan of `first` within a budget; returns the best attempt and every round.

    The first round pins the nodes that lose too much by themselves, with those that hand them what they lose, or take it;
    the others those whose FP16 the outputs are foreseen not to bear. Where nothing is foreseen, the first half of the rounds pins more of the
    former, and the neighbourhoods of nodes behind which tensors get worse; the other half plans again with a tenth of the threshold each.
    The last round but one pins all that the first wrong tensor depends on, the last all that the failing outputs do. A round that does
    not help is taken back. Once an attempt passes, pins of the repair that are foreseen not to be needed are taken back; where that
    is not what comes of it, at most `max_rounds` more try it, first with those of all costly nodes, then with the mildest. Nodes that the user excludes are not pinned.
    Stops at once where no precision can help: outputs that are NaN in FP32. `max_rounds` is the budget's.

    A plan that the backend cannot build is a round that did not help. `discard` is given each artifact
    that is not the best any more, that of `first` excepted. `batches` are those that `build` verifies on.
    Raises what else building and running raise.
    """
    search = _Search(graph, ranges, batches, policy, first, build, tolerance, budget, discard)
    search.widen()
    search.narrow()
    return search.best, tuple(search.rounds)


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
    rounds: list[RepairRound] = field(default_factory=list)
    findings: tuple[Finding, ...] = ()
    tried: set[frozenset[str]] = field(default_factory=set)
    reach: int = 0
    foreseen_of: Attempt | None = None
    built: set[tuple[frozenset[str], tuple[Clamp, ...]]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.best = self.first
        self.built.add(_key_of(self.first.plan))
        self.threshold = self.policy.threshold
        self.builds = self.first.builds
        self.deadline = time.monotonic() + 60 * self.budget.max_minutes

    def widen(self) -> None:
        """Propose and try more pins, until the best attempt passes or nothing is left to try."""
        while len(self.rounds) < self.budget.max_rounds and not self._is_over() and not self._is_spent():
            proposal = self._propose()
            if proposal is None:
                return
            action, added = proposal
            self.tried.add(frozenset(finding.node for finding in added))
            self._try((*self.findings, *added), action)

    def narrow(self) -> None:
        """Take back pins that the repair added: what is foreseen not to be needed, else by trying."""
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
        return self._try(left, f"took back {_name(sorted(taken))}")

    def _find_needed(self) -> tuple[Finding, ...] | None:
        """The findings without which the outputs are foreseen not to pass; None where with all of them they are not foreseen to."""
        foresight = self._foresee(self.first)
        if foresight is None:
            return None
        costly, mildest = self._costly(), self._mildest_first()
        order = [*costly, *(name for name in mildest if name not in costly)]
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
            elif left and group not in needed and not self._try(left, f"took back {_name(sorted(group))}"):
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
        return all(v.passed or self._is_hopeless(v.error) for v in self.best.verification.outputs)

    def _is_spent(self) -> bool:
        return self.builds >= self.budget.max_builds or time.monotonic() >= self.deadline

    def _is_hopeless(self, error: TensorError) -> bool:
        rest = replace(error, mismatched=0)
        return 0 < error.mismatched <= error.reference_nan and judge(rest, self.tolerance).passed

    def _try(self, findings: tuple[Finding, ...], action: str) -> bool:
        """Build and verify the first plan with these findings; keep it if it helps, or passes with fewer.

        A plan that was built before, which regions can make of other findings, is not built again.
        """
        plan = add_pins(self.first.plan, self.graph, self.policy, findings)
        if _key_of(plan) in self.built:
            return False
        self.built.add(_key_of(plan))
        try:
            attempt = Attempt(plan, *self.build(plan))
        except BackendError as error:
            return self._note_failure(plan, f"{action}: {str(error).split('. Expected')[0]}")
        self.builds += attempt.builds
        is_narrower = len(findings) < len(self.findings) and attempt.verification.passed
        kept = is_narrower or is_better(attempt, self.best, self.tolerance)
        self.rounds.append(
            RepairRound(
                index=len(self.rounds) + 1,
                action=action,
                added=tuple(pin.node for pin in plan.pins if pin.node not in self.best.plan.pinned),
                threshold=self.threshold,
                passed=attempt.verification.passed,
                worst_snr_db=attempt.worst_snr_db,
                mismatched=attempt.mismatched,
                kept=kept,
            )
        )
        loser = self.best if kept else attempt
        if kept:
            self.best, self.findings = attempt, findings
        if loser is not self.first:
            self.discard(loser.artifact)
        return kept

    def _note_failure(self, plan: PrecisionPlan, action: str) -> bool:
        """Record a round whose plan could not be built; the best attempt stays what it was."""
        self.builds += 1
        added = tuple(pin.node for pin in plan.pins if pin.node not in self.best.plan.pinned)
        self.rounds.append(
            RepairRound(len(self.rounds) + 1, action, added, self.threshold, False, math.nan, 0, False)
        )
        return False

    def _propose(self) -> Proposal | None:
        left = self.budget.max_rounds - len(self.rounds)
        last = (self._all_before_outputs, self._all_before_first_wrong)
        widest = last[left - 1]() if self.rounds and left <= len(last) else None
        return widest or self._narrowest() or self._all_before_outputs()

    def _narrowest(self) -> Proposal | None:
        """The first that is new of what would pin few nodes."""
        proposal = (None if self.rounds else self._losing()) or self._foreseen()
        if proposal is not None:
            return proposal
        if 2 * len(self.rounds) < self.budget.max_rounds:
            return self._losing() or self._suspected() or self._lower_threshold()
        return self._lower_threshold() or self._losing() or self._suspected()

    def _all_before_first_wrong(self) -> Proposal | None:
        """All that the first wrong tensor depends on, which is right then."""
        first = self.best.verification.first_wrong
        return None if first is None else self._all_before([first])

    def _all_before_outputs(self) -> Proposal | None:
        """All that failing outputs depend on: they pass then where precision can help, and what they bear is taken back."""
        failing = [v.error for v in self.best.verification.outputs if not v.passed]
        return self._all_before([error for error in failing if not self._is_hopeless(error)])

    def _all_before(self, errors: Sequence[TensorError]) -> Proposal | None:
        added: dict[str, Finding] = {}
        for error in errors:
            before = find_ancestors(self.graph, [error.tensor])
            nodes = (node for node in reversed(self.graph.nodes) if not before.isdisjoint(node.writes))
            reason = f"leads to {error.tensor}, which no narrower plan that was tried makes right"
            found = *self._match(error), reason, error.worst_batch
            self._blame(added, nodes, Finding(RULE, "", error.tensor, *found))
        if not self._is_new(added):
            return None
        return f"pinned all that leads to {_name(error.tensor for error in errors)}", list(added.values())

    def _losing(self) -> Proposal | None:
        """Nodes that lose too much by themselves, with those that hand them what they lose, or take it."""
        losses = self._measure()
        limit = max(self.tolerance.min_snr_of(name) for name in self.best.failing)
        for margin in _MARGINS_DB:
            culprits = [node for node, loss in losses.items() if loss.worst_db < limit + margin]
            culprits.sort(key=lambda node: losses[node].worst_db)
            added: dict[str, Finding] = {}
            for node in culprits:
                snr_db = losses[node].worst_db
                reason = f"by itself {node.label} leaves an SNR of {snr_db:.1f} dB, fed with right values, on the way to what fails"
                near = find_concerned(self.graph, node, losses[node], limit + margin)
                self._blame(added, near, Finding(RULE, "", node.outputs[0], snr_db, limit, reason))
            if self._is_new(added):
                return f"pinned where {_name(node.label for node in culprits)} lose", list(added.values())
        return None

    def _foreseen(self) -> Proposal | None:
        """The nodes whose FP16 the failing outputs cannot bear, found by trying; once for each best attempt."""
        if self.foreseen_of is self.best:
            return None
        self.foreseen_of = self.best
        foresight = self._foresee(self.best)
        if foresight is None:
            return None
        movable = {node.label for node in self.graph.nodes if self._is_free(node)}
        added: tuple[Finding, ...] = ()
        with suppress(ModelError):  # memory can run out on another batch
            added = foresight.find_culprits(self.findings, movable, self._accuse)[len(self.findings) :]
        if not self._is_new(finding.node for finding in added):
            return None
        worst_first = (finding.node for finding in reversed(added))
        return f"pinned {_name(worst_first)}, which the outputs do not bear in FP16", list(added)

    def _accuse(self, label: str, error: TensorError) -> Finding:
        """The finding about a node that alone in FP16 makes this error of an output: its SNR, or the share that is equal."""
        times = excess([error], self.tolerance)
        tells = (
            f"takes {times:.3g} times the error that {error.tensor} may have"
            if math.isfinite(times)
            else f"leaves no match in {error.tensor}"
        )
        reason = f"in FP16 while all else is in FP32 {label} {tells}"
        value, limit = self._match(error)
        if error.is_float and math.isinf(times):
            value = -math.inf
        return Finding(RULE, label, self.graph.by_label[label].outputs[0], value, limit, reason)

    def _match(self, error: TensorError) -> tuple[float, float]:
        """How well a tensor matches, and has to: its SNR in dB, -inf where it has none; of integers the share that is equal."""
        if not error.is_float:
            return 1 - error.mismatched / max(error.element_count, 1), self.tolerance.min_agreement
        snr_db = worst_snr_db(error)
        return -math.inf if math.isnan(snr_db) else snr_db, self.tolerance.min_snr_of(error.tensor)

    def _foresee(self, attempt: Attempt) -> Foresight | None:
        """On the batch that is worst for the attempt; None where a model draws random numbers, or cannot be tried."""
        outputs = [v.error.tensor for v in attempt.verification.outputs if not self._is_hopeless(v.error)]
        if not is_repeatable(self.graph):
            return None
        batch = find_worst_batch(attempt.verification, self.batches)
        log_energies = {v.error.tensor: v.error.log_energy for v in self.best.verification.outputs}
        in_fp16, exact = self.first.artifact.fp16_nodes, _find_clamped(self.first.plan)
        now = time.monotonic()
        latest = now + _SHARE_OF_TIME * (self.deadline - now)
        try:
            board = Switchboard(self.graph, in_fp16, outputs, exact)
            case = Case(board, batch, log_energies)
        except ModelError:
            return None
        known = self.graph, self.policy, self.first.plan, board, self.tolerance, self.batches, log_energies
        return Foresight(*known, is_late=lambda: time.monotonic() >= latest, cases=[case])

    def _measure(self) -> dict[Node, Loss]:
        """What each node on the way to a failing output loses by itself, on the batch that is worst."""
        best = self.best
        relevant = find_ancestors(self.graph, best.failing)
        batch = find_worst_batch(best.verification, self.batches)
        losses = measure_losses(
            self.graph, self.ranges, best.artifact.fp16_nodes, batch, _find_clamped(best.plan)
        )
        nodes = {self.graph.by_label[label]: loss for label, loss in losses.items()}
        return {node: loss for node, loss in nodes.items() if not relevant.isdisjoint(node.outputs)}

    def _suspected(self) -> Proposal | None:
        """The neighbourhoods of nodes behind which tensors get worse: of more, and wider, each time."""
        suspects = find_suspects(self.best.verification, self.graph)
        while suspects and self.reach < _WIDEST:
            self.reach += 1
            chosen = suspects[: _MORE_SUSPECTS ** (self.reach - 1)]
            added: dict[str, Finding] = {}
            for error in chosen:
                snr_db, limit = worst_snr_db(error), self.tolerance.min_snr_of(error.tensor)
                verdict = judge(error, self.tolerance)
                reason = (
                    f"{error.tensor} {'gets worse' if verdict.passed else 'goes wrong'}: {verdict.reason}"
                )
                near = find_around(self.graph, self.graph.producers[error.tensor], self.reach)
                self._blame(
                    added, near, Finding(RULE, "", error.tensor, snr_db, limit, reason, error.worst_batch)
                )
            if self._is_new(added):
                names = _name(self.graph.producers[error.tensor].label for error in chosen)
                return f"pinned the neighbourhood of {names}", list(added.values())
        return None

    def _lower_threshold(self) -> Proposal | None:
        """What the rules pin besides at the next lower threshold that pins anything."""
        while self.threshold > _LEAST_THRESHOLD:
            self.threshold /= _LOWER
            policy = replace(self.policy, threshold=self.threshold)
            lowered = plan_precision(self.graph, self.ranges, policy)
            pins = [pin for pin in lowered.pins if pin.node not in self.best.plan.pinned]
            if self._is_new(pin.node for pin in pins):
                found = (finding for pin in pins for finding in pin.findings if finding.rule != REGION)
                return f"lowered the threshold to {self.threshold:g}", list(map(self._say_lowered, found))
        return None

    def _say_lowered(self, finding: Finding) -> Finding:
        """One by the threshold says whose that is: the plan's own is another."""
        if finding.rule != "threshold":
            return finding
        return replace(finding, reason=f"{finding.reason}, lowered in repair from {self.policy.threshold:g}")

    def _blame(self, added: dict[str, Finding], nodes: Iterable[Node], finding: Finding) -> None:
        """Add the finding for each node that has none yet, is not pinned, and can and may be."""
        for node in nodes:
            if self._is_free(node):
                added.setdefault(node.label, replace(finding, node=node.label))

    def _is_free(self, node: Node) -> bool:
        """Whether it is not pinned, and can and may be."""
        is_free = node.label not in self.best.plan.pinned and not is_excluded(node, self.policy)
        return is_free and is_pinnable(self.graph, node)

    def _is_new(self, labels: Iterable[str]) -> bool:
        """Whether pinning these nodes besides is something that was not tried."""
        found = frozenset(labels)
        return bool(found) and found not in self.tried

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


def _key_of(plan: PrecisionPlan) -> tuple[frozenset[str], tuple[Clamp, ...]]:
    """What an artifact depends on."""
    return plan.pinned, plan.clamps


def _find_clamped(plan: PrecisionPlan) -> set[str]:
    """The tensors that are clamped masks, or made of them alone."""
    return {name for clamp in plan.clamps for name in (clamp.tensor, *clamp.covers)}


def _cut(labels: Sequence[str], size: int) -> list[frozenset[str]]:
    return [frozenset(labels[start : start + size]) for start in range(0, len(labels), size)]


def _name(labels: Iterable[str]) -> str:
    """Up to three of the nodes by name, and how many more there are."""
    names = list(labels)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
