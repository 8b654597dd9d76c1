"""Which nodes have to be right for a difference to be."""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.evidence.differences.losses import MOST_ROUNDED
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.differences.whole_parts import find_whole_parts
from overflow_fixer.evidence.kernels.difference_kernels import find_kernels
from overflow_fixer.evidence.origins import Walked, find_origins
from overflow_fixer.graph.distances import find_joining
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable


def find_sources(
    graph: Graph,
    ranges: RangeTable,
    node: Node,
    left: float,
    walked: Walked | None = None,
) -> Iterator[Node]:
    """The node that computes a difference, and those whose rounding moves its terms by more than a 64th of what is `left`.

    Of distances as one product also what joins its operands, and of x − ⌊x⌋ what makes ⌊x⌋, which has to be of the same x. A
    kernel that adds up to zero scales what it reads.
    """
    most = MOST_ROUNDED * left / find_kernels(graph).get(node.label, 1.0)
    yield node
    yield from find_joining(graph, node)
    yield from find_whole_parts(graph, node)
    for name in find_lost_terms(graph, ranges, node):
        yield from find_origins(graph, ranges, name, most, walked)
