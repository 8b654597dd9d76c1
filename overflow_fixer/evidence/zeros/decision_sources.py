"""Which nodes have to be right for comparisons that FP16 decides otherwise: what writes values as small for them.

Of a long chain each node writes for all comparisons behind it. So all are traced at once, and of each node one is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from overflow_fixer.evidence.zeros.lost_decisions import LostDecision, find_lost_decisions
from overflow_fixer.evidence.zeros.small_sources import Part, carry_back, is_lost, trace_badly_held
from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable

_Sources = Iterator[tuple[Node, LostDecision]]


@lru_cache(maxsize=1)
def find_decision_sources(graph: Graph, ranges: RangeTable) -> Mapping[str, LostDecision]:
    """By the label of each node that compares, or writes values for that: the first that reads what it writes, else one behind."""
    lost = [*find_lost_decisions(graph, ranges)]
    found = {one.comparison.node.label: one for one in lost}
    for trace in (_find_writers, _trace_zeros, _trace_badly_held):
        for node, one in trace(graph, ranges, lost):
            found.setdefault(node.label, one)
    return found


def _find_writers(graph: Graph, ranges: RangeTable, lost: Iterable[LostDecision]) -> _Sources:
    """What writes the tensors. A comparison writes no float: it is in FP32 where what it compares is."""
    for one in lost:
        writer = graph.producers.get(one.comparison.tensor)
        if writer is not None and not any(map(graph.is_float, one.comparison.node.writes)):
            yield writer, one


def _trace_zeros(graph: Graph, ranges: RangeTable, lost: Iterable[LostDecision]) -> _Sources:
    """What writes values for them that FP16 makes zero of: in one pass back, by the smallest magnitude that matters to any."""
    told: dict[str, LostDecision] = {}
    for one in lost:
        if abs(one.comparison.number) <= FP16_UNDERFLOW and one.least > 0:
            told.setdefault(one.comparison.tensor, one)
    magnitudes = {name: one.least for name, one in told.items()}
    for node in reversed(graph.nodes) if told else ():
        for name in filter(told.__contains__, node.writes):
            if is_lost(graph, ranges, Part(name, magnitudes[name])):
                yield node, told[name]
                for source, magnitude in carry_back(graph, ranges, node, magnitudes[name]):
                    told.setdefault(source, told[name])
                    magnitudes[source] = min(magnitudes.get(source, magnitude), magnitude)


def _trace_badly_held(graph: Graph, ranges: RangeTable, lost: Iterable[LostDecision]) -> _Sources:
    """What writes values for them as small as a number that FP16 holds badly, or smaller."""
    told: dict[str, float] = {}
    for one in lost:
        number, tensor = abs(one.comparison.number), one.comparison.tensor
        if number > FP16_UNDERFLOW:
            part = Part(tensor, max(number, one.least))
            yield from ((node, one) for node in trace_badly_held(graph, ranges, part, told))
