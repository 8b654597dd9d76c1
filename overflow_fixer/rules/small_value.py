"""A tensor so small as a whole that FP16 holds it badly, or not at all, where that shows in what comes out.

Below 2^-14, FP16 has steps of 2^-24 and no smaller ones. A tensor whose largest value is 2^-18 has 64 of them: its
typical values keep four or five bits. That is no matter where it is added to larger values (the branch of a layer
scale of 1e-6), or behind Softmax, Sigmoid and Exp. It is where the tensor is scaled up again, or given out, behind
activations that are zero at zero as well. A factor may be as small in a part of its elements alone: see small_factors; and
so may a row that a logarithm is taken of: see small_logarithms.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from onnx import TensorProto

from overflow_fixer.evidence.semantics import readers
from overflow_fixer.evidence.zeros.shown_losses import find_shown
from overflow_fixer.evidence.zeros.small_factors import SmallFactor, find_small_factors
from overflow_fixer.evidence.zeros.small_logarithms import SmallLogarithm, find_small_logarithms
from overflow_fixer.evidence.zeros.small_sources import LEAST_MAGNITUDE
from overflow_fixer.formats import FP16_MIN_SUBNORMAL, FP16_UNDERFLOW, round_to_fp16
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.batches import find_worst_batch
from overflow_fixer.rules.by_node import list_by_node
from overflow_fixer.rules.tolerated import MOST_NOISE


def find_small_values(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each tensor below 2^-18 as a whole that the node writes, or reads on the way to where it shows.

    `value` is its max |x|. None of a tensor of zeros, or that holds NaN. Of constants, only those that
    FP16 does hold, but with less than 30 dB: vanishing_constant tells of the others.

    Of a factor of a product, `value` is what it is at most where the other is largest, in the `batch`. Of a row that a logarithm is
    taken of it is what the least mean of the logarithms tells of the row, and `limit` what it would have to be.
    """
    for tensor, end in _evidence(graph, ranges).get(node.label, {}).items():
        seen = ranges.by_tensor[tensor]
        held = (
            "no step" if seen.max_abs <= FP16_UNDERFLOW else f"{seen.max_abs / FP16_MIN_SUBNORMAL:.1f} steps"
        )
        reason = f"{tensor} reaches {seen.max_abs:.3g}, of which FP16 holds {held} of 2^-24, and {end}"
        batch = find_worst_batch(graph, ranges, tensor)
        yield Finding("small_value", node.label, tensor, seen.max_abs, LEAST_MAGNITUDE, reason, batch)
    for factor in _evidence_of_factors(graph, ranges).get(node.label, ()):
        yield _tell_factor(node, ranges, factor)
    for small in _evidence_of_logarithms(graph, ranges).get(node.label, ()):
        yield _tell_logarithm(node, small)


def _tell_factor(node: Node, ranges: RangeTable, factor: SmallFactor) -> Finding:
    product = factor.product
    reason = (
        f"{factor.tensor} is {factor.most:.3g} at most where {factor.other} reaches {factor.largest:.6g}, which {product.op_type} "
        f"{product.label} makes {factor.made:.6g} of, and FP16 holds {factor.most / FP16_MIN_SUBNORMAL:.2g} steps of 2^-24 of that"
    )
    batch = ranges.batch_names[factor.batch]
    return Finding("small_value", node.label, factor.tensor, factor.most, LEAST_MAGNITUDE, reason, batch)


def _tell_logarithm(node: Node, small: SmallLogarithm) -> Finding:
    logarithm, row = small.nodes[0], small.row
    held = f"of which FP16 holds {row.value / FP16_MIN_SUBNORMAL:.2g} steps of 2^-24"
    if node in small.rounded:
        held = f"beside which FP16 rounds what {node.label} writes or reads by too much"
    reason = (
        f"a row of {small.tensor} is {row.value:.3g} on average, {held}; {logarithm.op_type} {logarithm.label} takes its logarithm, "
        f"and {row.end.op_type} {row.end.label} divides what is left of that less its mean by as little as {row.spread:.3g}"
    )
    return Finding("small_value", node.label, small.tensor, row.value, row.limit, reason)


@lru_cache(maxsize=1)
def _evidence_of_logarithms(graph: Graph, ranges: RangeTable) -> dict[str, list[SmallLogarithm]]:
    return list_by_node(find_small_logarithms(graph, ranges))


@lru_cache(maxsize=1)
def _evidence_of_factors(graph: Graph, ranges: RangeTable) -> dict[str, list[SmallFactor]]:
    return list_by_node(find_small_factors(graph, ranges))


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[str, str]]:
    """For each node concerned, the small tensors and, in words, where each shows."""
    found: dict[str, dict[str, str]] = {}
    for tensor in graph.tensors:
        share = _lost_share(graph, ranges, tensor)
        if share is None:
            continue
        for node, end in _concerned(graph, ranges, tensor, share):
            found.setdefault(node.label, {}).setdefault(tensor, end)
    return found


def _lost_share(graph: Graph, ranges: RangeTable, tensor: str) -> float | None:
    """The share of the largest value that FP16 may lose; None where it is not too small."""
    seen = ranges.get(tensor)
    if seen is None or graph.dtypes.get(tensor) != TensorProto.FLOAT or seen.nan_count:
        return None
    if not 0 < seen.max_abs < LEAST_MAGNITUDE:
        return None
    if tensor not in graph.constants:
        return min(1.0, FP16_UNDERFLOW / seen.max_abs)
    if seen.max_abs <= FP16_UNDERFLOW:
        return None
    value = graph.read_constant(tensor)
    noise = float(np.linalg.norm(value - round_to_fp16(value).astype(np.float64)) / np.linalg.norm(value))
    return noise if noise > MOST_NOISE else None


def _concerned(graph: Graph, ranges: RangeTable, tensor: str, share: float) -> Iterator[tuple[Node, str]]:
    """The readers in whose output the loss shows in the end, with the tensor's writer, and where it shows."""
    lost, shown = ranges.by_tensor[tensor].max_abs * share, find_shown(graph, ranges)
    ways = ((node, shown.get((node.label, tensor))) for node, _ in readers(graph, tensor))
    ends = {node: way.end for node, way in ways if way is not None and lost >= way.least}
    given = "the model gives it out" if tensor in graph.outputs else next(iter(ends.values()), "")
    if given and tensor in graph.producers and tensor not in graph.constants:
        yield graph.producers[tensor], given
    yield from ends.items()
