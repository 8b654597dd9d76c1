"""The nearest of points by their differences, min |a − b|², written out: little is left of these where two points are near.

Points are up to 50 there, where FP16's steps are 1/32, and the nearest is 0.03 away. The largest difference does not show that:
what was chosen does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from overflow_fixer.evidence.differences.losses import FEWEST_STEPS, FP32_NOISE, LostDifference, tell_steps
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.differences.terms_alike import find_alike
from overflow_fixer.evidence.measured import are_finite, read_maxima
from overflow_fixer.evidence.origins import Walked
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.formats import step_at
from overflow_fixer.graph.filled import is_filled
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import is_root, is_square
from overflow_fixer.records import Array, RangeTable

_FARTHEST = 8
"""So many nodes may stand between a difference and the choice."""
_POWERS = {"ReduceSumSquare": 2.0, **dict.fromkeys("Abs Relu ReduceSum ReduceL1 ReduceL2".split(), 1.0)}
"""Operators that measure a size, or keep what measures one, and to which power: a sum of magnitudes is one as well."""
_SIZES = frozenset("Abs ReduceL1 ReduceL2 ReduceSumSquare".split())
"""Those that make sizes of differences, which are never negative."""


class _Nearest(NamedTuple):
    """A difference, and the power of it that is chosen among."""

    node: Node
    power: float


def find_nearest_differences(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each of which less than 64 of FP16's steps are left in the nearest, in the batch in which that is worst; the value is that.

    What ReduceMin chooses of squares, magnitudes, their sums and roots, moved or masked, or TopK the least of. None of differences with
    NaN or infinities, of integers, nor of as little as FP32 itself rounds.
    """
    walked: Walked = {}
    for choice in graph.nodes:
        nearest = _trace(graph, choice) if _takes_least(choice) else None
        if nearest is None or not _is_told(graph, ranges, nearest.node):
            continue
        node, shown = nearest.node, choice.outputs[0]
        left = np.abs(read_maxima(ranges, shown)) ** (1 / nearest.power)
        largest = _find_largest(graph, ranges, node)
        small = (left > FP32_NOISE * largest) & (left < FEWEST_STEPS * step_at(largest))
        if small.any():
            batch = int(np.argmin(np.where(small, left / step_at(largest), np.inf)))
            value, most = float(left[batch]), float(largest[batch])
            reason = (
                f"{choice.op_type} {choice.label} chooses the least of {node.outputs[0]}, {value:.6g} and less, whose terms, up to "
                f"{most:.6g}, lose much: {tell_steps(most)}"
            )
            nodes = tuple(find_sources(graph, ranges, node, value, walked))
            limit = FEWEST_STEPS * float(step_at(most))
            yield LostDifference(nodes, node.outputs[0], value, limit, reason, ranges.batch_names[batch])


def _takes_least(node: Node) -> bool:
    is_least = node.standard_op == "TopK" and node.value_of("largest", 1) == 0
    return is_least or node.standard_op == "ReduceMin"


def _is_told(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    """Whether it subtracts two computed or fed tensors of finite floats, which FP16 may not hold."""
    is_of_data = graph.constants.keys().isdisjoint(node.inputs)
    is_known = is_of_data and are_finite(graph, ranges, *node.inputs, *node.writes)
    return is_known and bool(find_lost_terms(graph, ranges, node))


def _find_largest(graph: Graph, ranges: RangeTable, node: Node) -> Array:
    """How large the terms are where they cancel, or those of a term that is a difference itself; float64 [batch]."""
    writers = (graph.producers.get(name) for name in node.inputs)
    made = (
        one
        for one in writers
        if one is not None and one.standard_op == "Sub" and _is_told(graph, ranges, one)
    )
    return np.asarray(np.max([_find_terms_alike(ranges, one) for one in (node, *made)], axis=0))


def _find_terms_alike(ranges: RangeTable, node: Node) -> list[float]:
    rows = zip(*(np.nan_to_num(read_maxima(ranges, name)) for name in node.inputs), strict=True)
    return [find_alike([float(one) for one in row]) for row in rows]


def _trace(graph: Graph, choice: Node) -> _Nearest | None:
    """The difference whose size it chooses among; None where it is of something else, or may be negative."""
    tensor, power, is_size = choice.inputs[0], 1.0, False
    for _ in range(_FARTHEST):
        node = graph.producers.get(tensor)
        if node is None or node.standard_op == "Sub":
            return _Nearest(node, power) if node is not None and is_size else None
        factor, masked = _find_power(graph, node), _find_masked(graph, node)
        if not factor and not masked and not moves(node, 0):
            return None
        power, is_size = power * (factor or 1.0), is_size or _is_size(graph, node)
        tensor = masked or node.inputs[0]
    return None


def _find_masked(graph: Graph, node: Node) -> str:
    """What the node puts a constant in the place of some of; "" of any other."""
    filled = (name for slot, name in enumerate(node.inputs) if is_filled(graph, node, slot))
    return next((name for name in filled if name not in graph.constants), "")


def _find_power(graph: Graph, node: Node) -> float:
    """To which power it takes what it reads, as a measure of a size; 0 of any other."""
    if is_square(graph, node):
        return 2.0
    return 0.5 if is_root(graph, node) else _POWERS.get(node.standard_op, 0.0)


def _is_size(graph: Graph, node: Node) -> bool:
    return node.standard_op in _SIZES or is_square(graph, node)
