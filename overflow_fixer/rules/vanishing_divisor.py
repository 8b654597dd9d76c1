"""A value that FP16 rounds to zero, where it is divided by, or a logarithm is taken of it.

FP32 divides by 1e-9; FP16 stores it as 0, and gives infinity or NaN. The root of 1e-12 is 1e-6, which FP16 holds,
but not where the 1e-12 was rounded to zero before. What writes the value stays in FP32, and all up to the division.
Of 1 - p, 1e-4 is zero as well, since FP16 rounds such a p to 1; then what writes p stays, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial

from onnx import TensorProto

from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.graph import Graph
from overflow_fixer.inner.quantities import DIVIDED_BY
from overflow_fixer.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable, Severity
from overflow_fixer.rules.cancellation import find_cancellation, trace_term
from overflow_fixer.rules.paths import find_ways, walk_back
from overflow_fixer.rules.places import step_at
from overflow_fixer.rules.semantics import moves, readers

_DIVIDES = frozenset({("Div", 1), ("Reciprocal", 0), ("Log", 0)})
_DIVIDES_INSIDE = "LpNormalization"
_KEEPS_ZERO = frozenset(
    """Sqrt Mul Abs Neg Relu LeakyRelu PRelu Softsign Tanh Sin Tan Sinh Asin Atan Asinh Atanh Erf ReduceMin
    ReduceProd""".split()
)
_SHRINKS = frozenset("ReduceSum ReduceMean Sqrt Abs Neg Clip Max Add Sum".split())
"""Operators whose small outputs come from inputs as small, or smaller."""


@dataclass(frozen=True)
class _Divisor:
    """A tensor with a value that FP16 makes zero of, and what is to be said of it.

    `is_mean`: the terms of a sum, on average. `cancelled`: of a difference, what FP16 rounds away.
    """

    tensor: str
    least: float
    text: str
    is_mean: bool = False
    limit: float = FP16_UNDERFLOW
    cancelled: str | None = None


def find_vanishing_divisors(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each such tensor that the node writes, passes on, or divides by.

    `value` is the smallest magnitude but zero that was seen, which may have been in any batch; `limit` is 2^-25, of a
    difference half a step of FP16 at the number that it is from. Zeros themselves, which FP32 divides by as well, are the
    rule non_finite's matter. The severity is low where a sum would be held and only its terms, on average, would not.
    """
    for divisor, end in _evidence(graph, ranges).get(node.label, {}).items():
        verb = "are" if divisor.is_mean else "is"
        reason = f"{divisor.text}, which {verb} zero in FP16, and {end.op_type} {end.label} makes infinity or NaN of it"
        severity: Severity = "low" if divisor.is_mean else "high"
        yield Finding(
            "vanishing_divisor",
            node.label,
            divisor.tensor,
            divisor.least,
            divisor.limit,
            reason,
            severity=severity,
        )


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[_Divisor, Node]]:
    """For each node concerned, the divisors and what divides by each."""
    found: dict[str, dict[_Divisor, Node]] = {}
    for divisor in _find_divisors(graph, ranges):
        writer = graph.producers.get(divisor.tensor)
        divides_inside = writer is not None and writer.standard_op == _DIVIDES_INSIDE
        reached = (writer,) if writer and divides_inside else _reach(graph, ranges, divisor.tensor)
        if reached:
            for node in (*_sources(graph, ranges, divisor), *reached):
                found.setdefault(node.label, {}).setdefault(divisor, reached[-1])
    return found


def _find_divisors(graph: Graph, ranges: RangeTable) -> Iterator[_Divisor]:
    yield from _of_inputs(graph, ranges)
    for node in graph.nodes:
        yield from _of_a_norm(node, ranges)
        for name in node.writes if node.op_type != "Constant" else ():
            seen = ranges.get(name)
            if seen is None or graph.dtypes.get(name) != TensorProto.FLOAT:
                continue
            least = seen.min_nonzero_abs
            text = f"{name} is as small as {least:.3g}"
            cancellation = find_cancellation(graph, ranges, node)
            if cancellation is not None:
                limit = step_at(cancellation.number) / 2
                text = f"{text}, a difference from {cancellation.number:g}"
                yield _Divisor(name, least, text, limit=limit, cancelled=cancellation.term)
            elif 0 < least <= FP16_UNDERFLOW:
                yield _Divisor(name, least, text)
            elif node.standard_op == "ReduceSum" and _is_square(graph, node.inputs[0]):
                yield from _of_a_sum(node, ranges, least, seen.element_count, f"{text}, a sum of squares")
            yield from _before_scaling(graph, ranges, node, least)


def _of_inputs(graph: Graph, ranges: RangeTable) -> Iterator[_Divisor]:
    """Inputs of the model that a node divides by as they are; others are told of by what is made of them."""
    for name in (spec.name for spec in graph.inputs if graph.dtypes.get(spec.name) == TensorProto.FLOAT):
        seen = ranges.get(name)
        if seen is not None and any(_divides(graph, *read) for read in readers(graph, name)):
            least = seen.min_nonzero_abs
            if 0 < least <= FP16_UNDERFLOW:
                yield _Divisor(name, least, f"{name} is as small as {least:.3g}")


def _before_scaling(graph: Graph, ranges: RangeTable, node: Node, least: float) -> Iterator[_Divisor]:
    """What the node scales by one number to `least` and more, where it was not measured and FP16 makes zero of it."""
    if node.standard_op not in ("Mul", "Div") or not 0 < least < math.inf:
        return
    slot = 1 if node.standard_op == "Mul" and node.inputs[0] in graph.constants else 0
    factor, source = ranges.get(node.inputs[1 - slot]), node.inputs[slot]
    is_number = factor is not None and factor.min == factor.max and factor.tensor in graph.constants
    read = ranges.get(source)
    if factor is None or not is_number or read is None or read.min_nonzero_abs >= 0 or not factor.max_abs:
        return
    before = least / factor.max_abs if node.standard_op == "Mul" else least * factor.max_abs
    if before <= FP16_UNDERFLOW:
        text = f"{source} is as small as {before:.3g}, by what {node.label} makes of it"
        yield _Divisor(source, before, text)


def _of_a_norm(node: Node, ranges: RangeTable) -> Iterator[_Divisor]:
    """What a node takes the root of, or divides by itself, as the scan measured it inside."""
    for quantity in DIVIDED_BY.get(node.standard_op, ()):
        inner = ranges.inner_of.get(node.label, {}).get(quantity)
        if inner is None:
            continue
        least = inner.seen.min_nonzero_abs
        text = f"inside {node.op_type} {node.label}, the {quantity} is as small as {least:.3g}"
        if 0 < least <= FP16_UNDERFLOW:
            yield _Divisor(node.outputs[0], least, text)
        else:
            yield from _of_a_sum(node, ranges, least, inner.seen.element_count, f"{text}, a sum of terms")


def _of_a_sum(node: Node, ranges: RangeTable, least: float, count: int, text: str) -> Iterator[_Divisor]:
    """One of so many sums that FP16 would hold, of terms that it makes zero of, on average."""
    read = ranges.get(node.inputs[0])
    terms = 1 if read is None else read.element_count / max(count, 1)
    if 0 < least <= FP16_UNDERFLOW * terms:
        mean = least / terms
        yield _Divisor(node.outputs[0], mean, f"{text} of {mean:.3g} on average", is_mean=True)


def _is_square(graph: Graph, tensor: str) -> bool:
    node = graph.producers.get(tensor)
    if node is None:
        return False
    if node.standard_op == "Mul":
        return node.inputs[0] == node.inputs[1]
    return node.standard_op == "Pow" and _exponent(graph, node) == 2


def _reach(graph: Graph, ranges: RangeTable, tensor: str) -> tuple[Node, ...]:
    """The nodes from the tensor to those that divide by it, in order; none where nothing does."""
    return find_ways(graph, tensor, partial(_keeps_zero, graph, ranges), partial(_divides, graph))


def _divides(graph: Graph, node: Node, slot: int) -> bool:
    return (node.standard_op, slot) in _DIVIDES or (slot == 0 and _exponent(graph, node) < 0)


def _keeps_zero(graph: Graph, ranges: RangeTable, node: Node, slot: int) -> bool:
    """Whether the node makes zero of zero: also where a constant would keep it from that, of which FP16 makes zero too."""
    is_power = slot == 0 and _exponent(graph, node) > 0
    is_quotient = node.standard_op == "Div" and slot == 0
    is_plain = is_power or is_quotient or node.standard_op in _KEEPS_ZERO or moves(node, slot)
    return is_plain or _guards_in_vain(graph, ranges, node, slot)


def _guards_in_vain(graph: Graph, ranges: RangeTable, node: Node, slot: int) -> bool:
    if node.standard_op == "Clip" and slot == 0:
        bound = node.attribute("min")  # below opset 11
        is_low = bound is None or bound.f <= FP16_UNDERFLOW
        return is_low and all(_vanishes(graph, ranges, name) for name in node.inputs[1:2] if name)
    others = (*node.inputs[:slot], *node.inputs[slot + 1 :])
    is_guard = node.standard_op in ("Add", "Sum", "Max")
    return is_guard and all(_vanishes(graph, ranges, name) for name in others)


def _vanishes(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    """Whether it is a constant of which FP16 makes nothing but zeros."""
    seen = ranges.get(tensor) if tensor in graph.constants else None
    return seen is not None and seen.max_abs <= FP16_UNDERFLOW


def _exponent(graph: Graph, node: Node) -> float:
    """Pow's exponent, where it is one number; NaN elsewhere."""
    value = graph.read_constant(node.inputs[1]) if node.standard_op == "Pow" else None
    return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else math.nan


def _sources(graph: Graph, ranges: RangeTable, divisor: _Divisor) -> Iterator[Node]:
    """The nodes that compute it from what FP16 holds."""
    if divisor.cancelled is None:
        yield from _origins(graph, ranges, divisor.tensor)
    else:
        yield graph.producers[divisor.tensor]
        yield from trace_term(graph, divisor.cancelled)


def _origins(graph: Graph, ranges: RangeTable, tensor: str) -> Iterator[Node]:
    """The node that writes the tensor, and those before it whose outputs are as small: squares that are summed."""

    def shrinks(node: Node, name: str) -> bool:
        return (node.standard_op in _SHRINKS or moves(node, 0)) and _is_positive(graph, ranges, name)

    return walk_back(graph, tensor, shrinks)


def _is_positive(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    """Whether it is computed, and never below zero: what is small is not a difference of larger values."""
    seen = ranges.get(tensor)
    return seen is not None and seen.min >= 0 and tensor not in graph.constants
