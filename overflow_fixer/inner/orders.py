"""How many of the elements that a TopK has put in order FP16 makes equal to the next, of an input of the model."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import REARRANGES
from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found
from overflow_fixer.inner.rounding import measure_power, round_to_fp16

_HANDS_ON = REARRANGES | frozenset("Neg Slice Gather".split())
_EQUALS_FLOATS_SINCE = 11


def find_in_order(expression: Expression) -> Iterator[Found]:
    """Their share of the neighbours in its order; 0 where there are none. Only where the places are read."""
    node, graph = expression.node, expression.graph
    if graph.opset < _EQUALS_FLOATS_SINCE or not node.value_of("sorted", 1) or trace_fed(graph, node) is None:
        return
    first, second = (_cut(expression, *ends) for ends in ((0, -1), (1, 2**31 - 1)))
    rounded = (round_to_fp16(expression, name) for name in (first, second))
    are_apart = expression.apply("Not", expression.apply("Equal", first, second))
    are_alike = expression.apply("And", are_apart, expression.apply("Equal", *rounded))
    yield "made equal", measure_power(expression, expression.apply("Cast", are_alike, to=TensorProto.FLOAT))


def _cut(expression: Expression, start: int, end: int) -> str:
    axis = expression.attribute("axis", -1)
    return expression.apply(
        "Slice", expression.node.outputs[0], *map(expression.integers, (start, end, axis))
    )


def trace_fed(graph: Graph, node: Node) -> list[Node] | None:
    """The nodes that move an input of the model to a TopK whose places are read; None of what is computed, or in a body."""
    if (
        graph.place
        or len(node.outputs) < 2
        or not all(node.outputs[:2])
        or not _is_read(graph, node.outputs[1])
    ):
        return None
    way: list[Node] = []
    name = node.inputs[0]
    while (writer := graph.producers.get(name)) is not None and writer.standard_op in _HANDS_ON:
        way.append(writer)
        name = writer.inputs[0]
    return way if any(spec.name == name for spec in graph.inputs) else None


def _is_read(graph: Graph, tensor: str) -> bool:
    return tensor in graph.outputs or bool(graph.consumers.get(tensor))
