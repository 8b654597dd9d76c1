"""What reductions compute inside: the sum before it is divided, and the magnitudes that bound every partial sum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found

_LIVE_AXES_SINCE = 13
"""The opset from which on ReduceSum takes axes that the model computes."""


def find_in_mean(expression: Expression) -> Iterator[Found]:
    yield from _find_sums(expression, is_divided=True)


def find_in_sum(expression: Expression) -> Iterator[Found]:
    yield from _find_sums(expression, is_divided=False)


def find_in_global_average(expression: Expression) -> Iterator[Found]:
    rows = expression.rows_behind(2)
    yield "sum", expression.add_up("ReduceSum", rows)
    yield "sum of magnitudes", expression.add_up("ReduceL1", rows)


def find_in_exclusive_sum(expression: Expression) -> Iterator[Found]:
    """CumSum that leaves its last sum out of the output."""
    if not expression.attribute("exclusive", 0):
        return
    axis = expression.graph.read_constant(expression.node.inputs[1])
    if axis is not None:
        yield "last sum", expression.add_up("ReduceSum", expression.rows([int(axis.reshape(-1)[0])]))
    elif expression.graph.opset >= _LIVE_AXES_SINCE:
        live = expression.apply("Cast", expression.node.inputs[1], to=TensorProto.INT64)
        axes = expression.apply("Reshape", live, expression.integers(1))
        yield "last sum", expression.apply("ReduceSum", expression.source, axes)


def _find_sums(expression: Expression, *, is_divided: bool) -> Iterator[Found]:
    """Over the node's axes, of whatever form; nothing where it reduces none."""
    attribute = expression.attribute("axes", [])
    given = expression.node.inputs[1] if len(expression.node.inputs) > 1 else ""
    constant = expression.graph.read_constant(given)
    if given and constant is None:
        yield from _find_live_sums(expression, given, is_divided=is_divided)
        return
    axes = attribute if constant is None else np.asarray(constant, np.int64).reshape(-1).tolist()
    if axes or not expression.attribute("noop_with_empty_axes", 0):
        rows = expression.rows(axes, as_given=True)
        if is_divided:
            yield "sum", expression.add_up("ReduceSum", rows)
        yield "sum of magnitudes", expression.add_up("ReduceL1", rows)


def _find_live_sums(expression: Expression, axes: str, *, is_divided: bool) -> Iterator[Found]:
    """Over axes that the model computes, which ReduceSum takes in each opset in which the node does."""
    keeps_all = expression.attribute("noop_with_empty_axes", 0)
    magnitudes = expression.apply("Abs", expression.source)
    yield "sum of magnitudes", expression.apply("ReduceSum", magnitudes, axes, noop_with_empty_axes=keeps_all)
    if is_divided:
        yield "sum", expression.apply("ReduceSum", expression.source, axes, noop_with_empty_axes=keeps_all)
