"""What normalisations compute inside: deviations from the mean, sums, and sums of squares."""

from __future__ import annotations

import math
from collections.abc import Iterator

from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.quantities import Found
from overflow_fixer.inner.quiet_rows import compare_extremes, is_fed
from overflow_fixer.inner.rows import Rows


def find_in_layer_normalization(expression: Expression) -> Iterator[Found]:
    yield from _moments(expression, expression.rows_behind(expression.attribute("axis", -1)))


def find_in_instance_normalization(expression: Expression) -> Iterator[Found]:
    """Over each channel of each sample."""
    yield from _moments(expression, expression.rows_behind(2))


def find_in_group_normalization(expression: Expression) -> Iterator[Found]:
    """Over each group of channels of each sample. [N, C, ...] becomes [N, groups, C / groups, ...], empty or not."""
    groups = expression.attribute("num_groups", 1)
    lengths = _lengths_in_groups(expression, groups)
    samples, channels, places = _split_shape(expression)
    if expression.dims is None:
        places = expression.reduce("ReduceProd", places, [0])
    divisor = expression.integers(groups)
    per_group = expression.apply("Div", channels, divisor)
    target = expression.apply("Concat", samples, divisor, per_group, places, axis=0)
    grouped = expression.apply("Reshape", expression.source, target, allowzero=1)
    yield from _moments(expression, Rows(grouped, tuple(range(2, 2 + len(lengths))), lengths, are_last=True))


def find_in_mean_variance_normalization(expression: Expression) -> Iterator[Found]:
    yield from _moments(expression, expression.rows(expression.attribute("axes", [0, 2, 3])))


def find_in_rms_normalization(expression: Expression) -> Iterator[Found]:
    rows = expression.rows_behind(expression.attribute("axis", -1))
    yield "sum of squares", expression.add_up("ReduceSumSquare", rows)


def find_in_lp_normalization(expression: Expression) -> Iterator[Found]:
    rows = expression.rows([expression.attribute("axis", -1)])
    if expression.attribute("p", 2) == 1:
        yield "norm", expression.add_up("ReduceL1", rows)
    else:
        yield "sum of squares", expression.add_up("ReduceSumSquare", rows)


def _split_shape(expression: Expression) -> Iterator[str]:
    """The number of samples, of channels, and the other dimensions, as vectors."""
    shape = expression.apply("Shape", expression.source)
    for first, end in ((0, 1), (1, 2), (2, 2**31)):
        yield expression.apply("Slice", shape, expression.integers(first), expression.integers(end))


def _lengths_in_groups(expression: Expression, groups: int) -> tuple[int | str | None, ...]:
    """Channels of a group, and the dimensions behind them, as far as they are sure."""
    if expression.dims is None:
        return (None, None)
    channels, *places = expression.dims[1:]
    return (channels // groups if isinstance(channels, int) else None, *places)


def _moments(expression: Expression, rows: Rows) -> Iterator[Found]:
    """x - mean, its squares summed, and x summed.

    The largest |x - mean| of a row is that of its extremes: rounding keeps the order; of an empty row it is 0. What
    rounding took from the mean is the mean of x - mean; it matters where the mean is large and deviations small.
    """
    is_of_features = is_fed(expression.graph, expression.source)
    native = expression.moments(rows)
    if native is not None:
        if is_of_features:
            yield "row cancellation", _compare(expression, native.largest, native.smallest)
        yield "deviation", native.deviation
        yield "sum of squares", native.spread
        yield "sum", native.sum
        return
    rows = expression.cut_last(rows)
    highest, lowest = (expression.reduce(op, rows.tensor, rows.axes) for op in ("ReduceMax", "ReduceMin"))
    mean = expression.add_up("ReduceMean", rows)
    expression.extremes = (highest, lowest, mean)
    deviations = Rows(expression.apply("Sub", rows.tensor, mean), rows.axes, expression.lengths(rows))
    rest = expression.add_up("ReduceMean", deviations)
    above = expression.apply("Sub", expression.apply("Sub", highest, mean), rest)
    below = expression.apply("Add", expression.apply("Sub", mean, lowest), rest)
    count, zero = expression.count(rows), expression.number(0.0)
    too_much = expression.apply("Mul", expression.apply("Mul", rest, rest), count)
    squares = expression.apply("Sub", expression.add_up("ReduceSumSquare", deviations), too_much)
    if is_of_features:
        yield "row cancellation", _compare(expression, highest, lowest)
    yield "deviation", expression.apply("Max", above, below, zero)
    yield "sum of squares", expression.apply("Max", squares, zero)
    yield "sum", expression.apply("Mul", expression.apply("Add", mean, rest), count)


def _compare(expression: Expression, highest: str, lowest: str) -> str:
    """How many times half of what a row spans it is, in largest magnitudes; 0 where that half is no more than epsilon's root."""
    root = math.sqrt(expression.attribute("epsilon", 1e-5))
    return compare_extremes(expression, highest, lowest, is_mean=True, least=root)
