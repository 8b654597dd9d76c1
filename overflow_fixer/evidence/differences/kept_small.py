"""Whether what a node reads is zero where it goes out, or nearly so: what is lost of a small difference is lost there, too."""

from __future__ import annotations

import math

from overflow_fixer.evidence.kernels.weighted_means import find_weighted_means
from overflow_fixer.evidence.measured import read_maxima
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.filled import is_filled
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import read_exponent
from overflow_fixer.records import RangeTable

_ZERO_AT_ZERO = frozenset(
    """Sqrt Mul Abs Neg Relu Sin Tan Asin Atan Sinh Asinh Atanh Tanh Erf ReduceSum ReduceMean ReduceL1 ReduceL2
    ReduceSumSquare ReduceMax ReduceMin TopK MaxPool GlobalMaxPool AveragePool GlobalAveragePool""".split()
)
_BESIDE = frozenset("Add Sum Max Concat".split())
"""Operators of which something larger that comes in, such as an epsilon, hides the loss."""


def keeps_small(graph: Graph, ranges: RangeTable, batch: int, node: Node, slot: int) -> bool:
    """Whether what comes in there is zero where it goes out, or nearly so, as the data of the batch are."""
    if node.standard_op in _BESIDE and not is_largest(ranges, batch, node, slot):
        return False
    if node.standard_op == "Clip" and not _is_over_bound(ranges, batch, node):
        return False
    return may_keep(graph, node, slot)


def may_keep(graph: Graph, node: Node, slot: int) -> bool:
    """The same, whatever the data are; of Where, where it may put a constant in its place."""
    op = node.standard_op
    if op in _BESIDE or (op == "Clip" and slot == 0) or is_filled(graph, node, slot):
        return True
    is_power = read_exponent(graph, node) > 0
    is_quotient = op == "Div" and slot == 0
    is_mean = slot == 0 and node.label in find_weighted_means(graph)
    return is_power or is_quotient or is_mean or op in _ZERO_AT_ZERO or moves(node, slot)


def is_largest(ranges: RangeTable, batch: int, node: Node, slot: int, least: float = 0.0) -> bool:
    """Whether nothing that it is added to, or put beside, is larger in the batch, and over `least`."""
    largest = max(read_maxima(ranges, node.inputs[slot])[batch], least)
    return all(read_maxima(ranges, name)[batch] <= largest for name in node.beside(slot))


def _is_over_bound(ranges: RangeTable, batch: int, node: Node) -> bool:
    """Whether the largest that Clip reads in the batch is no less than its least bound, of whatever sign, if it has one."""
    attribute = node.attribute("min")  # below opset 11
    bound = ranges.get(node.inputs[1]) if len(node.inputs) > 1 else None
    least = attribute.f if attribute is not None else -math.inf if bound is None else bound.max
    return bool(least <= read_maxima(ranges, node.inputs[0])[batch])
