"""A constant in the place of some elements of a tensor, as masked_fill puts it there."""

from __future__ import annotations

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node

_REPEATS = frozenset("Expand Tile Reshape Unsqueeze Identity Cast".split())


def is_filled(graph: Graph, node: Node, slot: int) -> bool:
    """Whether the node is a Where that puts a constant, repeated or not, in the place of some of what it reads there."""
    if node.standard_op != "Where" or slot == 0:
        return False
    name = node.inputs[3 - slot]
    while (maker := graph.producers.get(name)) is not None and maker.standard_op in _REPEATS:
        name = maker.inputs[0]
    return name in graph.constants or (maker is not None and maker.standard_op == "ConstantOfShape")
