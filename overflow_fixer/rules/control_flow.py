"""What any rule finds inside the body of an If, Loop or Scan pins the node: it runs in one precision as a whole.

Each body is judged as a model of its own, by the ranges that were recorded of its tensors over all of its runs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

from overflow_fixer.body_graphs import Body, find_bodies
from overflow_fixer.graph import Graph
from overflow_fixer.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.settling import settle

RULE = "control_flow"

_OF_THE_MODEL = frozenset({RULE, "user"})
"""Rules that are not asked of a body: this one goes on by itself, and the user's words name nodes of the model."""
_Findings = Mapping[str, tuple[Finding, ...]]
"""By the label of the node that they are about."""

_judged: WeakKeyDictionary[RangeTable, tuple[Graph, PlanPolicy, _Findings]] = WeakKeyDictionary()


def find_inside_bodies(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """Every finding inside the node's bodies, nested ones too, by the name of the rule that found it.

    Its tensor is named as in the ranges, NODE/ATTRIBUTE/TENSOR; a constant that the body captures keeps its name.
    For the record only are findings about what computes no FP32 and about operators that the user excludes.
    """
    known = _judged.get(ranges)
    if known is None or known[0] is not graph or known[1] != policy:  # all at once: rules remember one graph
        known = graph, policy, _judge_bodies(graph, ranges, policy)
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
    return replace(
        finding,
        node=body.node.label,
        tensor=finding.tensor if is_outer else body.prefix + finding.tensor,
        reason=f"inside {body.name}, node {finding.node}: {finding.reason}",
    )


def look_into(bodies: Sequence[Body], ranges: RangeTable) -> Iterator[RangeTable]:
    """For each body the ranges of its tensors, nested ones too, by the names that they have in it."""
    prefixes = sorted(body.prefix for body in bodies)
    tensors = [seen.tensor for seen in ranges.ranges] if bodies else []
    row_of = {tensor: row for row, tensor in enumerate(tensors)}
    rows, inner = _share_out(tensors, prefixes), _share_out([one.node for one in ranges.inner], prefixes)
    for body in bodies:
        start = len(body.prefix)
        names = {row: tensors[row][start:] for row in rows[body.prefix]}
        names |= {row_of[name]: name for name in sorted(body.captured_constants) if name in row_of}
        values = (ranges.inner[place] for place in inner[body.prefix])
        yield replace(
            ranges,
            ranges=tuple(replace(ranges.ranges[row], tensor=name) for row, name in names.items()),
            batch_max_abs=ranges.batch_max_abs[list(names)],
            inner=tuple(replace(one, node=one.node[start:]) for one in values),
            not_observed={},
        )


def _share_out(names: Sequence[str], prefixes: Sequence[str]) -> dict[str, list[int]]:
    """The places of the names that begin with each prefix. These are sorted, and none begins another."""
    found: dict[str, list[int]] = {prefix: [] for prefix in prefixes}
    for place, name in enumerate(names if prefixes else ()):
        prefix = prefixes[bisect_right(prefixes, name) - 1]
        if name.startswith(prefix):
            found[prefix].append(place)
    return found
