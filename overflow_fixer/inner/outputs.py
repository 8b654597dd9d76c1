"""What a node gives, computed anew where it adds up so many numbers in FP32 that what is inside does not follow to 1e-5."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from overflow_fixer.inner.expression import FEW, Expression
from overflow_fixer.inner.quantities import Found
from overflow_fixer.inner.rows import Rows
from overflow_fixer.inner.sums import find_rows
from overflow_fixer.inner.windows import read_windows, take_apart


def find_in_log_sum(expression: Expression) -> Iterator[Found]:
    rows = _find_long_rows(expression)
    if rows is not None:
        yield "output", expression.apply("Log", expression.add_up("ReduceSum", rows))


def find_in_log_sum_exp(expression: Expression) -> Iterator[Found]:
    """As max + log(sum of e^(x - max)), which no row of finite numbers overflows."""
    rows = _find_long_rows(expression)
    if rows is not None:
        largest = expression.reduce("ReduceMax", rows.tensor, rows.axes)
        terms = expression.apply("Exp", expression.apply("Sub", rows.tensor, largest))
        total = expression.add_up("ReduceSum", _put_in(expression, rows, terms))
        one_axis = expression.integers(-1)  # a native sum has no other
        largest, total = (expression.apply("Reshape", one, one_axis) for one in (largest, total))
        yield "output", expression.apply("Add", largest, expression.apply("Log", total))


def find_in_lp_pool(expression: Expression) -> Iterator[Found]:
    """By pools of p = 1 along one axis after the other, which lie as the node's own do."""
    windows, exponent = read_windows(expression), expression.attribute("p", 2)
    if math.prod(windows["kernel_shape"]) <= FEW:
        return
    total = _raise(expression, expression.source, exponent)
    ends = {"ceil_mode": 1} if expression.attribute("ceil_mode", 0) else {}
    for one in take_apart(windows):
        total = expression.apply("LpPool", total, p=1, **ends, **one)
    yield "output", _take_root(expression, total, exponent)


def find_in_global_lp_pool(expression: Expression) -> Iterator[Found]:
    """Of p = 2 the sum itself, since what is small in it matters too."""
    rows, exponent = expression.rows_behind(2), expression.attribute("p", 2)
    if exponent == 2:
        yield "sum of squares", expression.add_up("ReduceSumSquare", rows)
    elif expression.tell_count(rows) > FEW:
        powers = _raise(expression, rows.tensor, exponent)
        total = expression.add_up("ReduceSum", _put_in(expression, rows, powers))
        yield "output", _take_root(expression, total, exponent)


def _find_long_rows(expression: Expression) -> Rows | None:
    """What the node reduces, where that may be more than FP32 adds up right; None of axes that the model computes."""
    rows = find_rows(expression)
    return rows if isinstance(rows, Rows) and expression.tell_count(rows) > FEW else None


def _put_in(expression: Expression, rows: Rows, tensor: str) -> Rows:
    """The same rows of a tensor of the same shape."""
    return replace(rows, tensor=tensor, lengths=expression.lengths(rows))


def _raise(expression: Expression, tensor: str, exponent: int) -> str:
    """|x|^p."""
    if exponent == 2:
        return expression.apply("Mul", tensor, tensor)
    magnitudes = expression.apply("Abs", tensor)
    if exponent == 1:
        return magnitudes
    return expression.apply("Pow", magnitudes, expression.number(float(exponent)))


def _take_root(expression: Expression, total: str, exponent: int) -> str:
    if exponent == 1:
        return total
    return expression.apply("Pow", total, expression.number(1 / exponent))
