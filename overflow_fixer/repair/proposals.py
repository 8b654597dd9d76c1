"""What to pin next where a plan falls short: the nodes that the outputs do not bear in FP16, as few as can be told."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.nodes import Node
from overflow_fixer.planning.plan import REGION, is_excluded, plan_precision
from overflow_fixer.plurals import agree, name_few
from overflow_fixer.records import Finding, RangeTable, TensorError
from overflow_fixer.repair.attempts import Attempt, is_hopeless
from overflow_fixer.repair.culprits import excess
from overflow_fixer.repair.foresight import Foreseer
from overflow_fixer.repair.losses import Loss, measure_losses
from overflow_fixer.repair.suspects import find_ancestors, find_around, find_concerned, find_suspects
from overflow_fixer.rules.settling import is_pinnable
from overflow_fixer.verification.comparison import find_worst_batch, judge, worst_snr_db

Proposal = tuple[str, list[Finding]]
"""What to try next, in words, and the findings that it adds."""

RULE = "repair"

_LOWER = 10.0
_LEAST_THRESHOLD = 1e-3
_MARGINS_DB = (0.0, 10.0, 20.0, 30.0)
_MORE_SUSPECTS = 4
_WIDEST = 8


@dataclass
class Proposals:
    """Makes them one after the other, of which none is made twice; `max_rounds` is how many will be tried.

    The first pins the nodes that lose too much by themselves, with those that hand them what they lose, or take it; the
    others those whose FP16 the outputs are foreseen not to bear. Where nothing is foreseen, the first half of the rounds
    pins more of the former, and the neighbourhoods of nodes behind which tensors get worse; the other half plans again with a
    tenth of the threshold each. The last but one pins all that the first wrong tensor depends on, the last all that the failing
    outputs do, unless it is the first, too; where more of an engine takes pins, the whole of it comes behind them. Nodes that
    the user excludes are not pinned.
    """

    foreseer: Foreseer
    ranges: RangeTable
    max_rounds: int
    findings: tuple[Finding, ...] = ()
    round_count: int = 0
    tried: set[frozenset[str]] = field(default_factory=set)
    reach: int = 0
    foreseen_of: Attempt | None = None
    pinned_all: bool = False

    def __post_init__(self) -> None:
        self.graph, self.batches = self.foreseer.graph, self.foreseer.batches
        self.policy, self.tolerance = self.foreseer.policy, self.foreseer.tolerance
        self.best = self.foreseer.first
        self.threshold = self.policy.threshold

    def propose(self, best: Attempt, findings: tuple[Finding, ...], round_count: int) -> Proposal | None:
        """What to pin besides the findings that took the plan to `best`, after so many rounds; None where nothing is left."""
        self.best, self.findings, self.round_count = best, findings, round_count
        left = self.max_rounds - round_count
        last = [self._all_before_outputs, self._all_before_first_wrong]
        if self._has_more_than_leads_there():
            last.insert(0, self._widest)
        wide = last[left - 1]() if round_count and left <= len(last) else None
        proposal = wide or self._narrowest() or self._widest()
        if proposal is not None:
            self.tried.add(frozenset(finding.node for finding in proposal[1]))
        return proposal

    def has_wider(self, best: Attempt) -> bool:
        """Whether not all was pinned yet that leads to the outputs that fail, or of an engine all: more rounds may help then."""
        self.best = best
        return self._all_before_outputs() is not None or bool(self._rest())

    def _narrowest(self) -> Proposal | None:
        """The first that is new of what would pin few nodes."""
        proposal = (None if self.round_count else self._losing()) or self._foreseen()
        if proposal is not None:
            return proposal
        if 2 * self.round_count < self.max_rounds:
            return self._losing() or self._suspected() or self._lower_threshold()
        return self._lower_threshold() or self._losing() or self._suspected()

    def _all_before_first_wrong(self) -> Proposal | None:
        """All that the first wrong tensor depends on, which is right then."""
        first = self.best.verification.first_wrong
        return None if first is None else self._all_before([first])

    def _all_before_outputs(self) -> Proposal | None:
        """All that failing outputs depend on: they pass then where precision can help, and what they bear is taken back."""
        return self._all_before(
            [error for error in self.best.failing if not is_hopeless(error, self.tolerance)]
        )

    def _widest(self) -> Proposal | None:
        """All that leads to what fails; behind it all."""
        return self._all_before_outputs() or self._all()

    def _all(self) -> Proposal | None:
        """All of an engine that is wrong whatever is pinned on the way: what takes no pin is in FP16 as long as anything is."""
        rest = self._rest()
        if not rest:
            return None
        self.pinned_all = True
        return "pinned all of the model", list(rest.values())

    def _has_more_than_leads_there(self) -> bool:
        """Whether more of an engine could be pinned than what leads to the outputs that fail."""
        _, before = self._all_before_outputs() or ("", [])
        return len(self._rest()) > len(before)

    def _rest(self) -> dict[str, Finding]:
        """A finding for each node of an engine of weak types that has no pin; none where that was tried or a node is to have none."""
        engine, rest = self.best.artifact.engine, dict[str, Finding]()
        if engine is None or engine.typing != "weak" or any(map(self._is_excluded, self.graph.nodes)):
            return rest
        error = next(error for error in self.best.failing if not is_hopeless(error, self.tolerance))
        reason = (
            f"{error.name} was wrong with all pinned that leads to it, as long as anything was left in FP16"
        )
        found = Finding(RULE, "", error.tensor, *self._match(error), reason, error.worst_batch)
        self._blame(rest, self.graph.nodes, found)
        return rest if self._is_new(rest) else {}

    def _all_before(self, errors: Sequence[TensorError]) -> Proposal | None:
        added: dict[str, Finding] = {}
        for error in errors:
            before = find_ancestors(self.graph, [error.tensor])
            nodes = (node for node in reversed(self.graph.nodes) if not before.isdisjoint(node.writes))
            reason = f"leads to {error.name}, which narrower plans tried before had left wrong"
            found = *self._match(error), reason, error.worst_batch
            self._blame(added, nodes, Finding(RULE, "", error.tensor, *found))
        if not self._is_new(added):
            return None
        return f"pinned all that leads to {name_few(error.name for error in errors)}", list(added.values())

    def _losing(self) -> Proposal | None:
        """Nodes that lose too much by themselves, with those that hand them what they lose, or take it."""
        losses = self._measure()
        limit = max(self.tolerance.min_snr_of(error.tensor, error.part) for error in self.best.failing)
        for margin in _MARGINS_DB:
            culprits = [node for node, loss in losses.items() if loss.worst_db < limit + margin]
            culprits.sort(key=lambda node: losses[node].worst_db)
            added: dict[str, Finding] = {}
            for node in culprits:
                snr_db = losses[node].worst_db
                rank = "" if snr_db < limit else "one of the least "
                reason = f"by itself {node.label} leaves an SNR of {snr_db:.1f} dB, fed with right values, {rank}on the way to what fails"
                near = find_concerned(self.graph, node, losses[node], limit + margin)
                self._blame(added, near, Finding(RULE, "", node.outputs[0], snr_db, limit, reason))
            if self._is_new(added):
                lose = agree(len(culprits), "loses", "lose")
                return f"pinned where {name_few(node.label for node in culprits)} {lose}", list(
                    added.values()
                )
        return None

    def _foreseen(self) -> Proposal | None:
        """The nodes whose FP16 the failing outputs cannot bear, found by trying; once for each best attempt."""
        if self.foreseen_of is self.best:
            return None
        self.foreseen_of = self.best
        foresight = self.foreseer.foresee(self.best, self.best)
        if foresight is None:
            return None
        movable = {node.label for node in self.graph.nodes if self._is_free(node)}
        added: tuple[Finding, ...] = ()
        with suppress(ModelError):  # memory can run out on another batch
            added = foresight.find_culprits(self.findings, movable, self._accuse)[len(self.findings) :]
        if not self._is_new(finding.node for finding in added):
            return None
        worst_first = (finding.node for finding in reversed(added))
        return f"pinned {name_few(worst_first)}, which the outputs do not bear in FP16", list(added)

    def _accuse(self, label: str, error: TensorError) -> Finding:
        """The finding about a node that alone in FP16 makes this error of an output: its SNR, or the share that is equal."""
        times = excess([error], self.tolerance)
        share = f"{times:.3g} times" if times >= 1 else f"{100 * times:.3g} % of"
        tells = f"takes {share} the error that {error.name} may have"
        if times < 1:
            tells += ", but with what else stays in FP16 too much"
        if math.isinf(times):
            tells = f"leaves no match in {error.name}"
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
        return -math.inf if math.isnan(snr_db) else snr_db, self.tolerance.min_snr_of(
            error.tensor, error.part
        )

    def _measure(self) -> dict[Node, Loss]:
        """What each node on the way to a failing output loses by itself, on the batch that is worst."""
        best = self.best
        relevant = find_ancestors(self.graph, [error.tensor for error in best.failing])
        batch = find_worst_batch(best.verification, self.batches)
        losses = measure_losses(self.graph, self.ranges, best.artifact.fp16_nodes, batch, best.plan.clamped)
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
                snr_db, limit = worst_snr_db(error), self.tolerance.min_snr_of(error.tensor, error.part)
                verdict = judge(error, self.tolerance)
                reason = (
                    f"{error.tensor} {'gets worse' if verdict.passed else 'goes wrong'}: {verdict.reason}"
                )
                near = find_around(self.graph, self.graph.producers[error.tensor], self.reach)
                self._blame(
                    added, near, Finding(RULE, "", error.tensor, snr_db, limit, reason, error.worst_batch)
                )
            if self._is_new(added):
                names = name_few(self.graph.producers[error.tensor].label for error in chosen)
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
        is_free = node.label not in self.best.plan.pinned and not self._is_excluded(node)
        return is_free and is_pinnable(self.graph, node)

    def _is_excluded(self, node: Node) -> bool:
        return is_excluded(node, self.policy)

    def _is_new(self, labels: Iterable[str]) -> bool:
        """Whether pinning these nodes besides is something that was not tried."""
        found = frozenset(labels)
        return bool(found) and found not in self.tried
