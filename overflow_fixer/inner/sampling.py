"""What a GridSample loses by places that are rounded: how rough what it samples is, and by how much they are off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import TensorProto

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found
from overflow_fixer.inner.rounding import divide, measure_power, round_to_fp16

_ROWS_APART = 16
"""One row in so many is looked at: what is sampled is not copied whole."""
_END = 2**62
_VOLUMES_SINCE = 20
"""The opset from which on what is sampled may have more axes than an image."""
_RANK = 4


def find_in_grid_sample(expression: Expression) -> Iterator[Found]:
    """What a sample loses where its places are rounded to FP16: rms, as a share of that of what is sampled.

    By the rms of how what is sampled changes from one element to the next, of one row in sixteen, along each axis, times half
    of its size, in which a place is told, and the rms of what rounding makes of the places within it. 0 of what is zero, or
    has one element, and of places that FP16 has. None of the nearest element, which does not change with its place but at an
    edge, nor where not even the number of axes is known.
    """
    rank = _find_rank(expression)
    if rank is None or expression.attribute("mode", b"linear") == b"nearest":
        return
    errors = _measure_errors(expression, rank)
    lost = [
        expression.apply("Mul", _measure_change(expression, axis), _pick(expression, errors, axis, rank))
        for axis in range(2, rank)
    ]
    yield "sampling loss", expression.apply("Sqrt", expression.apply("Sum", *lost))


def _find_rank(expression: Expression) -> int | None:
    """Of what is sampled; None where it is not known, or by places that are not FP32."""
    graph, node = expression.graph, expression.node
    is_fp32 = graph.dtypes.get(node.inputs[1]) == TensorProto.FLOAT
    rank = _RANK if graph.opset < _VOLUMES_SINCE else expression.rank
    return rank if is_fp32 else None


def _measure_errors(expression: Expression, rank: int) -> str:
    """The mean square of what rounding to FP16 changes each coordinate by, [1, ..., coordinate]; 0 of places outside."""
    grid, zero = expression.node.inputs[1], expression.number(0.0)
    error = expression.apply("Sub", grid, round_to_fp16(expression, grid))
    is_inside = expression.apply("Less", expression.apply("Abs", grid), expression.number(1.0))
    shown = expression.apply("Where", is_inside, error, zero)
    wide = expression.apply("Cast", expression.apply("Mul", shown, shown), to=TensorProto.DOUBLE)
    mean = expression.reduce("ReduceMean", wide, range(rank - 1))
    return expression.apply("Cast", mean, to=TensorProto.FLOAT)


def _pick(expression: Expression, errors: str, axis: int, rank: int) -> str:
    """That of the coordinate along the axis: the first is of the last axis."""
    place = rank - 1 - axis
    return _cut(expression, errors, [place, place + 1, rank - 1, 1])


def _measure_change(expression: Expression, axis: int) -> str:
    """The mean square of the change along the axis, over half of its size, as a share of that of the elements."""
    other = 3 if axis == 2 else axis - 1
    rows = _cut(expression, expression.source, [0, _END, other, _ROWS_APART])
    later, sooner = (_cut(expression, rows, [*ends, axis, 1]) for ends in ((1, _END), (0, -1)))
    change, power = (
        measure_power(expression, tensor) for tensor in (expression.apply("Sub", later, sooner), rows)
    )
    size = expression.apply("Cast", expression.sizes(expression.source, axis), to=TensorProto.FLOAT)
    half = expression.apply("Mul", size, expression.number(0.5))
    return divide(expression, expression.apply("Mul", change, expression.apply("Mul", half, half)), power)


def _cut(expression: Expression, tensor: str, where: Sequence[int]) -> str:
    """From a start to an end along an axis, by steps."""
    return expression.apply("Slice", tensor, *(expression.integers(number) for number in where))
