"""What a value that FP16 makes zero of is made of: its magnitude, carried back by each operator's algebra.

A maximum of 1e-9 is of magnitudes up to 1e-9, a root of 1e-9 is that of 1e-18, and of a sum of 1e-6 over a thousand
terms these are 1e-9 on average. What was chosen was as small before. A difference may be of values that FP16 holds, and
so may a product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, MutableMapping
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from overflow_fixer.evidence.measured import count_terms, is_never_negative
from overflow_fixer.evidence.paths import lead_back
from overflow_fixer.evidence.semantics import moves, read_reduction
from overflow_fixer.evidence.zeros.near_zero import PLACES
from overflow_fixer.formats import FP16_MIN_NORMAL, FP16_UNDERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import is_square
from overflow_fixer.inner.products import summed_axis
from overflow_fixer.records import Array, Range, RangeTable

LEAST_MAGNITUDE = 2.0**-18
"""Below it FP16 has at most 64 steps of 2^-24, where rounding noise nears 30 dB."""
FARTHEST = 8
"""So many nodes are told of a small tensor before others that are as small, and are told of by themselves, end the way."""
NEARLY = 1 + 2.0**-10
"""A magnitude that was carried back may be off by so much."""
_MOST_ELEMENTS = 1 << 18
"""Of a constant that is read: what a bank of 128 filters over 2048 frequencies has."""

Algebra = Callable[[float, float], float]
"""Of an output's magnitude and how many elements go into one, the magnitude of these, on average."""


def _same(magnitude: float, terms: float) -> float:
    return magnitude


def _mean(magnitude: float, terms: float) -> float:
    return magnitude / terms


_OF_EITHER_SIGN: Mapping[str, Algebra] = {
    **dict.fromkeys(("Neg", "Abs"), _same),
    "Sqrt": lambda magnitude, terms: magnitude**2,
    "ReduceL1": _mean,
    "ReduceL2": lambda magnitude, terms: magnitude / math.sqrt(terms),
    "ReduceSumSquare": lambda magnitude, terms: math.sqrt(magnitude / terms),
}
"""Operators of which a small output is of inputs as small, whatever their sign."""
_OF_ONE_SIGN: Mapping[str, Algebra] = {
    "ReduceSum": _mean,
    **dict.fromkeys("ReduceMean AveragePool GlobalAveragePool CumSum Concat Add Sum".split(), _same),
}
"""The same where nothing of the other sign comes in, which could cancel what is larger."""
_OF_NO_NEGATIVES: Mapping[str, Algebra] = {
    **_OF_ONE_SIGN,
    **dict.fromkeys("ReduceMax ReduceMin MaxPool GlobalMaxPool Clip Relu Max".split(), _same),
}
"""The same where nothing below zero comes in, which could hide what is larger, too."""
_OF_ALL_INPUTS = frozenset("Concat Max Add Sum".split())
_CHOICES = PLACES | {"Min"}
"""Operators that write elements of what they read, whatever the sign, each of one of their inputs."""
_REDUCES: Mapping[bytes, str] = {b"add": "Add", b"mul": "Mul"}
"""Scatters that compute with what is in their places, and the operator that does so."""


class Part(NamedTuple):
    """A tensor, and the magnitude of those of its elements that matter, on average."""

    tensor: str
    magnitude: float


def trace_small(
    graph: Graph,
    ranges: RangeTable,
    parts: Iterable[Part],
    told: Container[str] = (),
    limit: float = FP16_UNDERFLOW,
) -> Iterator[Node]:
    """The nodes that write the parts, and what they are made of, as long as it is no more than `limit`; each node once.

    No more than a few behind tensors that are `told` of by themselves.
    """
    pending, seen = list(parts), set[str]()
    while pending:
        part = pending.pop()
        if part.tensor in seen or not is_lost(graph, ranges, part, limit):
            continue
        seen.add(part.tensor)
        node = graph.producers[part.tensor]
        yield node
        if part.tensor not in told or len(seen) < FARTHEST:
            pending += carry_back(graph, ranges, node, part.magnitude)


def trace_badly_held(
    graph: Graph, ranges: RangeTable, part: Part, told: MutableMapping[str, float] | None = None
) -> tuple[Node, ...]:
    """The nodes that write it and what it is made of where that is below 2^-18, and those between, which would round it.

    Through FP16's subnormal numbers alone. What is behind a tensor that was `told` of at as small a magnitude is left out, for of a
    long chain each walk would go through all of it; each walk adds to it.
    """
    told = {} if told is None else told
    pending, seen = [(part, tuple[Node, ...]())], set[str]()
    behind, small = dict[str, list[Node]](), list[Node]()
    while pending:
        part, reader = pending.pop()
        writer = graph.producers.get(part.tensor)
        is_small = part.magnitude < FP16_MIN_NORMAL and _may_be(ranges.by_tensor[part.tensor], part.magnitude)
        if writer is None or not is_small or part.tensor in graph.constants:
            continue
        behind.setdefault(writer.label, []).extend(reader)
        if part.tensor not in seen:
            seen.add(part.tensor)
            is_told = told.get(part.tensor, math.inf) <= part.magnitude
            if part.magnitude < LEAST_MAGNITUDE or is_told:
                small.append(writer)
            if not is_told:
                told[part.tensor] = part.magnitude
                parts = carry_back(graph, ranges, writer, part.magnitude)
                pending += ((source, (writer,)) for source in parts)
    return lead_back(behind, small)


def _may_be(seen: Range, magnitude: float) -> bool:
    """Whether an element but zero may be as small: none is where the smallest was taken, and is larger."""
    return magnitude > 0 and not seen.min_nonzero_abs > magnitude * NEARLY


def is_lost(graph: Graph, ranges: RangeTable, part: Part, limit: float = FP16_UNDERFLOW) -> bool:
    """Whether it is computed in FP32, and as small as `limit`; so is the smallest but zero of it, where that was taken.

    It is not where it is zero or NaN, and where nothing but zeros was seen, of which FP32 makes what FP16 does.
    """
    seen = ranges.get(part.tensor)
    is_computed = part.tensor in graph.producers and part.tensor not in graph.constants
    if seen is None or not is_computed or graph.dtypes.get(part.tensor) != TensorProto.FLOAT:
        return False
    return 0 < part.magnitude <= limit and seen.min_nonzero_abs <= limit


def carry_back(graph: Graph, ranges: RangeTable, node: Node, magnitude: float) -> Iterator[Part]:
    """What the node reads where it writes a finite `magnitude` over 0; nothing where that does not follow.

    How many elements go into one is told from all that were read and written, over all batches.
    """
    if node.standard_op in ("MatMul", "Gemm"):
        yield from _of_a_product(graph, ranges, node, magnitude)
    elif is_square(graph, node):
        yield Part(node.inputs[0], math.sqrt(magnitude))
    elif node.standard_op in ("Mul", "Div"):
        yield from _of_a_scaling(graph, ranges, node, magnitude)
    elif node.standard_op in _CHOICES and read_reduction(node) not in _REDUCES:
        yield from _of_a_choice(graph, ranges, node, magnitude)
    else:
        yield from _of_elements(graph, ranges, node, magnitude)


def _of_a_choice(graph: Graph, ranges: RangeTable, node: Node, magnitude: float) -> Iterator[Part]:
    """What is chosen among that has elements as small, or that FP16 makes zero of; where none is known to, each whose smallest was not taken."""
    seen = [ranges.by_tensor[name] for name in node.inputs if graph.is_float(name) and ranges.get(name)]
    limit = max(magnitude * NEARLY, FP16_UNDERFLOW)
    small = [one for one in seen if 0 < one.min_nonzero_abs <= limit]
    for one in small or [one for one in seen if one.min_nonzero_abs < 0]:
        if one.tensor not in graph.constants:
            yield Part(one.tensor, max(magnitude, one.min_nonzero_abs))


def _of_elements(graph: Graph, ranges: RangeTable, node: Node, magnitude: float) -> Iterator[Part]:
    op = _REDUCES.get(read_reduction(node), node.standard_op)
    is_moved = op != "Concat" and moves(node, 0)
    of_either_sign = _same if is_moved else _OF_EITHER_SIGN.get(op)
    for name in node.inputs if op in _OF_ALL_INPUTS else node.inputs[:1]:
        algebra = of_either_sign or _find_of_signs(ranges, name).get(op)
        if algebra is not None and name not in graph.constants:
            yield Part(name, algebra(magnitude, count_terms(ranges, node, ranges.get(node.outputs[0]))))


def _find_of_signs(ranges: RangeTable, tensor: str) -> Mapping[str, Algebra]:
    """The operators of which a small output is of inputs as small, by the signs that the tensor was seen to have.

    A sum of FP16's numbers is a multiple of 2^-24, whatever their signs: so of those of which it has few steps all count.
    """
    if is_never_negative(ranges, tensor):
        return _OF_NO_NEGATIVES
    seen = ranges.get(tensor)
    is_small = seen is not None and (seen.max <= 0 or seen.max_abs < LEAST_MAGNITUDE)
    return _OF_ONE_SIGN if is_small else {}


def _of_factors(ranges: RangeTable, node: Node, magnitude: float) -> Iterator[Part]:
    """Of a product of data, factors whose smallest was taken: each is at least the product over the other's largest."""
    for name, other in (node.inputs, node.inputs[::-1]):
        seen, largest = ranges.get(name), ranges.get(other)
        if (
            seen is not None
            and largest is not None
            and seen.min_nonzero_abs > 0
            and 0 < largest.max_abs < math.inf
        ):
            yield Part(name, magnitude / largest.max_abs)


def _of_a_scaling(graph: Graph, ranges: RangeTable, node: Node, magnitude: float) -> Iterator[Part]:
    """Of a product or quotient by a constant that is one number, and not zero; or of the factors of a product of data."""
    if node.standard_op == "Mul" and graph.constants.keys().isdisjoint(node.inputs):
        yield from _of_factors(ranges, node, magnitude)
        return
    slot = 1 if node.standard_op == "Mul" and node.inputs[0] in graph.constants else 0
    factor = ranges.get(node.inputs[1 - slot])
    if factor is None or factor.tensor not in graph.constants or factor.min != factor.max or not factor.max:
        return
    scale = 1 / factor.max_abs if node.standard_op == "Mul" else factor.max_abs
    yield Part(node.inputs[slot], magnitude * scale)


def _of_a_product(graph: Graph, ranges: RangeTable, node: Node, magnitude: float) -> Iterator[Part]:
    """Of a matrix product without a bias, of a constant and another factor, neither ever negative.

    The mean is weighted by the constant. Which of its columns wrote the value is not known: it is taken to be that of the
    least sum but zero, since by any other the mean would be smaller still.
    """
    if any(node.inputs[2:]) or not all(is_never_negative(ranges, name) for name in node.inputs[:2]):
        return
    for slot, name in enumerate(node.inputs[:2]):
        sums = _sum_up(graph, node, 1 - slot) if name not in graph.constants else np.empty(0)
        if bool(np.any(sums > 0)):
            yield Part(name, magnitude / float(sums[sums > 0].min()))


def _sum_up(graph: Graph, node: Node, slot: int) -> Array:
    """The sums of a constant factor along what the product sums, times alpha; none of another or of one that is large."""
    proto = graph.constants.get(node.inputs[slot])
    if proto is None or not proto.dims or math.prod(proto.dims) > _MOST_ELEMENTS:
        return np.empty(0)
    axis = -1 if len(proto.dims) == 1 else summed_axis(node, is_right=bool(slot))
    value = graph.find_constant(node.inputs[slot])
    return np.empty(0) if value is None else value.astype(np.float64).sum(axis) * node.value_of("alpha", 1.0)
