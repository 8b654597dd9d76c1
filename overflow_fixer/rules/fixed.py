"""Tensors that no data can move: constants, and what standard operators make of constants alone."""

from __future__ import annotations

from functools import lru_cache

from overflow_fixer.graph import Graph
from overflow_fixer.repeatability import is_repeatable_node


@lru_cache(maxsize=8)
def find_fixed(graph: Graph) -> frozenset[str]:
    """Those of this graph, those of its bodies left out, but not a constant that a batch may replace, nor what is drawn at random."""
    found = set(graph.constants.keys() - graph.defaults)
    for node in graph.nodes:
        is_of_constants = bool(node.reads) and found.issuperset(node.reads)
        if is_of_constants and node.is_standard and is_repeatable_node(graph, node):
            found.update(node.writes)
    return frozenset(found)
