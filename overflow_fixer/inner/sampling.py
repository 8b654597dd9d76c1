"""How rough what a GridSample samples is: by how much the sample changes where its place does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import TensorProto

from overflow_fixer.inner.expression import Expression, Rows
from overflow_fixer.inner.quantities import Found

_ROWS_APART = 16
"""One row in so many is looked at: what is sampled is not copied whole."""
_END = 2**62


def find_in_grid_sample(expression: Expression) -> Iterator[Found]:
    """The rms of how what is sampled changes over half of its size, along each axis, as a share of its own rms.

    A place is told in halves of the size. Changes are those from one element to the next, of one row in sixteen; 0 of what
    is zero, or has one element. None of the nearest element, which does not change with its place but at an edge.
    """
    rank = expression.rank
    if rank is None or rank < 4 or expression.attribute("mode", b"linear") == b"nearest":
        return
    changes = [_measure_change(expression, axis, rank) for axis in range(2, rank)]
    added = changes[0]
    for change in changes[1:]:
        added = expression.apply("Add", added, change)
    yield "roughness", expression.apply("Sqrt", added)


def _measure_change(expression: Expression, axis: int, rank: int) -> str:
    """The mean square of the change along the axis, over half of its size, as a share of that of the elements."""
    other = 3 if axis == 2 else axis - 1
    rows = _cut(expression, expression.source, [0, _END, other, _ROWS_APART])
    later, sooner = (_cut(expression, rows, [*ends, axis, 1]) for ends in ((1, _END), (0, -1)))
    change, power = (
        _measure_power(expression, tensor) for tensor in (expression.apply("Sub", later, sooner), rows)
    )
    size = expression.apply("Gather", expression.apply("Shape", expression.source), expression.integers(axis))
    half = expression.apply(
        "Mul", expression.apply("Cast", size, to=TensorProto.FLOAT), expression.number(0.5)
    )
    return _divide(expression, expression.apply("Mul", change, expression.apply("Mul", half, half)), power)


def _cut(expression: Expression, tensor: str, where: Sequence[int]) -> str:
    """From a start to an end along an axis, by steps."""
    return expression.apply("Slice", tensor, *(expression.integers(number) for number in where))


def _measure_power(expression: Expression, tensor: str) -> str:
    """The mean square of all elements; 0 of none."""
    row = Rows(expression.apply("Flatten", tensor, axis=0), (1,), (None,), are_last=True)
    total = expression.reduce("ReduceSum", expression.add_up("ReduceSumSquare", row), [])  # of no row, too
    return _divide(expression, total, expression.count(row))


def _divide(expression: Expression, dividend: str, divisor: str) -> str:
    """Their quotient, 0 where the divisor is."""
    zero = expression.number(0.0)
    is_zero = expression.apply("Equal", divisor, zero)
    return expression.apply("Where", is_zero, zero, expression.apply("Div", dividend, divisor))
