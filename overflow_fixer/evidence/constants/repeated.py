"""Constants that are repeated, whatever says how often: their values are the same for data of any size."""

from __future__ import annotations

from functools import lru_cache

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.operators import CASTS, REARRANGES

_REPEATS = REARRANGES | CASTS | {"Expand", "Tile"}


@lru_cache(maxsize=2)
def find_repeated(graph: Graph) -> frozenset[str]:
    """The constants in whose place no batch can feed others, and the tensors of the main graph that have their elements alone."""
    found = set(graph.constants.keys() - graph.defaults)
    for node in graph.nodes:
        if node.standard_op in _REPEATS and node.inputs[0] in found:
            found.update(node.writes)
    return frozenset(found)
