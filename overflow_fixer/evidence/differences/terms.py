"""What a sum or a difference is of, and what of that FP16 rounds."""

from __future__ import annotations

from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.graph.distances import find_joined_squares
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS
from overflow_fixer.records import RangeTable


def find_terms(graph: Graph, node: Node) -> tuple[str, ...]:
    """What a sum or a difference adds up; of distances as one product the squares in it; none of other nodes."""
    return node.inputs if node.standard_op in ADDS else find_joined_squares(graph, node)


def find_lost_terms(graph: Graph, ranges: RangeTable, node: Node) -> tuple[str, ...]:
    """The terms, each once, that FP16 is not known to hold; none of integers, which are another rule's, and no constant.

    Of a node that is no sum and no difference, such as a BatchNormalization, they are what it reads.
    """
    multiples = find_multiples(graph, ranges)
    read = find_terms(graph, node) or node.inputs
    terms = (name for name in dict.fromkeys(read) if name not in graph.constants)
    return tuple(name for name in terms if not multiples.is_lost(name) and not multiples.is_held(name))
