"""Mean squares of whole tensors, and shares of them."""

from __future__ import annotations

from overflow_fixer.inner.expression import Expression, Rows


def measure_power(expression: Expression, tensor: str) -> str:
    """The mean square of all elements; 0 of none."""
    row = Rows(expression.apply("Flatten", tensor, axis=0), (1,), (None,), are_last=True)
    total = expression.reduce("ReduceSum", expression.add_up("ReduceSumSquare", row), [])  # of no row, too
    return divide(expression, total, expression.count(row))


def divide(expression: Expression, dividend: str, divisor: str) -> str:
    """Their quotient, 0 where the divisor, which is no less, is. Below opset 11 no Equal compares floats."""
    is_over = expression.apply("Less", expression.number(0.0), divisor)
    return expression.apply("Where", is_over, expression.apply("Div", dividend, divisor), divisor)
