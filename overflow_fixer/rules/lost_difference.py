"""A difference of values over 1024 that is no more than a few of FP16's steps there: the side of a box, x2 - x1.

3000.3 and 3004.8 are 3000 and 3004 in FP16, so a side of 4.5 becomes 4; what each lost is a large share of what is
left. What computes the values stays in FP32, back to where they are small, or held exactly. Of smaller values it is one
that is divided by: see divided_differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from overflow_fixer.evidence.differences.cancelled_biases import find_cancelled_biases
from overflow_fixer.evidence.differences.cancelled_squares import find_cancelled
from overflow_fixer.evidence.differences.chosen_differences import find_chosen
from overflow_fixer.evidence.differences.compared_differences import find_compared_differences
from overflow_fixer.evidence.differences.compared_distances import find_compared_distances
from overflow_fixer.evidence.differences.difference_kernels import find_kernels
from overflow_fixer.evidence.differences.divided_differences import Divided, find_divided, find_sources
from overflow_fixer.evidence.differences.exponents import find_exponents
from overflow_fixer.evidence.differences.given_differences import find_given_differences
from overflow_fixer.evidence.differences.given_distances import find_given_distances
from overflow_fixer.evidence.differences.log_sums import find_log_sums
from overflow_fixer.evidence.differences.losses import FEWEST_STEPS, LostDifference, tell_steps
from overflow_fixer.evidence.differences.nearest_differences import find_nearest_differences
from overflow_fixer.evidence.differences.normalised_differences import find_normalised
from overflow_fixer.evidence.differences.offset_choices import find_offset_choices
from overflow_fixer.evidence.differences.placed_choices import find_placed_choices
from overflow_fixer.evidence.differences.poles import find_poles
from overflow_fixer.evidence.differences.rounded_exponents import find_rounded_exponents
from overflow_fixer.evidence.differences.row_differences import find_row_differences
from overflow_fixer.evidence.differences.shown_differences import find_shown_differences
from overflow_fixer.evidence.differences.split_features import find_split_features
from overflow_fixer.evidence.differences.standardised import find_standardised
from overflow_fixer.evidence.differences.terms import find_terms
from overflow_fixer.evidence.integers.places import is_far, trace_back
from overflow_fixer.evidence.origins import Walked
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.by_node import list_by_node

_LAYERS = frozenset("Conv ConvTranspose Gemm MatMul".split())


class _Form(NamedTuple):
    """A way in which a difference is lost, and whether it is told though that one is small, or over 1024, in another way.

    Pins go back by the largest of the difference, or of what is chosen. Of distances less may count: the nearest, the radius, a
    step in an exponent; then what they are squares of is lost, too.
    """

    find: Callable[[Graph, RangeTable], Iterator[LostDifference]]
    is_told_beside_small: bool
    is_told_beside_far: bool


_FORMS = (
    _Form(find_standardised, True, False),
    _Form(find_split_features, True, False),
    _Form(find_cancelled_biases, False, False),
    _Form(find_cancelled, False, False),
    _Form(find_given_distances, True, True),
    _Form(find_compared_distances, True, True),
    _Form(find_offset_choices, False, False),
    _Form(find_placed_choices, True, False),
    _Form(find_normalised, True, False),
    _Form(find_row_differences, False, False),
    _Form(find_exponents, True, True),
    _Form(find_rounded_exponents, True, True),
    _Form(find_compared_differences, True, True),
    _Form(find_nearest_differences, True, False),
    _Form(find_poles, False, False),
)
"""What `tensor`, `value` and `limit` are of a finding, by its form.

Of a difference from a square that is never negative `tensor` is it, `value` how many times an element of it the term is
at most, and `limit` 32, or 128 where it is divided by.

Of squared distances that are given out, `value` is the least, of whatever batch; of those that are compared with a radius
it is the square of that, and `limit` 64 steps at the largest term. Of scores with an offset that a TopK chooses among it is
the largest score, and `limit` 64 steps at the least chosen. Of a sum of which a place is told `value` is by how much it is chosen
on average, and `limit` 16 steps at what is chosen.

Of a difference from a constant that another scales, feature by feature, `tensor` and `value` are what that gives, and
`limit` 64 steps of the feature that loses most.

Of features that trees split `tensor` is what these read, `value` what is between a feature's thresholds, and `limit` 256 steps.

Of a layer whose bias takes away what its weights make, they are of what it writes, and `limit` 32 steps at the largest bias.

Of what a normalisation takes its mean from `tensor` is it, `value` the largest that is left in the `batch`, and `limit` 32
steps at its max |x| there.

Of a row of features less its mean or its least `tensor` is what is left, `value` how many times that the row is, and
`limit` 64.

Of a difference whose least size is chosen `value` is that, and `limit` 64 steps at its terms.

Of a divisor near a pole `tensor` is the difference, `value` what it is at most where the quotient is largest, and `limit` 16
steps at terms that cancel.

Of squared distances in an exponent `tensor` is they, `value` FP16's step at their terms in the exponent, and `limit` 1/8; so
of what changes by as much of itself, a quotient or a Sigmoid. Of other differences in an exponent `tensor` is what is made
of the terms, `value` what the exponential loses in the `batch`, as a share of itself, and `limit` 1/32. Of those that are
compared with a constant `value` is the share of elements that is decided otherwise, and `limit` 1/100.
"""


def find_lost_differences(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each such difference that the node computes, or whose terms it computes.

    `value` is its max |x|, `limit` 64 of FP16's steps at the largest term. Of a difference that is divided by, whatever its
    terms, both are of the `batch` alone, `limit` is 16 steps (64 where it is of what is chosen among it), and nodes on the
    way to the division may have a finding, too.
    None of terms with NaN or infinities, that FP16 is known to hold, or of integers, which the rule lost_integer looks
    after; none of a difference of zeros.

    Of what the forms tell of it is told there.
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
    far = {node.label: terms for node in graph.nodes if (terms := _find_terms(graph, ranges, node))}
    yield from (_tell_far(graph, ranges, graph.by_label[label], terms) for label, terms in far.items())
    small: dict[str, Divided] = {}
    for one in _find_small(graph, ranges, far.keys()):
        small.setdefault(one.difference.node.label, one)
    yield from (_tell_small(graph, ranges, one) for one in small.values())
    told = {*small}
    for form in _FORMS:
        others = {*(() if form.is_told_beside_far else far), *(() if form.is_told_beside_small else told)}
        for lost in form.find(graph, ranges):
            if lost.nodes[0].label not in others:
                told.add(lost.nodes[0].label)
                yield lost


def _find_small(graph: Graph, ranges: RangeTable, far: Set[str]) -> Iterator[Divided]:
    """What is divided by, divided, chosen among or given out, or shows; none of `far` ones, but for what is chosen among them.

    Of that less may be left.
    """
    walked: Walked = {}
    divided, given, shown = (
        (one for one in find(graph, ranges, walked) if one.difference.node.label not in far)
        for find in (find_divided, find_given_differences, find_shown_differences)
    )
    return chain(divided, find_chosen(graph, ranges), find_log_sums(graph, ranges), given, shown)


def _tell_far(graph: Graph, ranges: RangeTable, node: Node, terms: tuple[str, ...]) -> LostDifference:
    seen, most = ranges.by_tensor[node.outputs[0]], max(ranges.by_tensor[name].max_abs for name in terms)
    reason = (
        f"{seen.tensor} is {seen.max_abs:.6g} at most, of which {' and '.join(terms)}, up to {most:.6g}, lose much: "
        f"{tell_steps(most)}"
    )
    nodes, limit = tuple(_trace_far(graph, ranges, node, terms)), FEWEST_STEPS * step_at(most)
    return LostDifference(nodes, seen.tensor, seen.max_abs, limit, reason, ranges.worst_batch_of(seen))


def _tell_small(graph: Graph, ranges: RangeTable, divided: Divided) -> LostDifference:
    small, batch = divided.difference, ranges.batch_names[divided.difference.batch]
    name = small.node.outputs[0]
    whose = "its terms" if small.shown == name else f"the terms of {name}"
    lose = f"{whose}, up to {small.largest:.6g}, lose much"
    if small.node.label in find_kernels(graph):
        lose = f"what its kernel subtracts loses as much as two terms of up to {small.largest:.6g}"
    squared = f", squared {small.left:.6g}," if small.of_roots else ""
    reason = (
        f"{small.shown} is {small.value:.6g} at most{squared} in that batch, and {lose}: {tell_steps(small.largest)}, "
        f"and {divided.made}"
    )
    return LostDifference(tuple(divided.nodes), small.shown, small.value, small.limit, reason, batch)


def _trace_far(graph: Graph, ranges: RangeTable, node: Node, terms: tuple[str, ...]) -> Iterator[Node]:
    """The node, what computes its terms, and what is smaller before it is added up or squared, as far as its rounding matters.

    Of that not the layers that write data, whose errors average out.
    """
    sources = find_sources(graph, ranges, node, ranges.by_tensor[node.outputs[0]].max_abs)
    yield from (source for source in sources if source.standard_op not in _LAYERS)
    yield node
    for name in terms:
        yield from trace_back(graph, ranges, name)


def _find_terms(graph: Graph, ranges: RangeTable, node: Node) -> tuple[str, ...]:
    """The terms over 1024 of which no more than a few steps are left; none where more is, or none is so large."""
    added = find_terms(graph, node)
    left = ranges.get(node.outputs[0]) if added else None
    if left is None or not left.max_abs > 0:
        return ()
    terms = tuple(dict.fromkeys(name for name in added if is_far(graph, ranges, name)))
    step = max((step_at(ranges.by_tensor[name].max_abs) for name in terms), default=0.0)
    return terms if left.max_abs < FEWEST_STEPS * step else ()
