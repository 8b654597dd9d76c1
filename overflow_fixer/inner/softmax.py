"""What a softmax has inside: the largest input of each row, and the sum of the exponentials of a long one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from overflow_fixer.inner.expression import Expression, Rows
from overflow_fixer.inner.quantities import Found
from overflow_fixer.records import Dim

_ONE_AXIS_SINCE = 13
_LONG = 4096
"""Of rows that are known to be longer, the sum of exponentials may come near a threshold; each is 1 at most."""


def find_in_softmax(expression: Expression) -> Iterator[Found]:
    """Below opset 13 a row is the axis and all behind it. The sum is that of e^(x - max), which no kernel goes without."""
    if expression.graph.opset >= _ONE_AXIS_SINCE:
        rows = expression.rows([expression.attribute("axis", -1)])
    else:
        rows = expression.rows_behind(expression.attribute("axis", 1))
    yield "row maximum", expression.reduce("ReduceMax", rows.tensor, rows.axes)
    if _have_more_than(expression.lengths(rows), _LONG):
        yield "sum of exponentials", _add_exponentials(expression, rows)


def _have_more_than(lengths: Sequence[Dim], count: int) -> bool:
    known = [dim for dim in lengths if isinstance(dim, int)]
    return len(known) == len(lengths) and math.prod(known) > count


def _add_exponentials(expression: Expression, rows: Rows) -> str:
    """By the largest output of each row, which is e^0 over the sum: of a softmax that, of its logarithm minus that of the sum."""
    largest = expression.reduce("ReduceMax", expression.node.outputs[0], rows.axes)
    if expression.node.op_type == "Softmax":
        return expression.apply("Reciprocal", largest)
    return expression.apply("Exp", expression.apply("Neg", largest))
