"""What tells, inside a softmax, that a row is masked as a whole: the largest of its inputs."""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found

_ONE_AXIS_SINCE = 13


def find_in_softmax(expression: Expression) -> Iterator[Found]:
    """Below opset 13 a row is the axis and all behind it."""
    if expression.graph.opset >= _ONE_AXIS_SINCE:
        rows = expression.rows([expression.attribute("axis", -1)])
    else:
        rows = expression.rows_behind(expression.attribute("axis", 1))
    yield "row maximum", expression.reduce("ReduceMax", rows.tensor, rows.axes)
