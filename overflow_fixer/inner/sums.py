"""What reductions compute inside: the sum before it is divided, and the magnitudes that bound every partial sum."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found


def find_in_mean(expression: Expression) -> Iterator[Found]:
    for axes in _read_axes(expression):
        yield "sum", expression.reduce("ReduceSum", expression.source, axes)
        yield "sum of magnitudes", expression.reduce("ReduceL1", expression.source, axes)


def find_in_sum(expression: Expression) -> Iterator[Found]:
    for axes in _read_axes(expression):
        yield "sum of magnitudes", expression.reduce("ReduceL1", expression.source, axes)


def find_in_global_average(expression: Expression) -> Iterator[Found]:
    places = expression.flatten(2)
    yield "sum", expression.reduce("ReduceSum", places, [1])
    yield "sum of magnitudes", expression.reduce("ReduceL1", places, [1])


def find_in_exclusive_sum(expression: Expression) -> Iterator[Found]:
    """CumSum that leaves its last sum out of the output."""
    axis = expression.graph.read_constant(expression.node.inputs[1])
    if expression.attribute("exclusive", 0) and axis is not None:
        yield "sum", expression.reduce("ReduceSum", expression.source, [int(axis.reshape(-1)[0])])


def _read_axes(expression: Expression) -> Iterator[Sequence[int] | str | None]:
    """The node's axes, of whatever form, once; nothing where it reduces none or they cannot be told."""
    attribute = expression.attribute("axes", None)
    given = expression.node.inputs[1] if len(expression.node.inputs) > 1 else ""
    if attribute is not None or not given:
        is_identity = attribute is None and expression.attribute("noop_with_empty_axes", 0)
        yield from () if is_identity else (attribute,)
        return
    constant = expression.graph.read_constant(given)
    if constant is None:
        yield from _read_live_axes(expression, given)
    elif constant.size:
        yield np.asarray(constant, np.int64).reshape(-1).tolist()
    elif not expression.attribute("noop_with_empty_axes", 0):
        yield None


def _read_live_axes(expression: Expression, given: str) -> Iterator[str]:
    """Axes that the model computes serve where every reduction takes them as an input."""
    if expression.graph.opset >= 18 and not expression.attribute("noop_with_empty_axes", 0):
        yield given
