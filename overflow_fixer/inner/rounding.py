"""Tensors rounded to FP16, and what that loses, as a share of mean squares."""

from __future__ import annotations

from onnx import TensorProto

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.rows import Rows


def round_to_fp16(expression: Expression, tensor: str) -> str:
    half = expression.apply("Cast", tensor, to=TensorProto.FLOAT16)
    return expression.apply("Cast", half, to=TensorProto.FLOAT)


def measure_loss(expression: Expression, rounded: str) -> str:
    """The root mean square of what the node's output lost to be this, as a share of that of the output; 0 where that is zero."""
    output = expression.node.outputs[0]
    lost = measure_power(expression, expression.apply("Sub", rounded, output))
    return expression.apply("Sqrt", divide(expression, lost, measure_power(expression, output)))


def measure_power(expression: Expression, tensor: str) -> str:
    """The mean square of all elements; 0 of none."""
    row = Rows(expression.apply("Flatten", tensor, axis=0), (1,), (None,), are_last=True)
    total = expression.reduce("ReduceSum", expression.add_up("ReduceSumSquare", row), [])  # of no row, too
    return divide(expression, total, expression.count(row))


def divide(expression: Expression, dividend: str, divisor: str) -> str:
    """Their quotient, 0 where the divisor, which is no less, is. Below opset 11 no Equal compares floats."""
    is_over = expression.apply("Less", expression.number(0.0), divisor)
    return expression.apply("Where", is_over, expression.apply("Div", dividend, divisor), divisor)
