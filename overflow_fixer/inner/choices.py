"""By how much an ArgMin or ArgMax chooses, of which it gives out the place alone."""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.graph.distances import find_joined_squares
from overflow_fixer.graph.filled import is_filled
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, REARRANGES
from overflow_fixer.graph.powers import is_root
from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found
from overflow_fixer.inner.rows import Rows

_HANDS_ON = REARRANGES | frozenset("Neg Abs Relu Clip Max Cast".split())
_FARTHEST = 8
"""So many nodes may stand between a sum and the choice: ways through long chains are not followed."""
_TOPK_CHOOSES_LEAST_SINCE = 11


def find_in_choice(expression: Expression) -> Iterator[Found]:
    """The mean over rows of what is between the element that is chosen and the next: of two alike it is 0.

    Of a sum alone, which may be a difference of nearly equal numbers, and of rows that are sure to have two elements. Of
    roots it is that of their squares.
    """
    rows = expression.rows([expression.attribute("axis", 0)])
    (length,) = expression.lengths(rows)
    is_told = expression.graph.opset >= _TOPK_CHOOSES_LEAST_SINCE and isinstance(length, int) and length > 1
    way = trace_sum(expression.graph, expression.node) if is_told else None
    if way is not None:
        best = expression.find_best(2, rows, is_largest=expression.node.op_type == "ArgMax")
        if any(is_root(expression.graph, node) for node in way):
            best = expression.apply("Mul", best, best)
        largest, least = (expression.reduce(op, best, rows.axes) for op in ("ReduceMax", "ReduceMin"))
        margins = expression.apply("Flatten", expression.apply("Sub", largest, least), axis=0)
        yield "mean margin", expression.add_up("ReduceMean", Rows(margins, (1,), (None,)))


def trace_sum(graph: Graph, node: Node) -> list[Node] | None:
    """The sum that the node chooses among, and the moves, masks, bounds and roots behind it, in order; None where it reads no sum."""
    way: list[Node] = []
    writer = graph.producers.get(node.inputs[0])
    while writer is not None and len(way) < _FARTHEST and (read := _find_handed_on(graph, writer)):
        way.append(writer)
        writer = graph.producers.get(read)
    return [writer, *reversed(way)] if writer is not None and _adds_up(graph, writer) else None


def _find_handed_on(graph: Graph, node: Node) -> str:
    """What the node moves, masks, bounds or takes the root of; "" of any other."""
    is_whole = node.standard_op in _HANDS_ON or is_root(graph, node)
    read = (name for slot, name in enumerate(node.inputs) if is_whole or is_filled(graph, node, slot))
    return next((name for name in read if name not in graph.constants), "")


def _adds_up(graph: Graph, node: Node) -> bool:
    return node.standard_op in ADDS or bool(find_joined_squares(graph, node))
