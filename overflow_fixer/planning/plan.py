"""Rules over every node, and their findings gathered into pins, clamps and what was left in FP16."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from overflow_fixer.annotations import held_to_types
from overflow_fixer.errors import PlanError
from overflow_fixer.evidence.masks.mask_verdicts import MAGNITUDE_RULES, MaskVerdict, judge_masks
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns import Region, find_regions
from overflow_fixer.plurals import say_plural
from overflow_fixer.records import Clamp, Finding, Pin, PlanPolicy, PrecisionPlan, RangeTable
from overflow_fixer.rules import DEFAULT_RULES, Rule
from overflow_fixer.rules.inner_value import is_about_a_masked_row
from overflow_fixer.rules.settling import settle

REGION = "region"
"""The rule by whose name a pin goes on to the other nodes of its pattern."""


@held_to_types
def plan_precision(
    graph: Graph,
    ranges: RangeTable,
    policy: PlanPolicy,
    rules: Mapping[str, Rule] = DEFAULT_RULES,
) -> PrecisionPlan:
    """Ask every rule about every node. A node with a finding that says so is pinned.

    Inside the bodies of If, Loop and Scan the rule control_flow asks DEFAULT_RULES, whatever `rules` are.
    With it go the other nodes of a LayerNorm, softmax or other pattern that it is a part of (rule "region").
    A tensor over the threshold by a mask that is left as it is pins nothing.
    Never pinned: nodes without an FP32 output (integers, booleans, shapes), constants, and what the
    user excludes; their findings are kept under `considered`. Raises PlanError when the ranges belong
    to another model, or a name or operator of the policy matches nothing.
    """
    check_ranges(graph, ranges)
    check_policy(graph, policy)
    verdicts = list(judge_masks(graph, ranges, policy))
    notes = {verdict.origin.tensor: verdict.reason for verdict in verdicts}
    clamps = tuple(verdict.clamp for verdict in verdicts if verdict.clamp is not None)
    clamped = _by_tensor(clamps)
    held = {name: verdict for verdict in verdicts for name in verdict.held if name not in clamped}
    findings = [
        _leave(_note(finding, notes), held)
        for node in graph.nodes
        for finding in dict.fromkeys(f for rule in rules.values() for f in rule(node, graph, ranges, policy))
    ]
    return add_pins(PrecisionPlan(graph.sha256, policy.threshold, (), clamps), graph, policy, findings)


def is_excluded(node: Node, policy: PlanPolicy) -> bool:
    """Whether the user wants the node left in FP16."""
    return node.op_type in policy.exclude_ops or any(re.search(p, node.label) for p in policy.exclude_nodes)


def _note(finding: Finding, notes: Mapping[str, str]) -> Finding:
    """The finding with what was made of its constant as a mask."""
    note = notes.get(finding.tensor) if finding.action == "pin" else None
    return finding if note is None else replace(finding, reason=f"{finding.reason}; {note}")


def _leave(finding: Finding, held: Mapping[str, MaskVerdict]) -> Finding:
    """The finding with what was made of the mask that FP16 holds; for the record alone where the mask is left as it is."""
    verdict = held.get(finding.tensor)
    if verdict is None or finding.rule not in verdict.answered:
        return finding
    said = finding.reason if verdict.reason in finding.reason else f"{finding.reason}; {verdict.reason}"
    return replace(finding, action="none" if verdict.is_left else finding.action, reason=said)


def add_pins(
    plan: PrecisionPlan, graph: Graph, policy: PlanPolicy, findings: Iterable[Finding]
) -> PrecisionPlan:
    """The plan with more findings: each pins its node, unless it cannot be or is excluded, or is covered by a clamp, or is kept
    for the record.

    A clamp holds only while every node on the way of its mask runs in FP16, since one in FP32 would
    read the constant as it is. A clamp with a pin on its way is given up, and its findings pin.
    """
    settled = [finding for pin in plan.pins for finding in pin.findings] + list(plan.considered)
    clamps, pending = plan.clamps, tuple(findings)
    while True:
        clamped = _by_tensor(clamps)
        settled += [_settle_one(finding, graph, policy, clamped) for finding in pending]
        spread = _spread(graph, settled, clamps)
        settled += [_settle_one(finding, graph, policy, clamped) for finding in spread]
        pinned = {finding.node for finding in settled if finding.action == "pin"}
        broken = [clamp for clamp in clamps if not pinned.isdisjoint(_on_the_way(clamp, graph))]
        if not broken:
            return _gather(graph, replace(plan, clamps=clamps), settled)
        lost = _by_tensor(broken)
        clamps = tuple(clamp for clamp in clamps if clamp not in broken)
        pending = tuple(_free(f) for f in settled if f.action == "clamp" and f.tensor in lost)
        settled = [f for f in settled if f.action != "clamp" or f.tensor not in lost]


def _settle_one(finding: Finding, graph: Graph, policy: PlanPolicy, clamped: Mapping[str, Clamp]) -> Finding:
    """The finding with the action that is left to it, and why."""
    node = graph.by_label[finding.node]
    is_answered = finding.rule in MAGNITUDE_RULES or is_about_a_masked_row(finding)
    if finding.action == "pin" and finding.tensor in clamped and is_answered:
        reason = clamped[finding.tensor].reason
        said = finding.reason if reason in finding.reason else f"{finding.reason}; {reason}"
        return replace(finding, action="clamp", reason=said)
    return settle(finding, node, graph, policy, is_excluded=is_excluded(node, policy))


def _spread(graph: Graph, settled: Iterable[Finding], clamps: Iterable[Clamp]) -> list[Finding]:
    """A finding for each node that is not pinned and shares a region with one that is.

    A node on the way of a clamped mask gets none: what the clamp proved holds in FP16, and a pin would undo it.
    """
    causes: dict[str, Finding] = {}
    reached = {label for clamp in clamps for label in _on_the_way(clamp, graph)}
    for finding in settled:
        if finding.action == "pin" and finding.rule != REGION:
            causes[finding.node] = _graver(causes.get(finding.node), finding)
        elif finding.rule == REGION:
            reached.add(finding.node)
    spread: dict[str, Finding] = {}
    for region in find_regions(graph) if causes else ():
        cause = _cause_in(region, causes)
        if cause is not None:
            others = [label for label in region.nodes if label not in causes and label not in reached]
            spread.update((label, _pass_on(cause, region, label)) for label in others if label not in spread)
    return list(spread.values())


def _cause_in(region: Region, causes: Mapping[str, Finding]) -> Finding | None:
    """The first finding of the greatest severity among the region's nodes, and those that lead it."""
    cause: Finding | None = None
    for label in (*region.lead, *region.nodes):
        if label in causes:
            cause = _graver(cause, causes[label])
    return cause


def _graver(one: Finding | None, other: Finding) -> Finding:
    """The first of two findings, unless the other alone is severe."""
    return other if one is None or (one.severity, other.severity) == ("low", "high") else one


def _pass_on(cause: Finding, region: Region, label: str) -> Finding:
    reason = (
        f"in one {region.kind} with {cause.node}, which the rule {cause.rule} pins: the pattern is computed in one "
        "precision"
    )
    return replace(cause, rule=REGION, node=label, reason=reason)


def _by_tensor(clamps: Iterable[Clamp]) -> dict[str, Clamp]:
    return {tensor: clamp for clamp in clamps for tensor in (clamp.tensor, *clamp.covers)}


def _on_the_way(clamp: Clamp, graph: Graph) -> set[str]:
    """Labels of the nodes that pass the clamped constant on, and of the one that fills a tensor with it."""
    filled = () if clamp.tensor in graph.constants else (clamp.tensor,)
    return {graph.producers[tensor].label for tensor in (*filled, *clamp.covers)}


def _free(finding: Finding) -> Finding:
    reason = f"{finding.reason}; but a node on the way of the mask is pinned, so it is not clamped after all"
    return replace(finding, action="pin", reason=reason)


def _gather(graph: Graph, plan: PrecisionPlan, findings: Iterable[Finding]) -> PrecisionPlan:
    """The plan with one pin a node, in the order of the graph."""
    by_node: dict[str, list[Finding]] = {}
    for finding in findings:
        by_node.setdefault(finding.node, []).append(finding)
    pins, considered = [], []
    for node in sorted((graph.by_label[label] for label in by_node), key=lambda node: node.index):
        kept = tuple(finding for finding in by_node[node.label] if finding.action == "pin")
        considered += [finding for finding in by_node[node.label] if finding.action != "pin"]
        if kept:
            pins.append(Pin(node.label, node.op_type, node.writes, kept))
    return replace(plan, pins=tuple(pins), considered=tuple(considered))


def check_ranges(graph: Graph, ranges: RangeTable) -> None:
    """Raise PlanError unless the ranges were recorded for this very model: see Graph.has_sha256."""
    if not graph.has_sha256(ranges.model_sha256, ranges.model_stamp):
        raise PlanError(
            f"The ranges were recorded for another model (sha256 {ranges.model_sha256[:12]}…) than {graph.path} "
            f"({graph.sha256[:12]}…). Expected the ranges of this very file. Scan it again."
        )


def check_policy(graph: Graph, policy: PlanPolicy) -> None:
    """Raise PlanError for a pattern or an operator that names none of the graph's nodes, or that is both included and excluded."""
    both = [*set(policy.include_nodes).intersection(policy.exclude_nodes)]
    both += set(policy.include_ops).intersection(policy.exclude_ops)
    if both:
        raise PlanError(
            f"{', '.join(map(repr, sorted(both)))} was both included and excluded. Expected each node pattern and operator in one "
            "of the two, since what is excluded is never pinned. Take it out of one."
        )
    labels = [node.label for node in graph.nodes]
    operators = {node.op_type for node in graph.nodes}
    for pattern in (*policy.include_nodes, *policy.exclude_nodes):
        try:
            matches = any(re.search(pattern, label) for label in labels)
        except re.error as error:
            raise PlanError(
                f"The node pattern {pattern!r} is not a regular expression: {error}. Expected one that Python's re "
                "module takes. Escape characters such as ( [ + with a backslash."
            ) from error
        if not matches:
            raise PlanError(
                f"The node pattern {pattern!r} matches none of the {say_plural(len(labels), 'node')} of {graph.path}. Expected at "
                "least one. Look the names up in plan.json or in Netron; a node without a name, or with one that another has too, "
                "goes by node_of_OUTPUT, after its first output."
            )
    for operator in (*policy.include_ops, *policy.exclude_ops):
        if operator not in operators:
            raise PlanError(
                f"{graph.path} has no node of operator {operator!r}. Expected one of: {', '.join(sorted(operators))}."
            )
