"""What normalisations compute inside: deviations from the mean, sums, and sums of squares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found


def find_in_layer_normalization(expression: Expression) -> Iterator[Found]:
    axis = expression.attribute("axis", -1)
    yield from _moments_of_rows(expression, expression.flatten(axis), axis)


def find_in_instance_normalization(expression: Expression) -> Iterator[Found]:
    """Over each channel of each sample."""
    yield from _moments_of_rows(expression, expression.flatten(2), 2)


def find_in_group_normalization(expression: Expression) -> Iterator[Found]:
    """Over each group of channels of each sample. [N, C, ...] becomes [N groups, C / groups * ...], empty or not."""
    integers, groups = expression.integers, expression.integers(expression.attribute("num_groups", 1))
    shape = expression.apply("Shape", expression.source)
    samples, channels, places = (
        expression.apply("Slice", shape, integers(first), integers(end))
        for first, end in ((0, 1), (1, 2), (2, 2**31))
    )
    elements = expression.apply("Mul", channels, expression.reduce("ReduceProd", places, [0]))
    sides = (expression.apply("Mul", samples, groups), expression.apply("Div", elements, groups))
    target = expression.apply("Concat", *sides, axis=0)
    rows = expression.apply("Reshape", expression.source, target, allowzero=1)
    yield from _moments(expression, rows, [1])
    yield "sum", expression.reduce("ReduceSum", rows, [1])


def find_in_mean_variance_normalization(expression: Expression) -> Iterator[Found]:
    axes = expression.attribute("axes", [0, 2, 3])
    yield from _moments(expression, expression.source, axes)
    yield "sum", expression.reduce("ReduceSum", expression.source, axes)


def find_in_rms_normalization(expression: Expression) -> Iterator[Found]:
    rows = expression.flatten(expression.attribute("axis", -1))
    yield "sum of squares", expression.reduce("ReduceSumSquare", rows, [1])


def find_in_lp_normalization(expression: Expression) -> Iterator[Found]:
    axis, is_l1 = expression.attribute("axis", -1), expression.attribute("p", 2) == 1
    if is_l1:
        yield "sum of magnitudes", expression.reduce("ReduceL1", expression.source, [axis])
    else:
        yield "sum of squares", expression.reduce("ReduceSumSquare", expression.source, [axis])


def _moments_of_rows(expression: Expression, rows: str, axis: int) -> Iterator[Found]:
    """Of the source flattened at `axis`."""
    yield from _moments(expression, rows, [1])
    assert expression.extremes is not None
    mean = expression.extremes[2]
    yield "sum", expression.apply("Mul", mean, expression.count_columns(rows, axis))


def _moments(expression: Expression, source: str, axes: Sequence[int]) -> Iterator[Found]:
    """x - mean, and its squares summed.

    The largest |x - mean| of a row is that of its extremes: rounding keeps the order. Of an empty row it is -inf.
    """
    operators = ("ReduceMax", "ReduceMin", "ReduceMean")
    highest, lowest, mean = (expression.reduce(op, source, axes) for op in operators)
    expression.extremes = (highest, lowest, mean)
    above, below = expression.apply("Sub", highest, mean), expression.apply("Sub", mean, lowest)
    yield "deviation", expression.apply("Max", above, below)
    deviations = expression.apply("Sub", source, mean)
    yield "sum of squares", expression.reduce("ReduceSumSquare", deviations, axes)
