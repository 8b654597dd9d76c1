"""What may be divided by, or put into a logarithm, and is zero in FP16: as measured, or as follows from what was.

Whether anything divides by it is the rule vanishing_divisor's matter, but where a node does so inside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from overflow_fixer.evidence.measured import count_terms, find_inner, is_never_negative
from overflow_fixer.evidence.semantics import moves, readers
from overflow_fixer.evidence.zeros.cancellation import Cancellation, find_cancellation
from overflow_fixer.evidence.zeros.near_zero import divides
from overflow_fixer.evidence.zeros.small_sources import FARTHEST, Part, carry_back, is_lost
from overflow_fixer.formats import FP16_MIN_SUBNORMAL, FP16_UNDERFLOW, round_to_fp16
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import is_root, is_square
from overflow_fixer.inner.quantities import DIVIDED_BY
from overflow_fixer.records import RangeTable

_DIVIDES_INSIDE = frozenset("LpNormalization ReduceLogSum".split())
_HAS_A_POLE_AT_1 = "Atanh"
_HALF_STEP_BELOW_1 = 2.0**-12
FEW_STEPS = 2.0**-21
"""Eight of FP16's steps: a number as small is off by up to a 16th, and zero where others like it are a few times smaller."""
_NEARLY = 1 + 2.0**-10
_SUMS = frozenset("ReduceSum ReduceL1 ReduceSumSquare MatMul Gemm".split())
"""Operators that FP16 may hold the output of where it holds none of the terms."""


@dataclass(frozen=True)
class Divisor:
    """A tensor with a value that FP16 makes zero of, or holds a few steps of, and what is to be said of it.

    `is_mean`: the terms of a sum, on average. `cancelled`: of a difference, and of what is zero at 1, what FP16 rounds away. `parts`: what the
    value is of, where that does not follow from it and from the node that writes it. `inside`: the node that divides by it
    inside, where nothing that reads it needs to. `makes`: what becomes of zero there.
    """

    tensor: str
    least: float
    text: str
    is_mean: bool = False
    limit: float = FP16_UNDERFLOW
    cancelled: Cancellation | None = None
    parts: tuple[Part, ...] = ()
    inside: Node | None = None
    makes: str = "infinity or NaN of it"

    @property
    def terms(self) -> tuple[str, ...]:
        """Of a difference of two tensors, these."""
        cancelled = self.cancelled
        return () if cancelled is None or not cancelled.other else (cancelled.term, cancelled.other)

    @property
    def becomes(self) -> str:
        """What FP16 makes of it."""
        if self.is_held:
            return f"{self.least / FP16_MIN_SUBNORMAL:.2g} of FP16's steps"
        return "zero or a step in FP16" if self.terms else "zero in FP16"

    @property
    def is_held(self) -> bool:
        """Whether FP16 makes something else than zero of it: a few steps."""
        return self.cancelled is None and self.limit > FP16_UNDERFLOW


def find_divisors(graph: Graph, ranges: RangeTable) -> Iterator[Divisor]:
    """Those that the graph's nodes write or compute inside, and inputs that are divided by as they are.

    None of what has no value but zero and NaN.
    """
    yield from _of_inputs(graph, ranges)
    for node in graph.nodes:
        yield from _of_a_norm(node, ranges)
        for name in node.writes if node.op_type != "Constant" else ():
            if graph.dtypes.get(name) == TensorProto.FLOAT:
                yield from _of_an_output(graph, ranges, node, name)
                yield from _of_a_sum(graph, ranges, node)
                yield from _under_a_logarithm(graph, ranges, node)
                yield from _before_a_pole(graph, ranges, node)


def _of_an_output(graph: Graph, ranges: RangeTable, node: Node, name: str) -> Iterator[Divisor]:
    seen = ranges.get(name)
    if seen is None:
        return
    least = seen.min_nonzero_abs
    text = f"{name} is as small as {least:.3g}"
    cancellation = find_cancellation(graph, ranges, node)
    if cancellation is not None:
        text = f"{text}, {cancellation.text}"
        makes = "infinity or another number of it" if cancellation.other else Divisor.makes
        yield Divisor(name, least, text, limit=cancellation.limit, cancelled=cancellation, makes=makes)
    elif 0 < least <= FP16_UNDERFLOW:
        yield Divisor(name, least, text)
    elif FP16_UNDERFLOW < least < FEW_STEPS and not _is_guard(graph, ranges, node, least):
        makes = "another number of it, and infinity or NaN of one that is a little smaller"
        yield Divisor(name, least, text, limit=FEW_STEPS, makes=makes)
    yield from _before_scaling(graph, ranges, node, least)


def _is_guard(graph: Graph, ranges: RangeTable, node: Node, least: float) -> bool:
    """Whether a constant is all of it: added to zero, or in the place of something smaller, and moved or a root perhaps."""
    for _ in range(FARTHEST):
        slots = range(len(node.inputs))
        guards = [value for slot in slots for value in _read_guards(graph, ranges, node, slot) or ()]
        if any(guard * _NEARLY >= least for guard in guards if guard < math.inf):
            return True
        parts = [*carry_back(graph, ranges, node, least)]
        writer = graph.producers.get(parts[0].tensor) if len(parts) == 1 else None
        if writer is None:
            return False
        node, least = writer, parts[0].magnitude
    return False


def _of_inputs(graph: Graph, ranges: RangeTable) -> Iterator[Divisor]:
    """Inputs of the model that a node divides by as they are, or takes the root of; others are told of by what is made of them."""
    for name in (spec.name for spec in graph.inputs if graph.dtypes.get(spec.name) == TensorProto.FLOAT):
        seen = ranges.get(name)
        read_by = readers(graph, name)
        if seen is not None and any(divides(graph, *read) or is_root(graph, read[0]) for read in read_by):
            least = seen.min_nonzero_abs
            if 0 < least <= FP16_UNDERFLOW:
                yield Divisor(name, least, f"{name} is as small as {least:.3g}")


def _before_scaling(graph: Graph, ranges: RangeTable, node: Node, least: float) -> Iterator[Divisor]:
    """What the node scales by one number to `least` and more, where it was not measured and FP16 makes zero of it."""
    if node.standard_op not in ("Mul", "Div") or is_square(graph, node) or not 0 < least < math.inf:
        return
    for source, before in carry_back(graph, ranges, node, least):
        read = ranges.get(source)
        if read is not None and read.min_nonzero_abs < 0 and before <= FP16_UNDERFLOW:
            text = f"{source} is as small as {before:.3g}, by what {node.label} makes of it"
            yield Divisor(source, before, text)


def _of_a_norm(node: Node, ranges: RangeTable) -> Iterator[Divisor]:
    """What a node takes the root of, or divides by itself, as the scan measured it inside."""
    for quantity in DIVIDED_BY.get(node.standard_op, ()):
        inner = find_inner(ranges, node, quantity)
        least = math.nan if inner is None else inner.seen.min_nonzero_abs
        if inner is None or not 0 < least < math.inf:
            continue
        mean = least / count_terms(ranges, node, inner.seen)
        part = Part(node.inputs[0], mean if quantity == "norm" else math.sqrt(mean))
        yield from _of_terms(node, quantity, least, mean, part)


def _under_a_logarithm(graph: Graph, ranges: RangeTable, node: Node) -> Iterator[Divisor]:
    """What ReduceLogSum adds up, where FP16 makes zero of what that is made of; of the node alone inner_value tells."""
    seen = ranges.get(node.outputs[0]) if node.standard_op == "ReduceLogSum" else None
    if seen is None or not math.isfinite(seen.min):
        return
    least = math.exp(seen.min)
    mean = least / count_terms(ranges, node, seen)
    part = Part(node.inputs[0], mean)
    if is_never_negative(ranges, part.tensor) and is_lost(graph, ranges, part):
        yield from _of_terms(node, "sum", least, mean, part)


def _of_terms(node: Node, quantity: str, least: float, mean: float, part: Part) -> Iterator[Divisor]:
    """A sum inside the node, or its terms, on average, where FP16 would hold the sum and makes zero of them."""
    text = f"inside {node.op_type} {node.label}, the {quantity} is as small as {least:.3g}"
    inside = node if node.standard_op in _DIVIDES_INSIDE else None
    if least <= FP16_UNDERFLOW:
        yield Divisor(node.outputs[0], least, text, parts=(part,), inside=inside)
    elif mean <= FP16_UNDERFLOW:
        text = f"{text}, a sum of terms of {mean:.3g} on average"
        yield Divisor(node.outputs[0], mean, text, is_mean=True, parts=(part,), inside=inside)


def _of_a_sum(graph: Graph, ranges: RangeTable, node: Node) -> Iterator[Divisor]:
    """A sum that FP16 holds, of terms that it makes zero of, on average: of ReduceSumSquare, the squares."""
    least = _find_held(graph, ranges, node.outputs[0]) if node.standard_op in _SUMS else math.nan
    adds_squares = node.standard_op == "ReduceSumSquare"
    for part in carry_back(graph, ranges, node, least) if least > FP16_UNDERFLOW else ():
        read = ranges.get(part.tensor)
        mean, smallest = part.magnitude, math.nan if read is None else read.min_nonzero_abs
        if adds_squares:
            mean, smallest = mean * mean, smallest * abs(smallest)
        if 0 < mean <= FP16_UNDERFLOW and smallest <= FP16_UNDERFLOW:
            what = "squares" if adds_squares or _writes_squares(graph, part.tensor) else "terms"
            text = f"{node.outputs[0]} is as small as {least:.3g}, a sum of {what} of {mean:.3g} on average"
            yield Divisor(node.outputs[0], mean, text, is_mean=True, parts=(part,))


def _find_held(graph: Graph, ranges: RangeTable, tensor: str) -> float:
    """The smallest of a tensor that FP16 holds: where it was not taken, what it is moved to, or guarded in vain, tells it.

    NaN where nothing does, and where FP16 makes zero of it.
    """
    pending, seen, found = [tensor], {tensor}, list[float]()
    while pending:
        name = pending.pop()
        read = ranges.get(name)
        if read is not None and read.min_nonzero_abs != -math.inf:
            found.append(read.min_nonzero_abs)
            continue
        for node, slot in readers(graph, name):
            is_moved = moves(node, slot) and node.standard_op != "Concat"
            if is_moved or guards_in_vain(graph, ranges, node, slot):
                fresh = [one for one in node.writes if one not in seen]
                seen.update(fresh)
                pending += fresh
    return min((one for one in found if FP16_UNDERFLOW < one < math.inf), default=math.nan)


def _writes_squares(graph: Graph, tensor: str) -> bool:
    node = graph.producers.get(tensor)
    return node is not None and is_square(graph, node)


def _before_a_pole(graph: Graph, ranges: RangeTable, node: Node) -> Iterator[Divisor]:
    """1 - |x| under Atanh, where FP16 rounds the largest x to 1, and FP32 does not."""
    name = node.inputs[0] if node.standard_op == _HAS_A_POLE_AT_1 else ""
    seen = ranges.get(name) if name in graph.producers and name not in graph.constants else None
    if seen is not None and seen.max_abs < 1 == round_to_fp16(np.asarray(seen.max_abs)):
        left = 1 - seen.max_abs
        text = f"1 - |{name}| is as small as {left:.3g}"
        term = Cancellation(name, 1.0)
        yield Divisor(
            name, left, text, False, _HALF_STEP_BELOW_1, cancelled=term, inside=node, makes="infinity of it"
        )


def guards_in_vain(
    graph: Graph, ranges: RangeTable, node: Node, slot: int, limit: float = FP16_UNDERFLOW
) -> bool:
    """Whether the node keeps what it reads there from zero by constants alone of no more than `limit`."""
    guards = _read_guards(graph, ranges, node, slot)
    return guards is not None and all(guard <= limit for guard in guards)


def _read_guards(graph: Graph, ranges: RangeTable, node: Node, slot: int) -> tuple[float, ...] | None:
    """The largest of each constant that keeps what the node reads there from zero; None where it is no such operator.

    Infinity where something else does; 0 of Clip where its bound is less, or missing.
    """
    if node.standard_op == "Clip" and slot == 0:
        bound = node.attribute("min")  # below opset 11
        least = 0.0 if bound is None else bound.f
        bounds = (ranges.get(name) if name in graph.constants else None for name in node.inputs[1:2] if name)
        return (max(0.0, least, *(math.inf if one is None or one.nan_count else one.max for one in bounds)),)
    if node.standard_op not in ("Add", "Sum", "Max"):
        return None
    return tuple(_read_largest(graph, ranges, name) for name in node.beside(slot))


def find_guards(graph: Graph, ranges: RangeTable, nodes: Iterable[Node]) -> list[float]:
    """The constants that keep what the nodes read from zero."""
    found = (_read_guards(graph, ranges, node, slot) for node in nodes for slot in range(len(node.inputs)))
    return [value for one in found for value in one or () if value < math.inf]


def _read_largest(graph: Graph, ranges: RangeTable, tensor: str) -> float:
    """A constant's max |x|; infinity of another tensor."""
    seen = ranges.get(tensor) if tensor in graph.constants else None
    return math.inf if seen is None or seen.nan_count else seen.max_abs
