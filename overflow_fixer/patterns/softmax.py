"""Softmax and LogSoftmax written out: Exp, the sum of its rows, and the division or the logarithm; x less its log-sum-exp.

The whole is one region: it works row by row, costs little, and what it computes inside has no other reader.
"""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.region import Region
from overflow_fixer.patterns.statistics import MAXIMA, is_aligned, maker, reduction, skip
from overflow_fixer.patterns.tracing import (
    collect,
    is_same,
    operands,
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
    dividend = find_shared_out(graph, node)
    if dividend is not None:
        return writer(graph, dividend, "Exp")
    if node.standard_op == "Sub" and is_aligned(graph, node.inputs[1]):
        logarithm = maker(graph, node.inputs[1], "Log")
        total = None if logarithm is None else reduction(graph, logarithm.inputs[0], "ReduceSum")
        exponential = None if total is None else writer(graph, total.inputs[0], "Exp")
        if exponential is not None and is_same(graph, exponential.inputs[0], node.inputs[0]):
            return exponential
    return None


def find_shared_out(graph: Graph, node: Node) -> str | None:
    """What the node divides by its own sum, or multiplies by the inverse of that: it writes shares of a whole."""
    for dividend, other in operands(node):
        total = other
        if node.standard_op == "Mul":
            turned = maker(graph, other, "Reciprocal")
            total = "" if turned is None else turned.inputs[0]
        elif node.standard_op != "Div" or dividend != node.inputs[0]:
            continue
        summed = reduction(graph, total, "ReduceSum")
        if summed is not None and is_same(graph, summed.inputs[0], dividend) and is_aligned(graph, other):
            return dividend
    return None


def _find_source(graph: Graph, exponential: Node) -> str:
    """What the softmax is of: x, if x less its maximum is raised to the power."""
    difference = writer(graph, exponential.inputs[0], "Sub")
    if difference is None:
        return exponential.inputs[0]
    largest, _ = skip(graph, difference.inputs[1], ("Max",))
    maximum = reduction(graph, largest, *MAXIMA)
    is_own = maximum is not None and is_same(graph, maximum.inputs[0], difference.inputs[0])
    is_shift = is_own and is_aligned(graph, difference.inputs[1])
    return difference.inputs[0] if is_shift else exponential.inputs[0]


def _subtracts_log_sum(graph: Graph, node: Node) -> bool:
    """Whether it is x - ReduceLogSumExp(x), or that with the logarithm written out, as m + log(sum(exp(x - m)))."""
    total = reduction(graph, node.inputs[1], "ReduceLogSumExp")
    added = maker(graph, node.inputs[1], "Add")
    is_own = total is not None and is_same(graph, total.inputs[0], node.inputs[0])
    is_written_out = added is not None and any(
        _is_log_sum(graph, node.inputs[0], *pair) for pair in operands(added)
    )
    return (is_own or is_written_out) and is_aligned(graph, node.inputs[1])


def _is_log_sum(graph: Graph, source: str, shift: str, rest: str) -> bool:
    """Whether `rest` is log(sum(exp(x - m))), x the source and m its maximum, the shift."""
    logarithm = maker(graph, rest, "Log") if is_aligned(graph, rest) else None
    total = None if logarithm is None else reduction(graph, logarithm.inputs[0], "ReduceSum")
    exponential = None if total is None else writer(graph, total.inputs[0], "Exp")
    difference = None if exponential is None else writer(graph, exponential.inputs[0], "Sub")
    if exponential is None or difference is None or not is_same(graph, difference.inputs[1], shift):
        return False
    return is_same(graph, _find_source(graph, exponential), source)


def _kind(node: Node) -> str:
    return "LogSoftmax" if node.standard_op == "Sub" else "Softmax"


def _region(graph: Graph, kind: str, source: str, output: str) -> Iterator[Region]:
    nodes = collect(graph, source, output)
    if nodes:
        yield Region(kind, tuple(node.label for node in nodes), source, output)
