"""A difference that a sine is taken of, scaled perhaps or as a distance: sin(n π |a − b| / c), of points that are far from zero.

The angle is small, and its error is that of the terms: beside coordinates of 100 FP16's steps are 1/16, which 20 π / 5 makes 0.8 of.
"""

from __future__ import annotations

from typing import NamedTuple

from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.evidence.measured import are_finite
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS
from overflow_fixer.records import RangeTable

_FARTHEST = 16
"""Nodes between the sine and the difference."""
_GROWS = frozenset("Mul Div Pow Sqrt ReduceSum ReduceL2".split())
_SCALES = _GROWS | frozenset("Neg Abs Relu Clip Max Min Add Sub".split())
"""Operators that scale, shift, bound or square what is computed, add squares up and take their root."""


class PhaseDifference(NamedTuple):
    """A node that takes a difference of terms; an error of that is `growth` times as large in the angle, which terms reach `most` of."""

    node: Node
    growth: float
    most: float


def find_phase_difference(graph: Graph, ranges: RangeTable, angle: str) -> PhaseDifference | None:
    """The first difference of data that the angle is made of, by one tensor at a time; None where something else is on the way.

    None either where FP16 is known to hold all of its terms, or one was not measured or has NaN or infinities.
    """
    growth, name = 1.0, angle
    for _ in range(_FARTHEST):
        node = graph.producers.get(name)
        read = [] if node is None else _list_computed(graph, node)
        if node is None or not read or not are_finite(graph, ranges, name, *read):
            return None
        if len(read) > 1:
            most = growth * _read_largest_rounded(graph, ranges, read)
            return PhaseDifference(node, growth, most) if node.standard_op in ADDS and most else None
        if not (moves(node, 0) or node.standard_op in _SCALES):
            return None
        growth *= _grow(ranges, node, read[0], name)
        name = read[0]
    return None


def _list_computed(graph: Graph, node: Node) -> list[str]:
    return [
        name for name in dict.fromkeys(node.reads) if graph.is_float(name) and name not in graph.constants
    ]


def _read_largest_rounded(graph: Graph, ranges: RangeTable, terms: list[str]) -> float:
    """The largest magnitude of the terms that FP16 is not known to hold; 0 where it holds all."""
    multiples = find_multiples(graph, ranges)
    return max((ranges.by_tensor[name].max_abs for name in terms if not multiples.is_held(name)), default=0.0)


def _grow(ranges: RangeTable, node: Node, read: str, written: str) -> float:
    """How many times an error of what the node reads is what it makes of it; 1 of what is moved or shifted."""
    before, after = ranges.by_tensor[read].max_abs, ranges.by_tensor[written].max_abs
    return after / before if node.standard_op in _GROWS and before else 1.0
