"""A sum of products of which a part may overflow in a kernel that accumulates in FP16, whatever the output shows.

TensorRT chooses such kernels. The evidence is sum |a| |b|, which no partial sum exceeds in whatever order, measured
by the scan where a bound was over FP16's limit and FP16 could hold all that the node reads and writes (else another
rule pins it); so it is held against that limit, not against the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from overflow_fixer.evidence.measured import find_inner
from overflow_fixer.formats import FP16_MAX
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.digits import tell_over


def find_large_accumulators(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding where sum |a| |b| is over 65504, as policy.accumulators wants it. None where NaN or infinities come in."""
    inner = find_inner(ranges, node, "products")
    if (
        inner is None
        or policy.accumulators == "off"
        or not all(map(partial(_is_finite, ranges), node.inputs))
    ):
        return
    value = inner.seen.max_abs
    if not FP16_MAX < value < math.inf:
        return
    reason = (
        f"inside, sum |a| |b| reaches {tell_over(value, FP16_MAX)}, over FP16's limit of {FP16_MAX:g}: a kernel that accumulates in FP16 may "
        "overflow on the way to an output that does not"
    )
    action = policy.accumulators if policy.accumulators == "pin" else "none"
    batch = ranges.worst_batch_of(inner.seen)
    yield Finding("accumulator", node.label, node.outputs[0], value, FP16_MAX, reason, batch, action, "low")


def _is_finite(ranges: RangeTable, tensor: str) -> bool:
    seen = ranges.get(tensor)
    return seen is None or seen.is_finite
