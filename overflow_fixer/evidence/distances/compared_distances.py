"""Squared distances, written out as |a|² + |b|² − 2ab, that are compared with a constant radius: who is near enough.

Whatever the nearest and the farthest are, it is decided at the radius. Where that is a few of FP16's steps at |a|², many
points are taken for near, or for far.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from overflow_fixer.evidence.differences.losses import FEWEST_STEPS, LostDifference, tell_steps
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.differences.terms import find_terms
from overflow_fixer.evidence.distances.squared_distances import hands_on, is_distance, read_sole_number
from overflow_fixer.evidence.measured import are_finite
from overflow_fixer.evidence.paths import find_ways
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import COMPARES
from overflow_fixer.graph.powers import is_root
from overflow_fixer.records import RangeTable


class _Comparison(NamedTuple):
    """The node that compares, the way of a distance there, and the square of the radius."""

    node: Node
    way: tuple[Node, ...]
    square: float


def find_compared_distances(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each for which less than 64 of FP16's steps at the largest term are at the radius; the value is its square.

    Behind moves, bounds, signs and a root, too. None of terms or distances with NaN or infinities, or that are all on one side.
    """
    for node in filter(partial(is_distance, graph), graph.nodes):
        terms = find_terms(graph, node)
        if not terms or not are_finite(graph, ranges, *terms, *node.writes):
            continue
        name, largest = node.outputs[0], max(ranges.by_tensor[name].max_abs for name in terms)
        seen, limit = ranges.by_tensor[name], FEWEST_STEPS * step_at(largest)
        for compared in _find_comparisons(graph, ranges, node):
            if seen.min < compared.square < min(limit, seen.max):
                reason = (
                    f"{compared.node.op_type} {compared.node.label} decides where {name} is {compared.square:.6g}, and its "
                    f"terms, up to {largest:.6g}, lose much: {tell_steps(largest)}"
                )
                nodes = (*find_sources(graph, ranges, node, compared.square), *compared.way)
                yield LostDifference(nodes, name, compared.square, limit, reason)
                break


def _find_comparisons(graph: Graph, ranges: RangeTable, node: Node) -> Iterator[_Comparison]:
    def compares(reader: Node, slot: int) -> bool:
        return reader.standard_op in COMPARES and read_sole_number(graph, ranges, reader) > 0

    hands = partial(hands_on, graph)
    for end in find_ways(graph, node.outputs[0], hands, compares):
        if end.standard_op in COMPARES:
            here = find_ways(graph, node.outputs[0], hands, partial(_is_same, end))
            way = tuple(one for one in here if one is not end)
            roots = sum(is_root(graph, one) for one in way)
            yield _Comparison(end, way, read_sole_number(graph, ranges, end) ** (2**roots))


def _is_same(end: Node, reader: Node, slot: int) -> bool:
    return reader is end
