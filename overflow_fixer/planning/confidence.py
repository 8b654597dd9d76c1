"""How sure a plan is: how near the threshold tensors came, and whether more calibration data would change it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from overflow_fixer.annotations import held_to_types
from overflow_fixer.backends.fit import check_model
from overflow_fixer.evidence.body_ranges import look_into
from overflow_fixer.evidence.inner_functions import find_functions, find_source
from overflow_fixer.formats import FP16_MAX
from overflow_fixer.graph.body_graphs import find_bodies
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner import NO_MAGNITUDES
from overflow_fixer.planning.extremes import UNKNOWN, find_extremes
from overflow_fixer.planning.falling import find_falling
from overflow_fixer.planning.plan import check_ranges
from overflow_fixer.ranges.lasting import find_lasting
from overflow_fixer.records import Confidence, Growth, PlanPolicy, PrecisionPlan, Range, RangeTable
from overflow_fixer.rules.inner_value import SQUARED
from overflow_fixer.rules.settling import is_pinnable, protection_of

DOUBLINGS = 2
"""How much more data is asked about: four times what there is."""
_FLOOR_BITS = 40.0
"""Batches with magnitudes further under a tensor's maximum than that count as this far."""


@dataclass(frozen=True)
class _Candidate:
    """A value within its limit that would pin a node over it: `value` is the largest, `by_batch` that of each batch."""

    name: str
    value: float
    limit: float
    by_batch: npt.NDArray[np.float64]
    worst_batch: int


@held_to_types
def judge_confidence(
    graph: Graph, ranges: RangeTable, plan: PrecisionPlan, policy: PlanPolicy | None = None
) -> Confidence:
    """Whether more data of the same kind would pin more.

    Asked of each tensor that is within the threshold, that no Clip, Min, Max, Sigmoid or the like holds within it, and
    that a node which is not pinned reads or writes, or has in a body; and of each value inside such a node, measured or
    following from a tensor, within the threshold (a bound: 65504). What is made of constants alone is left out: no data
    can move it. `policy` tells which nodes the backend protects, and whether sums of products count. A maximum is taken to
    go on growing, with each doubling of the data, by as many bits as it grew, on average, from a random half of the
    batches that show it to all of them: log2 of the maximum less the mean log2 of the maxima of all halves. What is divided
    by is asked of by its smallest element, in the main graph. An estimate: batches are taken
    to be alike, and few of them tell little. Raises PlanError for ranges or a plan of another model.
    """
    check_ranges(graph, ranges)
    check_model(graph, plan)
    policy = policy or PlanPolicy()
    found = [
        *_find_tensors(graph, ranges, plan),
        *_find_measured(graph, ranges, plan, policy),
        *_find_functions(graph, ranges, plan, policy),
    ]
    values = np.array([one.by_batch for one in found]).reshape(len(found), len(ranges.batch_names))
    growths = [_describe(one, bits) for one, bits in zip(found, grow(values), strict=True)]
    growths.sort(key=lambda growth: growth.margin_bits)
    at_risk = tuple(growth for growth in growths if growth.margin_bits < DOUBLINGS * growth.growth_bits)
    falling = find_falling(graph, ranges, plan, DOUBLINGS)
    return Confidence(len(ranges.batch_names), tuple(growths), at_risk, falling)


def grow(batch_max_abs: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """For maxima [tensor, batch], the mean growth of log2 max by a doubling of the batches, in bits.

    It is that from half of the batches that show something to all of them: where a maximum is NaN (no element in that batch,
    a branch that did not run) or zero, nothing tells of its growth. NaN where fewer than two do. Of an odd number, of which
    the smaller half is taken, it is so much less as that is more than a doubling. The mean over all halves is exact: the i-th
    largest of N is the maximum of comb(N - i, h - 1) of the comb(N, h) halves.
    """
    maxima = np.nan_to_num(batch_max_abs.astype(np.float64))
    ordered, counts = -np.sort(-maxima, axis=1), (maxima > 0).sum(axis=1)
    growths = np.full(len(maxima), math.nan)
    for count in np.unique(counts[counts > 1]).tolist():
        logs = np.log2(ordered[counts == count, :count])
        below = np.minimum(logs[:, :1] - logs, _FLOOR_BITS)
        growths[counts == count] = below @ np.array(list(_weigh(count))) / math.log2(count / (count // 2))
    return growths


def _weigh(batches: int) -> Iterator[float]:
    """The share of halves of which the i-th largest is the maximum."""
    half, weight = batches // 2, (batches // 2) / batches
    for i in range(1, batches + 1):
        yield weight
        weight *= max(batches - i - half + 1, 0) / max(batches - i, 1)


def _list_inside(graph: Graph) -> Iterator[tuple[str, Node]]:
    """The float tensors that bodies of control flow compute or are given, by their names in the ranges, and whose they are."""
    for body in find_bodies(graph).read:
        still = body.graph.constants.keys() | _find_still(body.graph)
        names = (n for n in body.graph.tensors if body.graph.is_float(n) and n not in still)
        yield from ((body.prefix + name, body.node) for name in names)
        yield from ((body.prefix + name, body.node) for name, _ in _list_inside(body.graph))


def _find_tensors(graph: Graph, ranges: RangeTable, plan: PrecisionPlan) -> Iterator[_Candidate]:
    inside, extremes = dict(_list_inside(graph)), find_extremes(graph, ranges)
    for row, seen in enumerate(ranges.ranges):
        low, high = extremes.get(seen.tensor, UNKNOWN)
        is_open = max(-low, high) > plan.threshold
        if is_open and _matters(graph, plan, seen, inside):
            by_batch = ranges.batch_max_abs[row].astype(np.float64)
            yield _Candidate(seen.tensor, seen.max_abs, plan.threshold, by_batch, seen.worst_batch)


def _find_measured(
    graph: Graph, ranges: RangeTable, plan: PrecisionPlan, policy: PlanPolicy
) -> Iterator[_Candidate]:
    """Values that the scan measured inside nodes, sums of products in every batch; a masked row, a margin and ratios are no magnitudes."""
    owners = {node.label: (node, node) for node in _list_moved(graph)} | dict(_list_nodes_inside(graph))
    ignored = NO_MAGNITUDES if policy.accumulators == "pin" else NO_MAGNITUDES | {"products"}
    for inner in ranges.inner:
        node, owner = owners.get(inner.node, (None, None))
        if node is None or owner is None or inner.quantity in ignored:
            continue
        if owner.label in plan.pinned or protection_of(node, policy) is not None:
            continue
        power = 2 if inner.quantity in SQUARED else 1
        limit = FP16_MAX if inner.is_bound or inner.quantity == "products" else plan.threshold
        by_batch = inner.batch_max_abs.astype(np.float64) ** power
        value = inner.seen.max_abs**power
        is_whole = inner.quantity != "products" or not np.isnan(by_batch).any()
        if 0 < value <= limit and len(by_batch) and is_whole and not np.isinf(by_batch).any():
            yield _Candidate(inner.seen.tensor, value, limit, by_batch, inner.seen.worst_batch)


def _find_functions(
    graph: Graph,
    ranges: RangeTable,
    plan: PrecisionPlan,
    policy: PlanPolicy,
    owner: Node | None = None,
    prefix: str = "",
) -> Iterator[_Candidate]:
    """Values inside nodes that follow from a tensor. Of a body, `owner` is the node of the main graph, `prefix` the body's."""
    row_of = {seen.tensor: row for row, seen in enumerate(ranges.ranges)}
    for node in graph.nodes:
        is_open = (owner or node).label not in plan.pinned and protection_of(node, policy) is None
        seen = find_source(node, graph, ranges) if is_open else None
        if seen is not None and seen.tensor not in _find_still(graph):
            by_batch = ranges.batch_max_abs[row_of[seen.tensor]].tolist()
            yield from _follow(node, graph, seen, by_batch, plan, prefix)
    bodies = find_bodies(graph).read
    for body, view in zip(bodies, look_into(bodies, ranges), strict=True):
        inside = owner or body.node, prefix + body.prefix
        yield from _find_functions(body.graph, view, plan, policy, *inside)


def _follow(
    node: Node, graph: Graph, seen: Range, max_abs: Sequence[float], plan: PrecisionPlan, prefix: str
) -> Iterator[_Candidate]:
    batches = [list(find_functions(node, graph, _in_batch(seen, most))) for most in max_abs]
    for place, one in enumerate(find_functions(node, graph, seen)):
        limit = FP16_MAX if one.is_bound else plan.threshold
        if 0 < one.value <= limit and not one.is_least:
            values = np.array([batch[place].value for batch in batches])
            name = f"{prefix}{node.label}: {one.text}"
            yield _Candidate(name, one.value, limit, values, seen.worst_batch)


def _in_batch(seen: Range, max_abs: float) -> Range:
    """The range in a batch of which the largest magnitude alone is known: the largest element is taken to grow as that does."""
    return replace(seen, max_abs=max_abs, max=seen.max * max_abs / seen.max_abs if seen.max_abs else seen.max)


def _list_nodes_inside(graph: Graph) -> Iterator[tuple[str, tuple[Node, Node]]]:
    """The nodes of bodies by their names in the ranges, each with the node of the main graph that it belongs to."""
    for body in find_bodies(graph).read:
        for node in _list_moved(body.graph):
            yield body.prefix + node.label, (node, body.node)
        for name, (node, _) in _list_nodes_inside(body.graph):
            yield body.prefix + name, (node, body.node)


@lru_cache(maxsize=8)
def _find_still(graph: Graph) -> frozenset[str]:
    """What no data can move: constants that no batch may replace, and what is made of them alone."""
    return find_lasting(graph).union(graph.constants.keys() - graph.defaults)


def _list_moved(graph: Graph) -> list[Node]:
    """The nodes whose results depend on more than constants."""
    fixed = _find_still(graph)
    return [node for node in graph.nodes if not fixed.issuperset(node.writes)]


def _matters(graph: Graph, plan: PrecisionPlan, seen: Range, inside: Mapping[str, Node]) -> bool:
    """Whether the tensor is within the threshold, and over it would pin another node."""
    if (
        seen.tensor in graph.constants
        or seen.tensor in _find_still(graph)
        or not 0 < seen.max_abs <= plan.threshold
        or seen.nan_count
    ):
        return False
    if seen.tensor in inside:
        return inside[seen.tensor].label not in plan.pinned
    producer = graph.producers.get(seen.tensor)
    touching = (*graph.consumers.get(seen.tensor, ()), *((producer,) if producer else ()))
    return any(node.label not in plan.pinned and is_pinnable(graph, node) for node in touching)


def _describe(one: _Candidate, growth_bits: float) -> Growth:
    headroom, margin = math.log2(FP16_MAX / one.value), math.log2(one.limit / one.value)
    return Growth(one.name, one.value, headroom, margin, float(growth_bits), one.worst_batch)
