"""A difference of nearly equal values, of which FP16's rounding of these leaves little or nothing, where that matters.

Of values over 1024 it always does, and of smaller ones where something is divided by it, say, or chosen by it. What computes
the values stays in FP32, back to where they are small, or held exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import lru_cache
from itertools import chain
from typing import Literal

from overflow_fixer.evidence.differences.cancelled_squares import find_cancelled
from overflow_fixer.evidence.differences.compared_differences import find_compared_differences
from overflow_fixer.evidence.differences.divided_differences import find_divided
from overflow_fixer.evidence.differences.far_differences import find_far
from overflow_fixer.evidence.differences.given_differences import find_given_differences
from overflow_fixer.evidence.differences.losses import LostDifference
from overflow_fixer.evidence.differences.nearest_differences import find_nearest_differences
from overflow_fixer.evidence.differences.normalised_differences import find_normalised
from overflow_fixer.evidence.differences.offset_choices import find_offset_choices
from overflow_fixer.evidence.differences.placed_choices import find_placed_choices
from overflow_fixer.evidence.differences.poles import find_poles
from overflow_fixer.evidence.differences.rounded_exponents import find_rounded_exponents
from overflow_fixer.evidence.differences.row_differences import find_row_differences
from overflow_fixer.evidence.differences.shown_differences import find_shown_differences
from overflow_fixer.evidence.differences.small_differences import SmallLoss
from overflow_fixer.evidence.distances.chosen_distances import find_chosen
from overflow_fixer.evidence.distances.compared_distances import find_compared_distances
from overflow_fixer.evidence.distances.exponents import find_exponents
from overflow_fixer.evidence.distances.given_distances import find_given_distances
from overflow_fixer.evidence.distances.log_sums import find_log_sums
from overflow_fixer.evidence.features.cancelled_biases import find_cancelled_biases
from overflow_fixer.evidence.features.cancelled_products import find_cancelled_products
from overflow_fixer.evidence.features.split_features import find_split_features
from overflow_fixer.evidence.features.standardised import find_standardised
from overflow_fixer.evidence.origins import Walked
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.by_node import list_by_node

_Beside = Literal["none", "small", "any"]
"""Beside which other findings about the same difference a form is told: those of small ones, or of those over 1024, too.

Pins go back by the largest of the difference, or of what is chosen. Of distances less may count: the nearest, the radius, a
step in an exponent; then what they are squares of is lost, too.
"""
_FORMS: Mapping[Callable[[Graph, RangeTable], Iterator[LostDifference]], _Beside] = {
    find_standardised: "small",
    find_split_features: "small",
    find_cancelled_biases: "none",
    find_cancelled_products: "none",
    find_cancelled: "none",
    find_given_distances: "any",
    find_compared_distances: "any",
    find_offset_choices: "none",
    find_placed_choices: "small",
    find_normalised: "small",
    find_row_differences: "none",
    find_exponents: "any",
    find_rounded_exponents: "any",
    find_compared_differences: "any",
    find_nearest_differences: "small",
    find_poles: "none",
}


def find_lost_differences(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each such difference that the node computes, or whose terms it computes.

    `value` is its max |x|, `limit` 64 of FP16's steps at the largest term. Of a difference that is divided by, whatever its
    terms, both are of the `batch` alone, `limit` is 16 steps (64 where it is of what is chosen among it), and nodes on the
    way to the division may have a finding, too.
    None of terms with NaN or infinities, that FP16 is known to hold, or of integers, which the rule lost_integer looks
    after; none of a difference of zeros.

    Of the forms each tells what `tensor`, `value` and `limit` are.
    """
    for lost in _evidence(graph, ranges).get(node.label, ()):
        yield Finding(
            "lost_difference", node.label, lost.tensor, lost.value, lost.limit, lost.reason, lost.batch
        )


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> Mapping[str, list[LostDifference]]:
    return list_by_node(_find_all(graph, ranges))


def _find_all(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Those over 1024 and small, those that are small where it matters, and of the others, or beside these, each form's."""
    far = {one.nodes[0].label: one for one in find_far(graph, ranges)}
    yield from far.values()
    small: dict[str, SmallLoss] = {}
    for one in _find_small(graph, ranges, far.keys()):
        small.setdefault(one.difference.node.label, one)
    yield from (one.tell(graph, ranges) for one in small.values())
    told = {*small}
    for find, beside in _FORMS.items():
        others = {"none": far.keys() | told, "small": far.keys(), "any": set[str]()}[beside]
        for lost in find(graph, ranges):
            if lost.nodes[0].label not in others:
                told.add(lost.nodes[0].label)
                yield lost


def _find_small(graph: Graph, ranges: RangeTable, far: Set[str]) -> Iterator[SmallLoss]:
    """What is divided by, divided, chosen among or given out, or shows; none of `far` ones, but for what is chosen among them.

    Of that less may be left.
    """
    walked: Walked = {}
    divided, given, shown = (
        (one for one in find(graph, ranges, walked) if one.difference.node.label not in far)
        for find in (find_divided, find_given_differences, find_shown_differences)
    )
    return chain(divided, find_chosen(graph, ranges), find_log_sums(graph, ranges), given, shown)
