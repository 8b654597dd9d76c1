"""A tensor over the threshold pins the node that writes it and every node that reads it.

The producer alone is not enough: its FP32 output would be converted to FP16, and overflow, on its
way into the consumer (measured: an engine with the producers alone pinned gave NaN). A node that only
moves elements writes a tensor with a range of its own, so pins go on behind it until values fit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from overflow_fixer.evidence.constants.huge_values import only_bounds
from overflow_fixer.evidence.semantics import touched
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.batches import find_worst_batch
from overflow_fixer.rules.digits import tell_over


def find_over_threshold(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each finite max |x| over `policy.threshold` among the tensors the node touches.

    max |x| is over the elements that are not NaN; a max |x| equal to the threshold is not over it.
    Infinities are the rule non_finite's. A constant that is only a bound (Clip, Min, Max) is none.
    """
    for tensor, verb in touched(node).items():
        seen = ranges.get(tensor)
        if seen is None or not math.isfinite(seen.max_abs) or seen.max_abs <= policy.threshold:
            continue
        if only_bounds(graph, node, seen, policy.threshold):
            continue
        reason = (
            f"{verb} {tensor}, whose max |x| of {tell_over(seen.max_abs, policy.threshold)} is over the threshold of "
            f"{policy.threshold:g} ({seen.headroom:.2f} bits of headroom)"
        )
        batch = find_worst_batch(graph, ranges, tensor)
        yield Finding("threshold", node.label, tensor, seen.max_abs, policy.threshold, reason, batch)
