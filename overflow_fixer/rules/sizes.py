"""Tensors that depend on no data but on its sizes: an identity that is tiled by the batch, a causal mask, positions."""

from __future__ import annotations

from functools import lru_cache

from overflow_fixer.graph import Graph
from overflow_fixer.repeatability import is_repeatable_node

_TELL_SIZES = frozenset({"Shape", "Size"})


@lru_cache(maxsize=2)
def find_fixed_by_sizes(graph: Graph) -> frozenset[str]:
    """What the main graph computes from constants in whose place no batch can feed others, and from sizes, alone."""
    found = set(graph.constants.keys() - graph.defaults)
    for node in graph.nodes:
        is_of_such = found.issuperset(node.reads) and node.standard_op and is_repeatable_node(graph, node)
        if node.standard_op in _TELL_SIZES or is_of_such:
            found.update(node.writes)
    return frozenset(found)
