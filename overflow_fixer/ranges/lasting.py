"""Tensors that are computed from constants alone: the same in each run, so that one look is enough."""

from __future__ import annotations

from overflow_fixer.graph import Graph
from overflow_fixer.ranges.repeatability import is_repeatable_node


def find_lasting(graph: Graph) -> frozenset[str]:
    """Those that standard operators compute, of constants that no batch can replace."""
    held = graph.constants.keys() - graph.defaults
    fixed = set(held)
    for node in graph.nodes:
        if fixed.issuperset(node.reads) and node.is_standard and is_repeatable_node(graph, node):
            fixed.update(node.writes)
    return frozenset(fixed - held)
