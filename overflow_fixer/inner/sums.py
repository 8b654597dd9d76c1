"""What reductions compute inside: the sum before it is divided, and the magnitudes that bound every partial sum."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import TensorProto

from overflow_fixer.inner.axes import find_live_axes, read_axes
from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found, Quantity
from overflow_fixer.inner.rows import Rows


def find_in_mean(expression: Expression) -> Iterator[Found]:
    yield from _find_sums(expression, {"sum": "ReduceSum", "sum of magnitudes": "ReduceL1"})


def find_in_sum(expression: Expression) -> Iterator[Found]:
    yield from _find_sums(expression, {"sum of magnitudes": "ReduceL1"})


def find_in_l2_norm(expression: Expression) -> Iterator[Found]:
    """Of long rows the square of what ONNX Runtime gives is not right to 1e-5, and how long they are is not always known."""
    yield from _find_sums(expression, {"sum of squares": "ReduceSumSquare"})


def find_in_mean_of_inputs(expression: Expression) -> Iterator[Found]:
    """Mean and Sum of several tensors, added element by element."""
    if len(expression.node.inputs) > 2:
        magnitudes = [expression.apply("Abs", name) for name in expression.node.inputs]
        yield "sum of magnitudes", expression.apply("Sum", *magnitudes)


def find_in_global_average(expression: Expression) -> Iterator[Found]:
    rows = expression.rows_behind(2)
    yield "sum", expression.add_up("ReduceSum", rows)
    yield "sum of magnitudes", expression.add_up("ReduceL1", rows)


def find_in_exclusive_sum(expression: Expression) -> Iterator[Found]:
    """CumSum that leaves its last sum out of the output."""
    if not expression.attribute("exclusive", 0):
        return
    axis = expression.graph.read_fixed(expression.node.inputs[1])
    if axis is not None:
        yield "last sum", expression.add_up("ReduceSum", expression.rows([int(axis.reshape(-1)[0])]))
    else:
        yield "last sum", _find_last_sum(expression)


def find_rows(expression: Expression) -> Rows | str | None:
    """What the node reduces: the tensor of its axes, where the model computes them; None where it reduces none."""
    live = find_live_axes(expression.graph, expression.node)
    axes = read_axes(expression.graph, expression.node)
    return live or (None if axes is None else expression.rows(axes, as_given=True))


def _find_last_sum(expression: Expression) -> str:
    """Along an axis that the model computes: the last of the sums that leave nothing out, in FP64."""
    axis = expression.node.inputs[1]
    wide = expression.apply("Cast", expression.source, to=TensorProto.DOUBLE)
    is_reverse = expression.attribute("reverse", 0)
    sums = expression.apply("CumSum", wide, axis, reverse=is_reverse)
    at = expression.apply(
        "Reshape", expression.apply("Cast", axis, to=TensorProto.INT64), expression.integers(1)
    )
    first, end = (0, 1) if is_reverse else (-1, 2**31)
    last = expression.apply("Slice", sums, expression.integers(first), expression.integers(end), at)
    return expression.apply("Cast", last, to=TensorProto.FLOAT)


def _find_sums(expression: Expression, wanted: Mapping[Quantity, str]) -> Iterator[Found]:
    """Over the node's axes, of whatever form; nothing where it reduces none."""
    rows = find_rows(expression)
    keeps_all = expression.attribute("noop_with_empty_axes", 0)
    for quantity, op_type in wanted.items() if rows is not None else ():
        if isinstance(rows, str):
            yield quantity, expression.add_up_live(op_type, rows, noop_with_empty_axes=keeps_all)
        elif rows is not None:
            yield quantity, expression.add_up(op_type, rows)
