"""How little of a row is left less its mean or its least, beside what it holds: of features as they are fed, say.

Of a tensor of several features, of which one is 1013 ± 1 and another 180 ± 180, neither the range of x nor that of
x − μ shows that of the first FP16 leaves a step or two: row by row they do.
"""

from __future__ import annotations

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import REARRANGES
from overflow_fixer.inner.axes import find_live_axes, read_axes
from overflow_fixer.inner.expression import Expression

_MOST = 65536.0
"""What is less beside the row is made of FP32's own rounding, or nearly: 8 bits are left."""
_FARTHEST = 16
"""So many nodes may move or scale what is fed, or move a statistic of it."""
_MOVES = REARRANGES | frozenset("Cast Slice Gather Split".split())
_SCALES = frozenset("Mul Div Clip".split())
_PUTS_BACK = frozenset("Reshape Squeeze Unsqueeze Expand Identity".split())
_STATISTICS = frozenset("ReduceMean ReduceMin ReduceMax".split())


def is_fed(graph: Graph, tensor: str) -> bool:
    """Whether it is an input of the model, moved, scaled or bounded by constants at most: what a layer gives out loses as much in
    the layer.

    Of what a body reads, none is: it may come of a layer.
    """
    for _ in range(_FARTHEST if not graph.place else 0):
        writer = graph.producers.get(tensor)
        if writer is None:
            return tensor not in graph.constants
        tensor = _find_moved(graph, writer)
        if not tensor:
            return False
    return False


def _find_moved(graph: Graph, writer: Node) -> str:
    """What the node moves, or scales or bounds by constants; "" of any other."""
    if writer.standard_op not in _MOVES | _SCALES:
        return ""
    is_turned = writer.standard_op == "Mul" and writer.inputs[0] in graph.constants
    first, *others = writer.inputs[::-1] if is_turned else writer.inputs
    is_scaled = all(name in graph.constants for name in others if name)
    return first if writer.standard_op in _MOVES or is_scaled else ""


def find_row_statistic(graph: Graph, node: Node) -> Node | None:
    """The statistic that the node takes from what it is of, or from another of the same, if that is fed."""
    first, second = node.inputs
    taken, other = find_statistic(graph, second), find_statistic(graph, first)
    if taken is None or not is_fed(graph, taken.inputs[0]):
        return None
    is_of_first = taken.inputs[0] in (first, other.inputs[0] if other is not None else "")
    return taken if is_of_first else None


def find_statistic(graph: Graph, tensor: str) -> Node | None:
    """The ReduceMean, ReduceMin or ReduceMax whose values a tensor has; None of another tensor."""
    writer = graph.producers.get(tensor)
    for _ in range(_FARTHEST):
        if writer is None or writer.standard_op not in _PUTS_BACK:
            break
        writer = graph.producers.get(writer.inputs[0])
    return writer if writer is not None and writer.standard_op in _STATISTICS else None


def measure_rows(expression: Expression, statistic: Node) -> str | None:
    """How many times what the node leaves of a row the row is, in largest magnitudes; None where the axes are computed, or there are none.

    `statistic` reduces what the node subtracts from, or both are statistics of one tensor. What is left is told by what the row
    spans, all of it less its least or largest and half of it less its mean, so that a row of equal numbers, of which FP32
    leaves its own rounding, counts as one that is zero. 0 of those, where less is left than FP32 tells, and of NaN.
    """
    first, left = expression.node.inputs[0], expression.node.outputs[0]
    if statistic.inputs[0] != first:
        return compare(expression, expression.apply("Abs", first), expression.apply("Abs", left))
    axes = read_axes(expression.graph, statistic)
    if axes is None or find_live_axes(expression.graph, statistic):
        return None
    highest, lowest = (expression.reduce(op, first, axes) for op in ("ReduceMax", "ReduceMin"))
    return compare_extremes(expression, highest, lowest, is_mean=statistic.standard_op == "ReduceMean")


def compare_extremes(
    expression: Expression, highest: str, lowest: str, *, is_mean: bool, least: float = 0.0
) -> str:
    """The same of rows by their extremes; 0 also of those of which no more than `least` is left."""
    largest = expression.apply("Max", *(expression.apply("Abs", one) for one in (highest, lowest)))
    span = expression.apply("Sub", highest, lowest)
    left = expression.apply("Mul", span, expression.number(0.5)) if is_mean else span
    if least:
        is_over = expression.apply("Less", expression.number(least), left)
        left = expression.apply("Where", is_over, left, expression.number(0.0))
    return compare(expression, largest, left)


def compare(expression: Expression, largest: str, left: str) -> str:
    """How many times the second the first is; 0 of so much that FP32 tells no more, and of NaN."""
    times = expression.apply("Div", largest, left)
    is_sure = expression.apply("Less", times, expression.number(_MOST))
    return expression.apply("Where", is_sure, times, expression.number(0.0))
