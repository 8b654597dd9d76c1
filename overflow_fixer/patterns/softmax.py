"""Softmax and LogSoftmax written out: Exp, the sum of its rows, and the division or the logarithm.

The whole is one region: it works row by row, costs little, and what it computes inside has no other reader.
"""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.graph import Graph
from overflow_fixer.nodes import Node
from overflow_fixer.patterns.region import Region
from overflow_fixer.patterns.tracing import (
    collect,
    is_same,
    operands,
    reduction,
    sole_reader,
    writer,
)


def find_softmax(graph: Graph) -> Iterator[Region]:
    """The region of each, from the maximum that is subtracted (if one is) to the division or the logarithm.

    The logarithm of a Softmax is one with it: what FP16 would round to zero must reach it in FP32.
    """
    for node in graph.nodes:
        exponential = _find_exponential(graph, node)
        if exponential is not None:
            source, output = _find_source(graph, exponential), node.outputs[0]
            logarithm = sole_reader(graph, output)
            if node.standard_op != "Sub" and logarithm is not None and logarithm.standard_op == "Log":
                yield from _region(graph, "LogSoftmax", source, logarithm.outputs[0])
            yield from _region(graph, _kind(node), source, output)
        elif node.standard_op == "Log":
            softmax = writer(graph, node.inputs[0], "Softmax")
            if softmax is not None:
                yield from _region(graph, "LogSoftmax", softmax.inputs[0], node.outputs[0])
        elif node.standard_op == "Sub" and _subtracts_log_sum(graph, node):
            yield from _region(graph, "LogSoftmax", node.inputs[0], node.outputs[0])


def _find_exponential(graph: Graph, node: Node) -> Node | None:
    """The Exp whose rows the node divides by their sum, or of whose argument it subtracts the sum's logarithm."""
    if node.standard_op == "Div":
        return _find_summed(graph, node.inputs[1], node.inputs[0])
    if node.standard_op == "Mul":
        for dividend, inverse in operands(node):
            turned = writer(graph, inverse, "Reciprocal")
            found = None if turned is None else _find_summed(graph, turned.inputs[0], dividend)
            if found is not None:
                return found
    if node.standard_op == "Sub":
        logarithm = writer(graph, node.inputs[1], "Log")
        total = None if logarithm is None else reduction(graph, logarithm.inputs[0], "ReduceSum")
        exponential = None if total is None else writer(graph, total.inputs[0], "Exp")
        if exponential is not None and is_same(graph, exponential.inputs[0], node.inputs[0]):
            return exponential
    return None


def _find_summed(graph: Graph, total: str, dividend: str) -> Node | None:
    """The Exp that both are made of."""
    node = reduction(graph, total, "ReduceSum")
    if node is None or not is_same(graph, node.inputs[0], dividend):
        return None
    return writer(graph, dividend, "Exp")


def _find_source(graph: Graph, exponential: Node) -> str:
    """What the softmax is of: x, if x less its maximum is raised to the power."""
    difference = writer(graph, exponential.inputs[0], "Sub")
    if difference is None:
        return exponential.inputs[0]
    maximum = reduction(graph, difference.inputs[1], "ReduceMax")
    is_shift = maximum is not None and is_same(graph, maximum.inputs[0], difference.inputs[0])
    return difference.inputs[0] if is_shift else exponential.inputs[0]


def _subtracts_log_sum(graph: Graph, node: Node) -> bool:
    """Whether it is x - ReduceLogSumExp(x)."""
    total = reduction(graph, node.inputs[1], "ReduceLogSumExp")
    return total is not None and is_same(graph, total.inputs[0], node.inputs[0])


def _kind(node: Node) -> str:
    return "LogSoftmax" if node.standard_op == "Sub" else "Softmax"


def _region(graph: Graph, kind: str, source: str, output: str) -> Iterator[Region]:
    nodes = collect(graph, source, output)
    if nodes:
        yield Region(kind, tuple(node.label for node in nodes), source, output)
