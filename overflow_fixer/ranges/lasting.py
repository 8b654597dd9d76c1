"""Tensors that are computed from constants alone: the same in each run, so that one look is enough."""

from __future__ import annotations

from overflow_fixer.graph import Graph
from overflow_fixer.ranges.repeatability import is_repeatable_node


def find_lasting(graph: Graph) -> frozenset[str]:
    """Those that standard operators compute, of constants that no batch can replace."""
    held = graph.constants.keys() - graph.defaults
    found: set[str] = set()
    for node in graph.nodes:
        is_fixed = node.is_standard and is_repeatable_node(graph, node)
        if is_fixed and all(name in held or name in found for name in node.reads):
            found.update(name for name in node.writes if name not in held)
    return frozenset(found)
