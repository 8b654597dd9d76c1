"""What a normalisation takes its mean from: x − μ, of which FP16 leaves no more than a few steps where x lies far from zero.

At 300 FP16's steps are 1/4; a LayerNormalization of 300 ± 0.5 makes ± 1 of what is left.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overflow_fixer.evidence.differences.losses import (
    FP32_NOISE,
    MOST_ROUNDED,
    STEPS_GIVEN_OUT,
    LostDifference,
    tell_steps,
)
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.kernels.difference_kernels import has_bias
from overflow_fixer.evidence.measured import are_finite, list_inner, read_maxima
from overflow_fixer.evidence.origins import Walked, find_origins
from overflow_fixer.evidence.semantics import read_epsilon
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import InnerRange, RangeTable


def find_normalised(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each normalisation of which less than 32 of FP16's steps at max |x| are left in some batch, in the worst of them.

    The value is max |x − μ|. None of x with NaN or infinities in any batch, or that FP16 is known to hold; none where so
    little is left that FP32 itself rounds it, or that a bias may be larger, since epsilon, under the root with its square,
    is.
    """
    walked: Walked = {}
    for node, inner in list_inner(graph, ranges, "deviation"):
        worst = _find_worst(graph, ranges, node, inner)
        if worst is not None:
            left, largest, batch = worst
            source, limit = node.inputs[0], float(STEPS_GIVEN_OUT * step_at(largest))
            nodes = (node, *find_origins(graph, ranges, source, MOST_ROUNDED * left, walked))
            reason = (
                f"{source} is {left:.6g} at most from its mean in that batch, and, up to {largest:.6g}, loses much: "
                f"{tell_steps(largest)}, and {node.op_type} {node.label} scales it up"
            )
            yield LostDifference(nodes, source, left, limit, reason, ranges.batch_names[batch])


def _find_worst(
    graph: Graph, ranges: RangeTable, node: Node, inner: InnerRange
) -> tuple[float, float, int] | None:
    """The largest |x − μ| and |x| of the batch in which least is left beside the limit, and its index."""
    source = node.inputs[0]
    if source not in find_lost_terms(graph, ranges, node) or not are_finite(graph, ranges, source):
        return None
    left, largest = (read_maxima(ranges, name) for name in (inner.seen.tensor, source))
    limits = STEPS_GIVEN_OUT * step_at(largest)
    is_seen = (left * left > read_epsilon(node)) | (not has_bias(graph, node))
    shows = (left > FP32_NOISE * largest) & is_seen
    small = np.flatnonzero(shows & (left < limits))
    if not small.size:
        return None
    batch = int(min(small.tolist(), key=lambda index: left[index] / limits[index]))
    return float(left[batch]), float(largest[batch]), batch
