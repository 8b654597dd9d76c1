"""What is made of differences of data, once more of terms that FP16 rounds, to measure what that makes of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import REARRANGES
from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quiet_rows import find_statistic
from overflow_fixer.inner.rounding import round_to_fp16

DIFFERENCES = frozenset("Add Sub".split())
_HANDS_ON = REARRANGES | frozenset(
    """Mul Div Neg Abs Relu Clip Min Max Where Pow Sqrt ReduceSum ReduceMean ReduceSumSquare ReduceL1 ReduceL2 Expand Slice
    Gather""".split()
)
_MOST_NODES = 16
"""So many are followed: a long chain of sums is no difference of a few."""


class Differences(NamedTuple):
    """What computes a tensor, in order: differences, what is made of them, and their `terms`, but for differences."""

    nodes: tuple[Node, ...]
    terms: tuple[str, ...]


def find_differences(graph: Graph, tensor: str) -> Differences | None:
    """Those that a tensor is made of; None without one of data, and of a row less its largest element.

    As far back as a few moves, factors, bounds, reductions and added constants lead, up to the first.
    """
    found: list[Node] = []
    made, terms = set[str](), list[str]()
    for one in _walk_back(graph, tensor):
        is_difference = one.standard_op in DIFFERENCES
        if is_difference and _subtracts_largest(graph, one):
            return None
        if is_difference or not made.isdisjoint(one.inputs):
            found.append(one)
            terms += [name for name in one.inputs if is_difference and name not in made]
            made.update(one.writes)
    if all(name in graph.constants for name in terms):
        return None
    return Differences(tuple(found), tuple(dict.fromkeys(terms)))


def compute_rounded(expression: Expression, differences: Differences, behind: Iterable[Node]) -> str:
    """What the last node `behind` the differences writes, once more, of terms that FP16 rounds; what else reads them has them as they are."""
    names = {name: round_to_fp16(expression, name) for name in differences.terms}
    output = ""
    for node in (*differences.nodes, *behind):
        is_difference = node.standard_op in DIFFERENCES
        made = {name: to for name, to in names.items() if is_difference or name not in differences.terms}
        output = expression.repeat(node, *(made.get(name, name) for name in node.inputs))
        names[node.outputs[0]] = output
    return output


def _walk_back(graph: Graph, tensor: str) -> list[Node]:
    """The nodes on the ways to the tensor, in order, from the last differences of data on."""
    found: dict[str, Node] = {}
    pending = [tensor]
    while pending and len(found) < _MOST_NODES:
        node = graph.producers.get(pending.pop(0))
        if node is not None and node.label not in found and _hands_on(graph, node):
            found[node.label] = node
            is_end = node.standard_op in DIFFERENCES and graph.constants.keys().isdisjoint(node.inputs)
            read = (name for name in node.inputs if graph.dtypes.get(name) == TensorProto.FLOAT)
            pending += () if is_end else read
    return sorted(found.values(), key=lambda one: one.index)


def _hands_on(graph: Graph, node: Node) -> bool:
    is_fp32 = graph.dtypes.get(node.outputs[0]) == TensorProto.FLOAT
    is_made = node.outputs[0] not in graph.constants
    return is_fp32 and is_made and (node.standard_op in _HANDS_ON or node.standard_op in DIFFERENCES)


def _subtracts_largest(graph: Graph, node: Node) -> bool:
    statistic = find_statistic(graph, node.inputs[1]) if node.standard_op == "Sub" else None
    return statistic is not None and statistic.standard_op == "ReduceMax"
