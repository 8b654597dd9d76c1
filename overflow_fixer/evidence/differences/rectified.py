"""What a Relu lets through of a difference: max(s − t, 0), of which the values below zero, however large, are no matter."""

from __future__ import annotations

import numpy as np

from overflow_fixer.evidence.semantics import readers
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node


def name_what_is_left(graph: Graph, node: Node) -> str:
    """The tensor that tells how much is left of what the node writes: what a rectifier makes of it, if that alone reads it."""
    name = node.outputs[0]
    behind = list(readers(graph, name)) if name not in graph.outputs else []
    is_rectified = len(behind) == len(graph.consumers.get(name, ())) == 1 and rectifies(graph, *behind[0])
    return behind[0][0].outputs[0] if is_rectified else name


def rectifies(graph: Graph, node: Node, slot: int) -> bool:
    """Whether it makes zero of all that is below, as Relu does, Clip with a least bound of 0, and Max with constant zeros."""
    if node.standard_op == "Relu":
        return True
    if node.standard_op == "Max" and len(node.inputs) == 2:
        return _is_zero(graph, node.inputs[1 - slot])
    if node.standard_op != "Clip" or slot != 0:
        return False
    attribute = node.attribute("min")  # below opset 11
    if attribute is not None:
        return bool(attribute.f == 0)
    return len(node.inputs) > 1 and _is_zero(graph, node.inputs[1])


def _is_zero(graph: Graph, tensor: str) -> bool:
    value = graph.find_constant(tensor)
    return value is not None and bool(value.size) and not np.any(value)
