"""What any rule finds inside the body of an If, Loop or Scan pins the node: it runs in one precision as a whole.

Each body is judged as a model of its own, by the ranges that were recorded of its tensors over all of its runs. What begins
on one side of a body's edge and shows on the other is found in the graph with its bodies inlined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from weakref import WeakKeyDictionary

from overflow_fixer.evidence.body_ranges import look_into
from overflow_fixer.evidence.inlined_bodies import inline_bodies
from overflow_fixer.graph.body_graphs import Body, find_bodies
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.settling import settle

RULE = "control_flow"

_OF_THE_MODEL = frozenset({RULE, "user", "vanishing_output"})
"""Rules that are not asked of a body: this one goes on by itself, the user's words name nodes of the model, and a body's
outputs are not the model's."""
_FOLLOWING = (
    "vanishing_constant",
    "vanishing_divisor",
    "vanishing_output",
    "small_value",
    "lost_integer",
    "lost_box",
    "lost_comparison",
    "lost_difference",
    "lost_logit",
    "lost_phase",
    "lost_place",
    "lost_power",
    "lost_size",
)
"""Rules that follow values from node to node."""
_Findings = Mapping[str, tuple[Finding, ...]]
"""By the label of the node that they are about."""

_judged: WeakKeyDictionary[RangeTable, tuple[Graph, PlanPolicy, _Findings]] = WeakKeyDictionary()


def find_inside_bodies(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """Every finding inside the node's bodies, nested ones too, by the name of the rule that found it.

    And what is found of any node, because of what a body does with what it writes, or with what it reads.
    Its tensor is named as in the ranges, NODE/ATTRIBUTE/TENSOR; a constant that the body captures keeps its name.
    For the record only are findings about what computes no FP32 and about operators that the user excludes.
    """
    known = _judged.get(ranges)
    if known is None or known[0] is not graph or known[1] != policy:  # all at once: rules remember one graph
        inside = _judge_bodies(graph, ranges, policy)
        across = _judge_across(graph, ranges, policy, inside) if inside else {}
        found = {label: (*inside.get(label, ()), *across.get(label, ())) for label in (*inside, *across)}
        known = graph, policy, found
        _judged[ranges] = known
    yield from known[2].get(node.label, ())


def _judge_bodies(graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> _Findings:
    found: dict[str, tuple[Finding, ...]] = {}
    bodies = find_bodies(graph).read
    for body, view in zip(bodies, look_into(bodies, ranges), strict=True):
        inside = (_tell_outside(body, finding) for finding in _judge(body.graph, view, policy))
        found[body.node.label] = (*found.get(body.node.label, ()), *inside)
    return found


def _judge(graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    from overflow_fixer.rules import DEFAULT_RULES  # this rule is in the table

    rules = [rule for name, rule in DEFAULT_RULES.items() if name not in _OF_THE_MODEL]
    nested = _judge_bodies(graph, ranges, policy)
    for node in graph.nodes:
        found = [finding for rule in rules for finding in rule(node, graph, ranges, policy)]
        is_excluded = node.op_type in policy.exclude_ops
        for finding in dict.fromkeys(found):
            yield settle(finding, node, graph, policy, is_excluded=is_excluded)
        yield from nested.get(node.label, ())


def _tell_outside(body: Body, finding: Finding) -> Finding:
    """The same about the node whose body it is."""
    is_outer = finding.tensor in ("", *body.captured_constants)
    named = replace(finding, tensor=finding.tensor if is_outer else body.prefix + finding.tensor)
    return _about_the_node(body, named, finding.node)


def _about_the_node(body: Body, finding: Finding, inner: str) -> Finding:
    reason = f"inside {body.name}, node {inner}: {finding.reason}"
    return replace(finding, node=body.node.label, reason=reason)


def _judge_across(
    graph: Graph, ranges: RangeTable, policy: PlanPolicy, inside: _Findings
) -> dict[str, tuple[Finding, ...]]:
    """What rules that follow values find with the bodies inlined, but not on one side alone."""
    from overflow_fixer.rules import DEFAULT_RULES

    rules, flat = [DEFAULT_RULES[name] for name in _FOLLOWING], inline_bodies(graph, ranges)
    known = {(f.rule, f.node, f.value) for found in inside.values() for f in found}
    known |= {(f.rule, f.node, f.value) for f in _ask(rules, graph, ranges, policy)}
    bodies = find_bodies(graph).read
    across: dict[str, tuple[Finding, ...]] = {}
    for finding in _ask(rules, flat, ranges, policy):
        body = next((body for body in bodies if finding.node.startswith(body.prefix)), None)
        finding = finding if body is None else _settle_inside(body, finding, flat, policy)
        key = finding.rule, finding.node, finding.value
        if finding.node in graph.by_label and key not in known:
            known.add(key)
            across[finding.node] = (*across.get(finding.node, ()), finding)
    return across


def _settle_inside(body: Body, finding: Finding, flat: Graph, policy: PlanPolicy) -> Finding:
    node = flat.by_label[finding.node]
    is_excluded = node.op_type in policy.exclude_ops
    settled = settle(finding, node, flat, policy, is_excluded=is_excluded)
    return _about_the_node(body, settled, finding.node.removeprefix(body.prefix))


def _ask(
    rules: Iterable[Callable[..., Iterator[Finding]]], graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    for rule in rules:
        for node in graph.nodes:
            yield from rule(node, graph, ranges, policy)
