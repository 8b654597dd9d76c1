"""How much of a difference cancels: of that from a square element by element (E[x²] − E[x]²), of that from a mean row by row."""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import REARRANGES
from overflow_fixer.graph.powers import is_square
from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found
from overflow_fixer.inner.quiet_rows import compare, find_row_statistic, measure_rows

_FARTHEST = 8
"""So many nodes may move or scale a square before it is subtracted: ways through long chains are not followed."""
_HANDS_ON = REARRANGES | {"Expand"}


def find_in_difference(expression: Expression) -> Iterator[Found]:
    """How many times what is left the first term is, where the second is a square; 0 where less is left than FP32 tells.

    Or the same of each row of what is fed, where the second is its mean, least or largest.
    """
    graph, node = expression.graph, expression.node
    if _comes_of_a_square(graph, node.inputs[1]):
        first, left = (expression.apply("Abs", name) for name in (node.inputs[0], node.outputs[0]))
        yield "cancellation", compare(expression, first, left)
        return
    statistic = find_row_statistic(graph, node)
    times = measure_rows(expression, statistic) if statistic is not None else None
    if times is not None:
        yield "row cancellation", times


def _comes_of_a_square(graph: Graph, tensor: str) -> bool:
    """Whether it is computed as one, and moved or scaled by a constant at most."""
    writer = graph.producers.get(tensor)
    for _ in range(_FARTHEST):
        source = _find_source(graph, writer) if writer is not None else ""
        writer = graph.producers.get(source) if source else writer
    return writer is not None and tensor not in graph.constants and is_square(graph, writer)


def _find_source(graph: Graph, writer: Node) -> str:
    """What the node moves or scales; "" of any other."""
    if writer.standard_op in _HANDS_ON:
        return writer.inputs[0]
    if writer.standard_op in ("Mul", "Div"):
        computed = [name for name in writer.inputs if name not in graph.constants]
        return computed[0] if len(computed) == 1 else ""
    return ""
