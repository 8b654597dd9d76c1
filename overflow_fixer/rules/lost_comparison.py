"""A comparison with zero or a tiny number that FP16 decides otherwise, where that shows.

Where(x² < 1e-10, 1, x²) guards a division by x². FP16 makes zero of the 1e-10 and of the square, so that none is less, and
divides by zero. A mask x > 0, a Sign and a truth value lose what FP16 makes zero of. The comparison stays in FP32, and
what writes values as small for it.
"""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.evidence.zeros.decision_sources import find_decision_sources
from overflow_fixer.formats import FP16_MIN_SUBNORMAL, FP16_UNDERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable


def find_lost_comparisons(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding where the node makes such a comparison, or writes tiny values for one; of several one alone is told.

    `value` is one, between the extremes that were seen, of which FP16 decides otherwise; `limit` is 2^-25, of a number that FP16 holds badly that and a step.
    """
    lost = find_decision_sources(graph, ranges).get(node.label)
    if lost is None:
        return
    comparison = lost.comparison
    at, number = comparison.node, comparison.number
    limit = FP16_UNDERFLOW if abs(number) <= FP16_UNDERFLOW else abs(number) + FP16_MIN_SUBNORMAL
    reason = (
        f"{at.op_type} {at.label} compares {comparison.tensor} with {number:.3g}, and decides otherwise of {lost.value:.3g} "
        "where FP16 rounds both"
    )
    yield Finding("lost_comparison", node.label, comparison.tensor, lost.value, limit, reason)
