"""Places between two cells, both of which are looked up and weighed by the rest, x − ⌊x⌋, as a bilinear sample does.

It matters little there to which of the two FP16 rounds such a place: of the cell beside it, it takes all but nothing.
"""

from __future__ import annotations

from overflow_fixer.evidence.semantics import moves, readers
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import CASTS, ROUNDS

_ROUNDS_OR_BOUNDS = ROUNDS | CASTS | {"Clip", "Max", "Min"}


def find_next_cells(graph: Graph, places: str) -> frozenset[str]:
    """The nodes, by label, that make the next cell of places, or the one before, of those; none where no rest is taken of them."""
    whole = _find_whole(graph, places)
    read_by = [(node, slot) for name in whole for node, slot in readers(graph, name)]
    has_rest = any(node.standard_op == "Sub" and whole.issuperset(node.inputs) for node, _ in read_by)
    return frozenset(node.label for node, slot in read_by if has_rest and _adds_one(graph, node, slot))


def _find_whole(graph: Graph, places: str) -> set[str]:
    """The places, and what is made of them by rounding, bounding and moving them."""
    pending, found = [places], {places}
    while pending:
        for node, slot in readers(graph, pending.pop()):
            is_whole = node.standard_op in _ROUNDS_OR_BOUNDS or moves(node, slot)
            fresh = [name for name in node.writes if is_whole and name not in found]
            found.update(fresh)
            pending += fresh
    return found


def _adds_one(graph: Graph, node: Node, slot: int) -> bool:
    if node.standard_op not in ("Add", "Sub"):
        return False
    value = graph.find_constant(node.inputs[1 - slot])
    return value is not None and value.size == 1 and abs(value.item()) == 1
