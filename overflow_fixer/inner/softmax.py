"""What a softmax has inside: the largest input of each row, the sum of the exponentials of a long one, and what rounding a bias loses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.placed_logits import has_placed_bias, measure_softmax_loss
from overflow_fixer.inner.quantities import LONGEST_UNTOLD, NOTHING, Found
from overflow_fixer.inner.rows import Rows

_ONE_AXIS_SINCE = 13


def find_in_softmax(expression: Expression) -> Iterator[Found]:
    """Below opset 13 a row is the axis and all behind it. The sum is that of e^(x - max), which no kernel goes without."""
    if expression.graph.opset >= _ONE_AXIS_SINCE:
        rows = expression.rows([expression.attribute("axis", -1)])
    else:
        rows = expression.rows_behind(expression.attribute("axis", 1))
    yield "row maximum", expression.reduce("ReduceMax", rows.tensor, rows.axes)
    yield "sum of exponentials", _add_exponentials(expression, _put_in_output(expression, rows))
    if expression.node.op_type == "Softmax" and has_placed_bias(expression.graph, expression.source):
        yield "softmax loss", measure_softmax_loss(expression)


def _put_in_output(expression: Expression, rows: Rows) -> Rows:
    """The same rows of what the node writes."""
    output = expression.node.outputs[0]
    if rows.tensor != expression.source:
        output = expression.apply("Flatten", output, axis=expression.attribute("axis", 1))
    return replace(rows, tensor=output)


def _add_exponentials(expression: Expression, rows: Rows) -> str:
    """By the largest output of each row, which is e^0 over the sum: of a softmax that, of its logarithm minus that of the sum."""
    is_softmax = expression.node.op_type == "Softmax"
    native = expression.exponentials(rows) if is_softmax else None
    if native is not None:
        return native.sum
    if expression.tell_count(rows) <= LONGEST_UNTOLD["sum of exponentials"]:
        return NOTHING
    largest = expression.reduce("ReduceMax", rows.tensor, rows.axes)
    if is_softmax:
        return expression.apply("Reciprocal", largest)
    return expression.apply("Exp", expression.apply("Neg", largest))
