"""A row of logarithms of values so small that FP16 has few steps for them, where the row is scaled up by how little it varies.

A band of a spectrogram in which nothing is heard is log(1e-7 + 2^-24) throughout. FP16 has steps of 2^-24 there, which are
0.4 of such a logarithm, and nothing beside its mean of -16; but less their mean and over their deviation of 0.3 the
features of that band are as large as those of any other. What little is in the band is left where the transform adds up a
signal that is much larger, so that the signal's own rounding is as large as the band.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

from overflow_fixer.evidence.differences.losses import STEPS_OF_A_DIVISOR
from overflow_fixer.evidence.differences.row_differences import find_scaling
from overflow_fixer.evidence.measured import are_finite
from overflow_fixer.evidence.origins import find_origins
from overflow_fixer.evidence.paths import walk_back
from overflow_fixer.evidence.semantics import moves, readers
from overflow_fixer.evidence.zeros.small_sources import Part, carry_back, trace_badly_held
from overflow_fixer.formats import FP16_MIN_NORMAL, FP16_MIN_SUBNORMAL
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable

_HALF_STEP = 2.0**-12
"""What FP16 rounds by, relative to a value that is just over a power of two."""
_TRANSFORMS = frozenset("STFT DFT Conv MatMul Gemm".split())
_REDUCES = frozenset("ReduceMean ReduceSum GlobalAveragePool".split())
_AVERAGES = _REDUCES | frozenset("Div Mul Where".split())


class QuietRow(NamedTuple):
    """A row that is `value` on average, as the mean of its logarithms tells, and the node that divides these by `spread`.

    From `limit` on FP16 would have 16 steps for what they vary by.
    """

    value: float
    limit: float
    spread: float
    end: Node


class SmallLogarithm(NamedTuple):
    """A row of `tensor` that the first of the nodes takes the logarithm of; the other `small` ones write what is as small.

    `rounded` are those of which FP16 would round what they write or read by as much as the row is.
    """

    tensor: str
    row: QuietRow
    small: tuple[Node, ...]
    rounded: tuple[Node, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.small, *self.rounded)


def find_small_logarithms(graph: Graph, ranges: RangeTable) -> Iterator[SmallLogarithm]:
    """Each of which FP16 has less than 16 steps for what a row varies by, the smallest row of each logarithm.

    None of what has NaN or infinities, or is zero or negative somewhere, which FP32 takes no logarithm of either.
    """
    told: dict[str, float] = {}
    for node in graph.nodes:
        tensor = node.inputs[0] if node.standard_op == "Log" else ""
        if not tensor or not _is_small(graph, ranges, tensor):
            continue
        least = ranges.by_tensor[tensor].min
        rows = [row for row in _find_rows(graph, ranges, node.outputs[0], least) if row.value < row.limit]
        if rows:
            row = min(rows, key=lambda one: one.value)
            sources = trace_badly_held(graph, ranges, Part(tensor, row.value), told)
            rounded = _find_rounded(graph, ranges, Part(tensor, row.value), FP16_MIN_SUBNORMAL / row.limit)
            yield SmallLogarithm(tensor, row, (node, *sources), tuple(dict.fromkeys(rounded)))


def _is_small(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    """Whether it is computed, finite, over zero throughout, and below FP16's normal numbers somewhere."""
    is_computed = tensor in graph.producers and tensor not in graph.constants
    return (
        is_computed
        and are_finite(graph, ranges, tensor)
        and 0 < ranges.by_tensor[tensor].min < FP16_MIN_NORMAL
    )


def _find_rows(graph: Graph, ranges: RangeTable, logarithms: str, least: float) -> Iterator[QuietRow]:
    """The least row at each difference of the logarithms from their mean that is divided by what is made of them."""
    scaled = _follow(graph, ranges, logarithms)
    differences = {
        reader.label: (reader, factor)
        for name, factor in scaled.items()
        for reader, slot in readers(graph, name)
        if (reader.standard_op, slot) == ("Sub", 0) and _is_mean(graph, reader.inputs[1], scaled)
    }
    for node, factor in differences.values():
        mean, end = ranges.get(node.inputs[1]), find_scaling(graph, ranges, node)
        divisor = ranges.get(end.inputs[1]) if end is not None and end.standard_op == "Div" else None
        if mean is None or mean.nan_count or end is None or divisor is None or not 0 < divisor.min < math.inf:
            continue
        value = max(least, math.exp(min(mean.min / factor, mean.max / factor, 0.0)))
        limit = STEPS_OF_A_DIVISOR * FP16_MIN_SUBNORMAL * abs(factor) / divisor.min
        yield QuietRow(value, min(limit, FP16_MIN_NORMAL), divisor.min, end)


def _follow(graph: Graph, ranges: RangeTable, tensor: str) -> Mapping[str, float]:
    """What has the tensor's elements, moved, chosen or scaled by a number, and by which; none of what is zero or infinity."""
    found, pending = {tensor: 1.0}, [tensor]
    while pending:
        name = pending.pop()
        for reader, slot in readers(graph, name):
            factor = found[name] * _read_factor(graph, ranges, reader, slot)
            is_one = 0 < abs(factor) < math.inf
            fresh = [one for one in reader.writes if is_one and one not in found]
            found |= dict.fromkeys(fresh, factor)
            pending += fresh
    return found


def _read_factor(graph: Graph, ranges: RangeTable, node: Node, slot: int) -> float:
    """What the node scales by what comes in there; 0 where it does more than that."""
    if moves(node, slot) or (node.standard_op == "Where" and slot > 0):
        return 1.0
    is_scaled = node.standard_op == "Mul" or (node.standard_op == "Div" and slot == 0)
    other = node.inputs[1 - slot] if is_scaled else ""
    seen = ranges.get(other) if other in graph.constants else None
    if seen is None or seen.min != seen.max or not 0 < seen.max_abs < math.inf:
        return 0.0
    return seen.max if node.standard_op == "Mul" else 1 / seen.max


def _find_rounded(graph: Graph, ranges: RangeTable, small: Part, share: float) -> Iterator[Node]:
    """The transforms that leave the row so little that FP16 would round by more than that share of it what they read or write.

    And what computes what they read, as far as that is rounded as much.
    """
    pending, seen = [small], set[str]()
    while pending:
        part = pending.pop()
        writer = graph.producers.get(part.tensor)
        if writer is None or part.tensor in seen or not are_finite(graph, ranges, part.tensor):
            continue
        seen.add(part.tensor)
        parts = list(carry_back(graph, ranges, writer, part.magnitude))
        pending += parts
        largest = ranges.by_tensor[part.tensor].max_abs
        times = part.magnitude * share / largest if largest else math.inf
        if not parts and writer.standard_op in _TRANSFORMS and times < _HALF_STEP:
            yield writer
            read = next((name for name in writer.inputs if name not in graph.constants), "")
            most = ranges.by_tensor[read].max_abs if are_finite(graph, ranges, read) else 0.0
            yield from find_origins(graph, ranges, read, most * times / _HALF_STEP) if most else ()


def _is_mean(graph: Graph, tensor: str, logarithms: Container[str]) -> bool:
    """Whether it is made of the logarithms by reductions, quotients and moves alone, as far as ways back lead to them."""
    makers = list(walk_back(graph, tensor, lambda node, name: _averages(node) and name not in logarithms))
    is_reduced = any(node.standard_op in _REDUCES for node in makers)
    return is_reduced and any(
        _averages(node) and any(name in logarithms for name in node.inputs) for node in makers
    )


def _averages(node: Node) -> bool:
    return node.standard_op in _AVERAGES or moves(node, 0)
