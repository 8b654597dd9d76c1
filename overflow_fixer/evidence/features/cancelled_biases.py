"""A layer whose bias takes away nearly all of what its weights make: a scaler, (x − μ) / σ, folded into the first layer.

W x is several hundred there, b = −W μ as well, and what is left of them is about 1. FP16 rounds x, the weights and the bias by
shares of several hundred. No element of W x + b is over the largest, so that W x lies within that of every −b.
"""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.evidence.differences.losses import (
    FP32_NOISE,
    MOST_ROUNDED,
    STEPS_GIVEN_OUT,
    LostDifference,
    tell_steps,
)
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.features.fed_features import find_movers
from overflow_fixer.evidence.measured import are_finite
from overflow_fixer.evidence.origins import Walked
from overflow_fixer.formats import FP16_OVERFLOW, step_at
from overflow_fixer.graph.feature_operators import read_intercept
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable

_LAYERS = frozenset("Conv ConvTranspose Gemm".split())


def find_cancelled_biases(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each of which less is left than 32 of FP16's steps at the largest bias; the value is max |W x + b|.

    None of biases that are computed, or that FP16 cannot hold, of what has NaN or infinities, and of x that FP16 is known to
    hold; none where so little is left that FP32 itself rounds it.
    """
    walked: Walked = {}
    for node in graph.nodes:
        bias = _read_bias(graph, ranges, node)
        if not 0 < bias < FP16_OVERFLOW or not _is_rounded(graph, ranges, node):
            continue
        left, limit = ranges.by_tensor[node.outputs[0]], float(STEPS_GIVEN_OUT * step_at(bias))
        if not FP32_NOISE * bias < left.max_abs < limit:
            continue
        source = ranges.by_tensor[node.inputs[0]]
        most = MOST_ROUNDED * left.max_abs * source.max_abs / bias
        reason = (
            f"{left.tensor} is {left.max_abs:.6g} at most, and is what {node.op_type} {node.label} leaves of products and a bias of up to "
            f"{bias:.6g}, which lose much: {tell_steps(bias)}"
        )
        nodes = tuple(find_movers(graph, ranges, node, source.tensor, most, walked))
        if nodes:
            yield LostDifference(nodes, left.tensor, left.max_abs, limit, reason, ranges.worst_batch_of(left))


def _read_bias(graph: Graph, ranges: RangeTable, node: Node) -> float:
    """The largest magnitude of the layer's constant bias, as it is added; 0 without one, and of one with NaN."""
    if (intercept := read_intercept(node)) is not None:
        return intercept
    name = node.inputs[2] if node.standard_op in _LAYERS and len(node.inputs) > 2 else ""
    seen = ranges.get(name) if name in graph.constants else None
    if seen is None or seen.nan_count:
        return 0.0
    return seen.max_abs * abs(float(node.value_of("beta", 1.0)))


def _is_rounded(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    is_finite = are_finite(graph, ranges, node.inputs[0], node.outputs[0])
    return is_finite and node.inputs[0] in find_lost_terms(graph, ranges, node)
