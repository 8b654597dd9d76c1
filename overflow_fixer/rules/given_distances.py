"""Squared distances, written out as |a|² + |b|² − 2ab, that are given out: whoever reads them looks for the nearest.

The nearest of all shows in the range; where it is less than a few of FP16's steps at |a|², it and others come out as
anything, below zero too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.chosen_differences import FP32_NOISE, is_distance, keeps_size
from overflow_fixer.rules.divided_differences import MOST_ROUNDED
from overflow_fixer.rules.origins import find_origins
from overflow_fixer.rules.paths import walk_back
from overflow_fixer.rules.small_differences import DIFFERENCES, FEWEST_STEPS, find_lost_terms, is_finite


class Given(NamedTuple):
    """The nodes that are to stay in FP32, that of the distances first, the least of these, the largest term, and what gives them out."""

    nodes: tuple[Node, ...]
    least: float
    largest: float
    output: str

    @property
    def limit(self) -> float:
        return FEWEST_STEPS * step_at(self.largest)


def find_given_distances(graph: Graph, ranges: RangeTable) -> Iterator[Given]:
    """Those of which the least is less than 64 of FP16's steps at the largest term, and more than FP32's own rounding.

    Behind moves, bounds and roots, too. None of terms or distances with NaN or infinities.
    """
    for output in graph.outputs:
        for node in _find_sums_given(graph, output):
            if not is_distance(graph, node) or not all(
                is_finite(graph, ranges, name) for name in (*node.inputs, *node.writes)
            ):
                continue
            largest = max(ranges.by_tensor[name].max_abs for name in node.inputs)
            least = ranges.by_tensor[node.outputs[0]].min
            found = Given(tuple(_find_sources(graph, ranges, node, least)), least, largest, output)
            if FP32_NOISE * largest < least < found.limit:
                yield found


def _find_sums_given(graph: Graph, output: str) -> Iterator[Node]:
    """The last sums before the output, behind what keeps their size: from outputs, since of long chains of sums these are few."""

    def keeps(node: Node, name: str) -> bool:
        return node.standard_op not in DIFFERENCES and _keeps(node, node.inputs.index(name))

    return (node for node in walk_back(graph, output, keeps) if node.standard_op in DIFFERENCES)


def _keeps(node: Node, slot: int) -> bool:
    return keeps_size(node, slot) or node.standard_op == "Sqrt"


def _find_sources(graph: Graph, ranges: RangeTable, node: Node, least: float) -> Iterator[Node]:
    """The node, and those whose rounding moves its terms by more than a 64th of the least distance."""
    yield node
    for name in find_lost_terms(graph, ranges, node):
        yield from find_origins(graph, ranges, name, MOST_ROUNDED * least)
