"""A product by a constant matrix that cancels: a whitening of features that go together, a Mahalanobis distance, (x − μ) W.

Whichever element of x is the largest, the least that the matrix makes of it is far more than all that comes out, so that the
others take nearly all of it away again. FP16 rounds x and the weights by shares of what cancels.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from overflow_fixer.evidence.differences.losses import (
    FP32_NOISE,
    MOST_ROUNDED,
    STEPS_GIVEN_OUT,
    LostDifference,
    tell_steps,
)
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.features.fed_features import find_movers
from overflow_fixer.evidence.features.projections import list_scaled, read_matrix, takes_weights
from overflow_fixer.evidence.measured import are_finite
from overflow_fixer.evidence.origins import Walked
from overflow_fixer.formats import FP16_OVERFLOW, step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array, RangeTable


def find_cancelled_products(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each that is less, scaled or not, than 32 of FP16's steps at the largest |x| are behind the weights; the value is its max |y|.

    None of x that FP16 is known to hold or cannot hold, of NaN or infinities, and where FP32 itself rounds as much.
    """
    walked: Walked = {}
    for node in graph.nodes:
        if takes_weights(node) and _is_held(graph, ranges, node):
            found = (one for one in list_scaled(graph, node.outputs[0]) if are_finite(graph, ranges, one[0]))
            lost = (_find_lost(graph, ranges, node, *one, walked) for one in found)
            yield from islice(filter(None, lost), 1)


def _is_held(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    """Whether what it reads is finite, and FP16 holds what is no weight, which is no zero."""
    is_finite = are_finite(graph, ranges, *node.inputs[:2])
    return is_finite and 0 < ranges.by_tensor[node.inputs[0]].max_abs < FP16_OVERFLOW


def _find_lost(
    graph: Graph, ranges: RangeTable, node: Node, made: str, factor: Array, walked: Walked
) -> LostDifference | None:
    read, left = ranges.by_tensor[node.inputs[0]], ranges.by_tensor[made]
    least = left.max_abs / (STEPS_GIVEN_OUT * float(step_at(read.max_abs)))
    weight = _find_weight(graph, ranges, node, factor, least)
    is_lost = least < weight < left.max_abs / (FP32_NOISE * read.max_abs)
    if not is_lost or read.tensor not in find_lost_terms(graph, ranges, node):
        return None
    lost = float(step_at(read.max_abs)) * weight
    reason = (
        f"{made} is {left.max_abs:.6g} at most, and is what {node.op_type} {node.label} leaves of products with weights of {weight:.6g} "
        f"and more for each element of {read.tensor}, up to {read.max_abs:.6g}, which lose much: {tell_steps(read.max_abs)}, and "
        f"{lost:.6g} behind the weights"
    )
    nodes = tuple(find_movers(graph, ranges, node, read.tensor, MOST_ROUNDED * left.max_abs / weight, walked))
    limit = STEPS_GIVEN_OUT * lost
    return LostDifference(nodes, made, left.max_abs, limit, reason, ranges.worst_batch_of(left))


def _find_weight(graph: Graph, ranges: RangeTable, node: Node, factor: Array, least: float) -> float:
    """The least, over the elements that are read, of the largest weight of each, scaled; 0 where that is no more than `least`."""
    most = ranges.by_tensor[node.inputs[1]].max_abs * abs(float(node.value_of("alpha", 1.0)))
    matrix = read_matrix(graph, node) if most * np.abs(factor).max() > least else None
    if matrix is None or factor.size not in (1, matrix.shape[1]):
        return 0.0
    return float(np.abs(matrix * factor).max(axis=1).min())
