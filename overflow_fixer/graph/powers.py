"""Squares and other powers, as nodes compute them: a Pow, or a product of a tensor with itself."""

from __future__ import annotations

import math

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node


def is_square(graph: Graph, node: Node) -> bool:
    if node.standard_op == "Mul":
        return node.inputs[0] == node.inputs[1]
    return read_exponent(graph, node) == 2


def is_root(graph: Graph, node: Node) -> bool:
    """Whether it is a square root."""
    return node.standard_op == "Sqrt" or read_exponent(graph, node) == 0.5


def sums_squares(graph: Graph, node: Node) -> bool:
    read = graph.producers.get(node.inputs[0]) if node.standard_op == "ReduceSum" else None
    return node.standard_op == "ReduceSumSquare" or (read is not None and is_square(graph, read))


def least_exponent(graph: Graph, node: Node) -> float:
    """The least of Pow's exponents, NaN where they are not constant."""
    value = graph.find_constant(node.inputs[1])
    return math.nan if value is None or not value.size else float(value.min())


def read_exponent(graph: Graph, node: Node) -> float:
    """Pow's exponent, where it is one number; NaN elsewhere."""
    value = graph.find_constant(node.inputs[1]) if node.standard_op == "Pow" else None
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else math.nan
