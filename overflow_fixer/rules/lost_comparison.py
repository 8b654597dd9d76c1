"""A comparison with zero, a tiny number or one beside the largest that FP16 decides otherwise, where that shows.

Where(x² < 1e-10, 1, x²) guards a division by x². FP16 makes zero of the 1e-10 and of the square, so that none is less, and
divides by zero. A mask x > 0, a Sign and a truth value lose what FP16 makes zero of. The comparison stays in FP32, and
what writes values as small for it. So does what is as large as 0.9999 in FP16, compared with that. And what is chosen of an input stays in FP32 where it is compared with the input, or
where places in the input's order are told that FP16 changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from overflow_fixer.evidence.fed_choices import FedChoice, find_fed_choices
from overflow_fixer.evidence.fed_orders import LARGEST_SHARE, FedOrder, find_fed_orders
from overflow_fixer.evidence.rounded_bounds import RoundedBound, find_rounded_bounds
from overflow_fixer.evidence.zeros.decision_sources import find_decision_sources
from overflow_fixer.formats import FP16_MIN_SUBNORMAL, FP16_UNDERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.by_node import list_by_node


def find_lost_comparisons(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding where the node makes such a comparison, or writes tiny values for one; of several one alone is told.

    `value` is one, between the extremes that were seen, of which FP16 decides otherwise; `limit` is 2^-25, of a number that FP16 holds badly that and a step.
    Of the largest or the least that FP16 rounds to the number, `limit` is that number.
    Of what is chosen of an input it is by how much FP16 rounds that at most, and `limit` 0;
    of an order of the input, the share that is made equal to the next, and its limit.
    """
    yield from _tell_fed(node, graph, ranges)
    yield from _tell_order(node, graph, ranges)
    yield from _tell_bound(node, graph, ranges)
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


def _tell_fed(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for found in _list_fed(graph, ranges).get(node.label, ()):
        at = found.comparison
        reason = (
            f"{at.op_type} {at.label} compares {found.tensor}, which is fed in FP32, with what was chosen of it, which FP16 rounds "
            f"by up to {found.error:.3g}: none of its elements, mostly"
        )
        yield Finding("lost_comparison", node.label, found.tensor, found.error, 0.0, reason)


def _tell_order(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for found in _list_orders(graph, ranges).get(node.label, ()):
        reason = (
            f"{found.choice.op_type} {found.choice.label} tells places in the order of {found.tensor}, which is fed in FP32: FP16 "
            f"makes {found.share:.3g} of its elements equal to the next, which they are not"
        )
        yield Finding(
            "lost_comparison", node.label, found.tensor, found.share, LARGEST_SHARE, reason, found.batch
        )


def _tell_bound(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for found in _list_bounds(graph, ranges).get(node.label, ()):
        at, tensor, number = found.comparison.node, found.comparison.tensor, found.comparison.number
        reason = (
            f"{at.op_type} {at.label} compares {tensor} with {number:.9g}, and decides otherwise of all that is {found.value:.9g}, as "
            "the largest or the least is, where FP16 makes one number of both"
        )
        yield Finding("lost_comparison", node.label, tensor, found.value, number, reason)


@lru_cache(maxsize=1)
def _list_bounds(graph: Graph, ranges: RangeTable) -> Mapping[str, list[RoundedBound]]:
    return list_by_node(find_rounded_bounds(graph, ranges))


@lru_cache(maxsize=1)
def _list_orders(graph: Graph, ranges: RangeTable) -> Mapping[str, list[FedOrder]]:
    return list_by_node(find_fed_orders(graph, ranges))


@lru_cache(maxsize=1)
def _list_fed(graph: Graph, ranges: RangeTable) -> Mapping[str, list[FedChoice]]:
    return list_by_node(find_fed_choices(graph, ranges))
