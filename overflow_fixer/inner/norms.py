"""What normalisations compute inside: deviations from the mean, sums, and sums of squares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found


def find_in_layer_normalization(expression: Expression) -> Iterator[Found]:
    yield from _moments(expression, expression.flatten(expression.attribute("axis", -1)), [1])


def find_in_instance_normalization(expression: Expression) -> Iterator[Found]:
    """Over each channel of each sample."""
    yield from _moments(expression, expression.flatten(2), [1])


def find_in_group_normalization(expression: Expression) -> Iterator[Found]:
    """Over each group of channels of each sample. [N, C, ...] becomes [N, groups, C / groups * ...], empty or not."""
    integers, groups = expression.integers, expression.attribute("num_groups", 1)
    shape = expression.apply("Shape", expression.source)
    samples, channels, places = (
        expression.apply("Slice", shape, integers(first), integers(end))
        for first, end in ((0, 1), (1, 2), (2, 2**31))
    )
    elements = expression.apply("Mul", channels, expression.reduce("ReduceProd", places, [0]))
    width = expression.apply("Div", elements, integers(groups))
    target = expression.apply("Concat", samples, integers(groups), width, axis=0)
    grouped = expression.apply("Reshape", expression.source, target, allowzero=1)
    yield from _moments(expression, grouped, [2])


def find_in_mean_variance_normalization(expression: Expression) -> Iterator[Found]:
    yield from _moments(expression, expression.source, expression.attribute("axes", [0, 2, 3]))


def find_in_rms_normalization(expression: Expression) -> Iterator[Found]:
    rows = expression.flatten(expression.attribute("axis", -1))
    yield "sum of squares", expression.reduce("ReduceSumSquare", rows, [1])


def find_in_lp_normalization(expression: Expression) -> Iterator[Found]:
    axis, is_l1 = expression.attribute("axis", -1), expression.attribute("p", 2) == 1
    if is_l1:
        yield "sum of magnitudes", expression.reduce("ReduceL1", expression.source, [axis])
    else:
        yield "sum of squares", expression.reduce("ReduceSumSquare", expression.source, [axis])


def _moments(expression: Expression, source: str, axes: Sequence[int]) -> Iterator[Found]:
    """x - mean, its squares summed, and the sum that the mean is made of.

    The largest |x - mean| of a row is that of its extremes: rounding keeps the order. Of an empty row it is 0.
    """
    mean = expression.reduce("ReduceMean", source, axes)
    highest, lowest = (expression.reduce(op, source, axes) for op in ("ReduceMax", "ReduceMin"))
    above, below = expression.apply("Sub", highest, mean), expression.apply("Sub", mean, lowest)
    yield "deviation", expression.apply("Relu", expression.apply("Max", above, below))
    deviations = expression.apply("Sub", source, mean)
    yield "sum of squares", expression.reduce("ReduceSumSquare", deviations, axes)
    yield "sum", expression.reduce("ReduceSum", source, axes)
