"""Comparisons with a number that FP16 rounds to the largest or the least of what is compared: mask > 0.9999, of a mask up to 1.

0.9999 is 1 in FP16, and no mask is greater. All elements at that end are decided otherwise, however many these are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from overflow_fixer.evidence.differences.compared_differences import tells_more_than_a_choice
from overflow_fixer.evidence.differences.losses import FP32_NOISE
from overflow_fixer.evidence.origins import find_origins
from overflow_fixer.graph.comparisons import Comparison, find_number_comparisons
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable

_MOST_ROUNDED = 2.0**-11
"""By what share of itself FP16 rounds a number at most."""

_COARSE_PLACE = 0.5
"""From here on FP16's steps are 2^-11: a mask of 96 by 160, sampled at rounded places, is decided otherwise of one in 2,000, at its edge."""


class RoundedBound(NamedTuple):
    """A comparison that FP16 decides otherwise of `value`, the largest or the least of what it compares, and what makes that."""

    comparison: Comparison
    value: float
    nodes: tuple[Node, ...]


def find_rounded_bounds(graph: Graph, ranges: RangeTable) -> Iterator[RoundedBound]:
    """Each of a tensor without NaN and infinities, where both are further apart than FP32 rounds, and it shows how it is decided."""
    for comparison in find_number_comparisons(graph):
        seen = ranges.get(comparison.tensor)
        if seen is None or not seen.is_finite or not seen.element_count:
            continue
        ends = (one for one in (seen.max, seen.min) if _is_otherwise(comparison, one))
        value = next(ends, None)
        if value is not None and tells_more_than_a_choice(graph, comparison.node):
            yield RoundedBound(comparison, value, tuple(_trace(graph, ranges, comparison, value)))


def _trace(graph: Graph, ranges: RangeTable, comparison: Comparison, value: float) -> Iterator[Node]:
    """What writes the tensor and moves it by as much, and what makes the places of a sample, whose edges are decided by them."""
    limit = abs(value - comparison.number) / _MOST_ROUNDED
    for node in find_origins(graph, ranges, comparison.tensor, limit):
        yield node
        if node.standard_op == "GridSample":
            yield from find_origins(graph, ranges, node.inputs[1], _COARSE_PLACE)


def _is_otherwise(comparison: Comparison, value: float) -> bool:
    is_apart = abs(value - comparison.number) > FP32_NOISE * abs(comparison.number)
    return is_apart and comparison.is_otherwise_in_fp16(value)
