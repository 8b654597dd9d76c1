"""What makes whole numbers of one term of a difference for another: ⌊x⌋ of x − ⌊x⌋, and c ⌊x / c⌋ of x − c ⌊x / c⌋.

In FP16 it is ⌊x⌋ of a rounded x, which is another whole number where x is just below one: with x itself in FP32 the
fraction is off by 1 then, and what was interpolated lies a whole place beside.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from overflow_fixer.evidence.paths import walk_back
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ROUNDS

_SCALES = frozenset("Mul Div Add Sub Neg Clip Min Max".split())

_MOST_NODES = 16
"""So many are followed: of a long chain of sums each would go through all behind it."""


def find_whole_parts(graph: Graph, node: Node) -> Iterator[Node]:
    """The nodes that round one term, moved or with constants taken in before and behind, so that another is a whole number."""
    for term in node.inputs if node.standard_op in ("Sub", "Add") else ():
        others = frozenset(node.inputs) - {term}
        makers = list(islice(_walk_up_to(graph, term, others), _MOST_NODES))
        rounds = any(one.standard_op in ROUNDS for one in makers)
        if rounds and any(not others.isdisjoint(one.inputs) and _is_plain(graph, one) for one in makers):
            yield from makers


def _walk_up_to(graph: Graph, term: str, others: frozenset[str]) -> Iterator[Node]:
    def goes_on(writer: Node, name: str) -> bool:
        return name not in others and name not in graph.constants and _is_plain(graph, writer)

    return walk_back(graph, term, goes_on)


def _is_plain(graph: Graph, node: Node) -> bool:
    """Whether it rounds to whole numbers, moves what it reads, or takes in constants alone."""
    live = [name for name in node.inputs if name not in graph.constants]
    is_scaled = node.standard_op in _SCALES and len(live) == 1
    return node.standard_op in ROUNDS or is_scaled or moves(node, 0)
