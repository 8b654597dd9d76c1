"""Steps from a tensor back to what it is made from, past nodes that hand values on or take a constant in.

A way is followed for a few nodes at most, so that a pattern is looked for in constant time a node.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.repeatability import is_repeatable_node

_LONGEST = 8
"""Nodes that stand in a row between two steps of a pattern."""
_MOST_NODES = 40
"""Nodes that belong to one pattern."""
_MOST_MAKERS = 4
"""Nodes that make a constant of others."""
HAND_ON = frozenset({"Cast", "Identity", "Dropout", "Expand"})
"""Operators that hand the values of their first input on."""


def writer(graph: Graph, tensor: str, *operators: str) -> Node | None:
    """The node that makes the tensor's values, if its operator is one of these."""
    node = graph.producers.get(origin(graph, tensor))
    return node if node is not None and node.standard_op in operators else None


def origin(graph: Graph, tensor: str) -> str:
    """The tensor that the values come from, before casts and other nodes that hand them on."""
    for _ in range(_LONGEST):
        node = graph.producers.get(tensor)
        if node is None or not _hands_on(graph, node):
            break
        tensor = node.inputs[0]
    return tensor


def is_same(graph: Graph, one: str, other: str) -> bool:
    """Whether both tensors hold the values of one."""
    return one == other or origin(graph, one) == origin(graph, other)


def constant_operand(graph: Graph, node: Node) -> tuple[str, str] | None:
    """The variable and the constant input of a node with two inputs; None where it has not one of each."""
    if len(node.inputs) != 2:
        return None
    first, second = node.inputs
    if is_constant(graph, second):
        return None if is_constant(graph, first) else (first, second)
    return (second, first) if is_constant(graph, first) else None


def is_constant(graph: Graph, tensor: str) -> bool:
    """Whether the tensor is a constant, or one that a few nodes make of constants alone."""
    pending, seen = [tensor], 0
    while pending:
        name = pending.pop()
        if name in graph.constants:
            continue
        node, seen = graph.producers.get(name), seen + 1
        if node is None or seen > _MOST_MAKERS or not _is_computed(graph, node):
            return False
        pending += node.reads
    return True


def read_number(graph: Graph, tensor: str) -> float | None:
    """The value of a constant with one element; None for every other tensor."""
    name = origin(graph, tensor)
    if name not in graph.constants or math.prod(graph.constants[name].dims) != 1:
        return None
    value = graph.find_constant(name)
    return None if value is None else float(value.reshape(()))


def sole_reader(graph: Graph, tensor: str) -> Node | None:
    """The one node that reads the tensor, casts passed; None where there are several, or it is an output of the model."""
    for _ in range(_LONGEST):
        readers = graph.consumers.get(tensor, ())
        if len(readers) != 1 or tensor in graph.outputs:
            return None
        if not _hands_on(graph, readers[0]) or readers[0].inputs[0] != tensor:
            return readers[0]
        tensor = readers[0].outputs[0]
    return None


def collect(graph: Graph, source: str, output: str) -> tuple[Node, ...] | None:
    """The nodes on the ways from `source` to `output`, in order.

    None where something comes in besides constants and integers, or there are more than a pattern has.
    """
    found: dict[str, Node] = {}
    pending = [output]
    while pending:
        tensor = pending.pop()
        node = graph.producers.get(tensor)
        if tensor == source or not graph.is_float(tensor) or is_constant(graph, tensor):
            continue
        if node is None or len(found) == _MOST_NODES:
            return None
        if node.label not in found:
            found[node.label] = node
            pending += node.reads
    return tuple(sorted(found.values(), key=lambda node: node.index))


def operands(node: Node) -> Iterator[tuple[str, str]]:
    """The two inputs of a node in both orders."""
    if len(node.inputs) == 2:
        yield node.inputs[0], node.inputs[1]
        yield node.inputs[1], node.inputs[0]


def _is_computed(graph: Graph, node: Node) -> bool:
    """Whether the node makes the same of the same inputs each time, which a custom operator need not."""
    return node.is_standard and bool(node.inputs) and is_repeatable_node(graph, node)


def _hands_on(graph: Graph, node: Node) -> bool:
    """Whether the node hands its first input on, as a float."""
    op = node.standard_op
    in_training = op == "Dropout" and len(node.inputs) > 2
    is_float = op != "Cast" or graph.dtypes.get(node.outputs[0]) in (TensorProto.FLOAT, TensorProto.DOUBLE)
    return op in HAND_ON and not in_training and is_float and bool(node.inputs[0])
