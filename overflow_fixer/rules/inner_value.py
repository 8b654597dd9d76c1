"""A value that a node computes inside, and that no tensor shows, pins the node.

The scan measures them (docs/numerics.md lists them): the squares and sums of normalisations, the sum that a mean
divides, the row of a softmax that is masked as a whole. A measured value is held against the threshold, as a
tensor is. What only bounds a value is held against FP16's own limit, since it has a margin of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from overflow_fixer.evidence.inner_functions import InnerFunction, find_functions, find_source
from overflow_fixer.formats import FP16_MAX, FP16_OVERFLOW, FP16_UNDERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, InnerRange, PlanPolicy, RangeTable, Severity
from overflow_fixer.rules.digits import tell_over

_TEXT = {
    "deviation": "the square of x - mean",
    "sum": "the sum before it is divided",
    "last sum": "the last sum, which is left out of the output,",
    "norm": "the sum of magnitudes",
    "sum of magnitudes": "the sum of magnitudes, which no partial sum exceeds,",
    "sum of squares": "the sum of squares",
    "sum of exponentials": "the sum of exponentials of a row",
    "scores": "the product of queries and keys before it is scaled",
    "scaled scores": "the product of queries and keys, scaled by more than 1,",
    "hidden state": "the hidden state of a step, which is no output,",
    "cell state": "the cell state of a step",
}
SQUARED = frozenset({"deviation"})
"""Quantities whose square is what the node computes."""
_BESIDE_A_MASK = frozenset({"row maximum", "sum of exponentials"})
"""Quantities that are finite where some elements are -inf."""
_MASKED_ROW = -FP16_OVERFLOW


def find_large_inner_values(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each quantity inside the node that is over its limit.

    Of what only bounds a value, none where the node is found out by a measured one. NaN and infinities that
    come in are the rule non_finite's, but for the -inf of a mask, beside which a row's exponentials have a sum; a finite
    value whose square or sum FP32 does not hold is threshold's.
    """
    inner = ranges.inner_of.get(node.label, {}).values()
    found = [finding for one in inner for finding in _judge(node, ranges, one, policy)]
    found += _find_large_functions(node, graph, ranges, policy)
    certain = [finding for finding in found if finding.severity == "high"]
    yield from certain or found


def _judge(node: Node, ranges: RangeTable, inner: InnerRange, policy: PlanPolicy) -> Iterator[Finding]:
    seen = ranges.get(node.inputs[0])
    if seen is None or seen.nan_count:
        return
    if not math.isfinite(seen.max if inner.quantity in _BESIDE_A_MASK else seen.max_abs):
        return
    if inner.quantity == "row maximum":
        yield from _judge_rows(node, ranges, inner)
    elif inner.quantity in _TEXT:
        yield from _judge_magnitude(node, ranges, inner, policy)


def _judge_magnitude(
    node: Node, ranges: RangeTable, inner: InnerRange, policy: PlanPolicy
) -> Iterator[Finding]:
    value = inner.seen.max_abs
    if inner.quantity in SQUARED:
        value *= value
    if math.isfinite(value):
        large = InnerFunction(inner.seen, value, _TEXT[inner.quantity], inner.is_bound)
        yield from _judge_large(node, node.inputs[0], large, ranges, policy)


def _judge_rows(node: Node, ranges: RangeTable, inner: InnerRange) -> Iterator[Finding]:
    """A row whose largest element is -65520 or less becomes one of -inf alone, whose softmax is NaN.

    -inf itself, where no element is infinite, is the maximum of an empty row.
    """
    value = inner.seen.min
    if value > _MASKED_ROW or not math.isfinite(value):
        return
    reason = (
        f"a row is masked as a whole: its largest element is {value:.6g}, beyond the limit of {_MASKED_ROW:g} from which "
        "FP16 stores -inf, and the softmax of nothing but -inf is NaN"
    )
    batch = ranges.worst_batch_of(inner.seen) if -value == inner.seen.max_abs else None
    yield Finding("inner_value", node.label, node.inputs[0], value, _MASKED_ROW, reason, batch)


def _find_large_functions(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each value that follows from a range and is over the threshold (a bound: over 65504), and for a logarithm of what FP16 makes zero.

    Nothing is said of a tensor that holds NaN or infinities itself: that is the rule non_finite's; nor of a node that
    does not compute FP32.
    """
    seen = find_source(node, graph, ranges)
    for inner in find_functions(node, graph, seen) if seen is not None else ():
        if inner.is_least:
            yield from _judge_least(node, inner, ranges)
        else:
            yield from _judge_large(node, inner.seen.tensor, inner, ranges, policy)


def _judge_large(
    node: Node, tensor: str, inner: InnerFunction, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    limit, name = (FP16_MAX, "FP16's limit") if inner.is_bound else (policy.threshold, "the threshold")
    if inner.value > limit:
        reason = f"inside, {inner.text} reaches {tell_over(inner.value, limit)}, over {name} of {limit:g}"
        severity: Severity = "low" if inner.is_bound else "high"
        batch = ranges.worst_batch_of(inner.seen)
        yield Finding("inner_value", node.label, tensor, inner.value, limit, reason, batch, severity=severity)


def _judge_least(node: Node, inner: InnerFunction, ranges: RangeTable) -> Iterator[Finding]:
    """Of a sum, low where FP16 would hold it, and not its terms, on average."""
    read, seen = ranges.get(node.inputs[0]), inner.seen
    terms = 1 if read is None else read.element_count / max(seen.element_count, 1)
    if not inner.value <= FP16_UNDERFLOW * terms:
        return
    is_mean = inner.value > FP16_UNDERFLOW
    value = inner.value / terms if is_mean else inner.value
    told = f"{inner.value:.6g}, of terms of {value:.6g} on average" if is_mean else f"{value:.6g}"
    reason = (
        f"inside, {inner.text} is {told}, which FP16 rounds to 0 as all up to {FP16_UNDERFLOW:.6g}, and the logarithm of 0 "
        "is -inf"
    )
    batch = ranges.worst_batch_of(seen) if -seen.min == seen.max_abs else None
    severity: Severity = "low" if is_mean else "high"
    yield Finding(
        "inner_value", node.label, seen.tensor, value, FP16_UNDERFLOW, reason, batch, severity=severity
    )


def is_about_a_masked_row(finding: Finding) -> bool:
    return finding.rule == "inner_value" and finding.limit == _MASKED_ROW
