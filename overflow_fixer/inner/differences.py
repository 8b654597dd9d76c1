"""How much of a difference from a square cancels, element by element: of E[x²] − E[x]², say."""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import is_square
from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found

_MOST = 65536.0
"""What is less beside the terms is made of FP32's own rounding, or nearly: 8 bits are left."""
_FARTHEST = 8
"""So many nodes may move or scale a square before it is subtracted: ways through long chains are not followed."""
_HANDS_ON = frozenset("Reshape Transpose Squeeze Unsqueeze Flatten Expand Identity".split())


def find_in_difference(expression: Expression) -> Iterator[Found]:
    """How many times what is left the first term is, where the second is a square; 0 where less is left than FP32 tells."""
    node = expression.node
    if node.op_type == "Sub" and _comes_of_a_square(expression.graph, node.inputs[1]):
        times = expression.apply("Abs", expression.apply("Div", node.inputs[0], node.outputs[0]))
        is_sure = expression.apply("Less", times, expression.number(_MOST))
        yield "cancellation", expression.apply("Where", is_sure, times, expression.number(0.0))


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
