"""An angle arccos x, or arcosh x, so small throughout a batch that FP16 rounds away what x is beside 1.

1 - cos θ is θ²/2: of θ = 0.1 it is 0.005, ten of FP16's steps below 1. So the relative error of θ is 2^-12/θ² where x is rounded,
however well FP16 holds the angle itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from overflow_fixer.evidence.differences.losses import STEPS_OF_A_DIVISOR
from overflow_fixer.evidence.measured import are_finite, read_maxima
from overflow_fixer.evidence.paths import find_ways
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.evidence.zeros.cancellation import trace_term
from overflow_fixer.evidence.zeros.near_zero import ELEMENTWISE
from overflow_fixer.graph.filled import is_filled
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable

_ANGLES = frozenset({"Acos", "Acosh"})
SMALLEST_ANGLE = 1 / 4
"""There 1 - cos θ is 64 of FP16's steps below 1, which leave angles of up to that, evenly spread, 31 dB."""
_FP32_HAS_NONE = math.sqrt(2 * STEPS_OF_A_DIVISOR * 2.0**-24)
"""Under it as few of FP32's steps are left."""
_MEANS = frozenset({"ReduceSum", "ReduceMean"})


@dataclass(frozen=True)
class SmallAngle:
    """What the first of `nodes` writes; the others compute its cosine. `value` is its max |x| in the batch of that index."""

    tensor: str
    nodes: tuple[Node, ...]
    value: float
    batch: int


def find_small_angles(graph: Graph, ranges: RangeTable) -> Iterator[SmallAngle]:
    """Each that the model gives out, multiplied, moved and masked or not, in the batch where it is smallest.

    None of zeros, of what FP32 does not tell from zero either, of a constant, and of angles or cosines with NaN or infinities.
    What is divided by is another rule's matter.
    """
    for node in (one for one in graph.nodes if one.standard_op in _ANGLES):
        tensor, term = node.outputs[0], node.inputs[0]
        if term in graph.constants or not are_finite(graph, ranges, tensor, term):
            continue
        largest = read_maxima(ranges, tensor)
        small = np.flatnonzero((largest >= _FP32_HAS_NONE) & (largest < SMALLEST_ANGLE))
        if small.size and _shows(graph, tensor):
            batch = int(small[np.argmin(largest[small])])
            made = trace_term(graph, ranges, term, 1.0)
            yield SmallAngle(tensor, (node, *made), float(largest[batch]), batch)


def _shows(graph: Graph, tensor: str) -> bool:
    """Whether the model gives it out with all of its relative error; in a quotient of what is made of it, that may cancel."""

    def hands_on(node: Node, slot: int) -> bool:
        is_quotient = node.standard_op == "Div" and (slot == 1 or node.inputs[1] not in graph.constants)
        is_kept = moves(node, slot) or is_filled(graph, node, slot)
        return is_kept or (node.standard_op in ELEMENTWISE | _MEANS and not is_quotient)

    def gives_out(node: Node, slot: int) -> bool:
        return hands_on(node, slot) and not set(node.writes).isdisjoint(graph.outputs)

    return tensor in graph.outputs or bool(find_ways(graph, tensor, hands_on, gives_out))
