"""How sure a plan is: how near the threshold tensors came, and whether more calibration data would change it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from overflow_fixer.body_graphs import find_bodies
from overflow_fixer.graph import Graph, Node
from overflow_fixer.records import Confidence, Growth, PrecisionPlan, RangeTable
from overflow_fixer.rules.settling import is_pinnable

DOUBLINGS = 2
"""How much more data is asked about: four times what there is."""
_FLOOR_BITS = 40.0
"""Batches with magnitudes further under a tensor's maximum than that count as this far."""


def judge_confidence(graph: Graph, ranges: RangeTable, plan: PrecisionPlan) -> Confidence:
    """Whether more data of the same kind would pin more.

    Asked of each tensor that is within the threshold, and that a node which is not pinned reads or writes, or has in
    a body. Its
    maximum is taken to go on growing, with each doubling of the data, by as many bits as it grew, on average, from
    a random half of the batches to all: log2 of the maximum less the mean log2 of the maxima of all halves. An
    estimate: batches are taken to be alike, and few of them tell little.
    """
    inside = dict(_list_inside(graph))
    rows = [row for row in range(len(ranges.ranges)) if _matters(graph, ranges, plan, row, inside)]
    grown = grow(ranges.batch_max_abs[rows])
    found = [_describe(ranges, row, bits, plan.threshold) for row, bits in zip(rows, grown, strict=True)]
    found.sort(key=lambda growth: growth.margin_bits)
    at_risk = tuple(growth for growth in found if growth.margin_bits <= DOUBLINGS * growth.growth_bits)
    return Confidence(len(ranges.batch_names), tuple(found), at_risk)


def grow(batch_max_abs: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """For maxima [tensor, batch], the mean growth of log2 max from half of the batches to all, in bits; 0 for one batch.

    A NaN (no element in that batch) and a zero count as far smaller than the maximum. The mean over all halves is
    exact: the i-th largest of N is the maximum of comb(N - i, h - 1) of the comb(N, h) halves.
    """
    tensors, batches = batch_max_abs.shape
    if batches < 2:
        return np.zeros(tensors)
    ordered = -np.sort(-np.nan_to_num(batch_max_abs.astype(np.float64)), axis=1)
    most = ordered[:, :1]
    with np.errstate(divide="ignore", invalid="ignore"):
        below = np.where(most > 0, np.log2(most) - np.log2(ordered), 0)
    return np.asarray(np.minimum(below, _FLOOR_BITS) @ np.array(list(_weigh(batches))))


def _weigh(batches: int) -> Iterator[float]:
    """The share of halves of which the i-th largest is the maximum."""
    half, weight = batches // 2, (batches // 2) / batches
    for i in range(1, batches + 1):
        yield weight
        weight *= max(batches - i - half + 1, 0) / max(batches - i, 1)


def _list_inside(graph: Graph) -> Iterator[tuple[str, Node]]:
    """The float tensors that bodies of control flow compute or are given, by their names in the ranges, and whose they are."""
    for body in find_bodies(graph).read:
        constants = body.graph.constants
        names = (n for n in body.graph.tensors if body.graph.is_float(n) and n not in constants)
        yield from ((body.prefix + name, body.node) for name in names)
        yield from ((body.prefix + name, body.node) for name, _ in _list_inside(body.graph))


def _matters(
    graph: Graph, ranges: RangeTable, plan: PrecisionPlan, row: int, inside: Mapping[str, Node]
) -> bool:
    """Whether the tensor is within the threshold, and over it would pin another node."""
    seen = ranges.ranges[row]
    if seen.tensor in graph.constants or not 0 < seen.max_abs <= plan.threshold or seen.nan_count:
        return False
    if seen.tensor in inside:
        return inside[seen.tensor].label not in plan.pinned
    producer = graph.producers.get(seen.tensor)
    touching = (*graph.consumers.get(seen.tensor, ()), *((producer,) if producer else ()))
    return any(node.label not in plan.pinned and is_pinnable(graph, node) for node in touching)


def _describe(ranges: RangeTable, row: int, growth_bits: float, threshold: float) -> Growth:
    seen = ranges.ranges[row]
    margin = math.log2(threshold / seen.max_abs)
    return Growth(seen.tensor, seen.max_abs, seen.headroom, margin, float(growth_bits), seen.worst_batch)
