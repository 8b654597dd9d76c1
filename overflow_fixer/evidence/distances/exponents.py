"""Squared distances in an exponent, written out as |a|² + |b|² − 2ab: a kernel exp(−d / s), or a Softmax of them.

The error of the exponent is that of the distance over s: what FP16's steps at |a|² are, however near the two points. So it is
of what is as steep near them, 1 / (1 + d) or a Sigmoid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from overflow_fixer.evidence.differences.losses import FP32_NOISE, MOST_ROUNDED, LostDifference, tell_steps
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.differences.terms import find_terms
from overflow_fixer.evidence.distances.slopes import STEEP, find_slopes
from overflow_fixer.evidence.distances.squared_distances import find_distance
from overflow_fixer.evidence.measured import are_finite, find_least
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.softmax import find_softmax
from overflow_fixer.records import RangeTable

_LARGEST_STEP = 1 / 8
"""Of an exponent: rounding to larger ones (rms 0.036) leaves its exponential less than 29 dB."""


class _Reader(NamedTuple):
    """What reads a tensor and changes by `slope` of itself with it, at most."""

    node: Node
    tensor: str
    slope: float = 1.0


def find_exponents(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each of which FP16's steps in the exponent are larger than 1/8, whatever the distance; the value is the step.

    Behind moves, choices, bounds, signs, constant factors and a number that is added. None of terms or distances with NaN or
    infinities. So it is of a quotient, a negative power and a Sigmoid, by what share of themselves they change.
    """
    for reader in _find_readers(graph, ranges):
        node, scale = find_distance(graph, ranges, reader.tensor)
        if node is None or not are_finite(graph, ranges, *find_terms(graph, node), *node.writes):
            continue
        term = max(abs(find_least(ranges, name)) for name in find_terms(graph, node))
        scale *= reader.slope
        step = float(step_at(term)) * scale
        if step > _LARGEST_STEP and scale * term * FP32_NOISE < _LARGEST_STEP:
            sources = find_sources(graph, ranges, node, _LARGEST_STEP / scale * MOST_ROUNDED)
            reason = _tell(reader.node, node.outputs[0], scale, term)
            yield LostDifference(tuple(sources), node.outputs[0], step, _LARGEST_STEP, reason)


def _tell(reader: Node, name: str, scale: float, term: float) -> str:
    step = float(step_at(term)) * scale
    whose = f"whose terms are {term:.6g} and more: {tell_steps(term)}, and {step:.3g}"
    if reader.standard_op in STEEP:
        return f"{reader.op_type} {reader.label} changes by {scale:.6g} of itself with {name}, {whose} of it"
    return f"{reader.op_type} {reader.label} takes {scale:.6g} times {name} for an exponent, {whose} in the exponent"


def _find_readers(graph: Graph, ranges: RangeTable) -> Iterator[_Reader]:
    """Each Exp and Softmax with its exponent, of a Softmax that is written out its last node; then what is as steep.

    None of a LogSoftmax. A Softmax under a Log is one: its errors stand beside logarithms as large as the exponents.
    """
    inside = set[str]()
    for region in find_softmax(graph):  # a LogSoftmax before the Softmax that is part of it
        if region.kind == "Softmax" and not inside.issuperset(region.nodes):
            yield _Reader(graph.producers[region.output], region.source)
        inside.update(region.nodes)
    for node in graph.nodes:
        if node.label in inside:
            continue
        if node.standard_op in ("Exp", "Softmax"):
            yield _Reader(node, node.inputs[0])
        yield from (_Reader(node, *slope) for slope in find_slopes(graph, ranges, node))
