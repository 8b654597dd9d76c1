"""A difference of values over 1024 that is no more than a few of FP16's steps there: the side of a box, x2 - x1.

3000.3 and 3004.8 are 3000 and 3004 in FP16, so a side of 4.5 becomes 4; what each lost is a large share of what is
left. What computes the values stays in FP32, back to where they are small, or held exactly. Of smaller values it is one
that is divided by: see divided_differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from functools import lru_cache
from itertools import chain
from typing import TypeVar

from overflow_fixer.formats import FP16_OVERFLOW, step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.cancelled_squares import Cancelled, find_cancelled
from overflow_fixer.rules.chosen_differences import find_chosen, is_distance
from overflow_fixer.rules.difference_kernels import find_kernels
from overflow_fixer.rules.divided_differences import find_divided, find_sources
from overflow_fixer.rules.exponents import LARGEST_STEP, Exponent, find_exponents
from overflow_fixer.rules.given_differences import find_given_differences
from overflow_fixer.rules.given_distances import Given, find_given_distances
from overflow_fixer.rules.normalised_differences import Normalised, find_normalised
from overflow_fixer.rules.origins import Walked
from overflow_fixer.rules.places import is_far, trace_back
from overflow_fixer.rules.shown_differences import find_shown_differences
from overflow_fixer.rules.small_differences import FEWEST_STEPS, SmallDifference, find_terms
from overflow_fixer.rules.standardised import Standardised, find_standardised

_LAYERS = frozenset("Conv ConvTranspose Gemm MatMul".split())
_Evidence = TypeVar("_Evidence", Standardised, Cancelled, Given, Normalised, Exponent)


def find_lost_differences(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each such difference that the node computes, or whose terms it computes.

    `value` is its max |x|, `limit` 64 of FP16's steps at the largest term. Of a difference that is divided by, whatever its
    terms, both are of the `batch` alone, `limit` is 16 steps (64 where it is of what is chosen among it), and nodes on the
    way to the division may have a finding, too.
    None of terms with NaN or infinities, that FP16 is known to hold, or of integers, which the rule lost_integer looks
    after; none of a difference of zeros.

    Of a difference from a square that is never negative `tensor` is it, `value` how many times an element of it the term is
    at most, and `limit` 32, or 128 where it is divided by.

    Of squared distances that are given out, `value` is the least, of whatever batch.

    Of a difference from a constant that another scales, feature by feature, `tensor` and `value` are what that gives, and
    `limit` 64 steps of the feature that loses most.

    Of what a normalisation takes its mean from `tensor` is it, `value` the largest that is left in the `batch`, and `limit` 32
    steps at its max |x| there.

    Of squared distances in an exponent `tensor` is they, `value` FP16's step at their terms in the exponent, and `limit` 1/8.
    """
    yield from _find_far(node, graph, ranges)
    yield from _find_divided(node, graph, ranges)
    yield from _find_standardised(node, graph, ranges)
    yield from _find_cancelled(node, graph, ranges)
    yield from _find_given(node, graph, ranges)
    yield from _find_normalised(node, graph, ranges)
    yield from _find_exponents(node, graph, ranges)


def _find_far(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for difference, terms in _evidence(graph, ranges).get(node.label, {}).items():
        seen, most = ranges.by_tensor[difference], max(ranges.by_tensor[name].max_abs for name in terms)
        reason = (
            f"{difference} is {seen.max_abs:.6g} at most, of which {' and '.join(terms)}, up to {most:.6g}, lose much: "
            f"{_tell_steps(most)}"
        )
        batch = ranges.worst_batch_of(seen)
        limit = FEWEST_STEPS * step_at(most)
        yield Finding("lost_difference", node.label, difference, seen.max_abs, limit, reason, batch)


def _find_divided(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for small, made in _evidence_of_divided(graph, ranges).get(node.label, ()):
        name, batch = small.node.outputs[0], ranges.batch_names[small.batch]
        whose = "its terms" if small.shown == name else f"the terms of {name}"
        lose = f"{whose}, up to {small.largest:.6g}, lose much"
        if small.node.label in find_kernels(graph):
            lose = f"what its kernel subtracts loses as much as two terms of up to {small.largest:.6g}"
        squared = f", squared {small.left:.6g}," if small.of_roots else ""
        reason = f"{small.shown} is {small.value:.6g} at most{squared} in that batch, and {lose}: {_tell_steps(small.largest)}, and {made}"
        yield Finding("lost_difference", node.label, small.shown, small.value, small.limit, reason, batch)


def _find_standardised(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for made in _evidence_of_standardised(graph, ranges).get(node.label, ()):
        seen = ranges.by_tensor[made.made]
        reason = (
            f"{made.made} is {seen.max_abs:.6g} at most, and is what {made.source} has beside {made.mean:.6g}, times {made.factor:.6g}, in "
            f"a feature of it: {_tell_steps(made.mean)}, and {made.step * made.factor:.6g} behind the factor"
        )
        batch = ranges.worst_batch_of(seen)
        yield Finding("lost_difference", node.label, made.made, seen.max_abs, made.limit, reason, batch)


def _find_cancelled(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for made in _evidence_of_cancelled(graph, ranges).get(node.label, ()):
        name, value = made.nodes[0].outputs[0], made.seen.seen.max_abs
        reason = (
            f"of {name} an element is left of terms {value:.6g} times as large, which FP16 rounds by up to a 2048th, "
            f"over the limit of {made.limit:g}, and {made.made}"
        )
        batch = ranges.worst_batch_of(made.seen.seen)
        yield Finding("lost_difference", node.label, name, value, made.limit, reason, batch)


def _find_given(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for given in _evidence_of_given(graph, ranges).get(node.label, ()):
        name = given.nodes[0].outputs[0]
        reason = (
            f"{name} is as small as {given.least:.6g}, and its terms, up to {given.largest:.6g}, lose much: "
            f"{_tell_steps(given.largest)}, and the output {given.output} tells it"
        )
        yield Finding("lost_difference", node.label, name, given.least, given.limit, reason)


def _find_normalised(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for made in _evidence_of_normalised(graph, ranges).get(node.label, ()):
        norm = made.nodes[0]
        reason = (
            f"{norm.inputs[0]} is {made.left:.6g} at most from its mean in that batch, and, up to {made.largest:.6g}, loses much: "
            f"{_tell_steps(made.largest)}, and {norm.op_type} {norm.label} scales it up"
        )
        batch = ranges.batch_names[made.batch]
        yield Finding("lost_difference", node.label, norm.inputs[0], made.left, made.limit, reason, batch)


def _find_exponents(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for made in _evidence_of_exponents(graph, ranges).get(node.label, ()):
        name = made.nodes[0].outputs[0]
        reason = (
            f"{made.reader.op_type} {made.reader.label} takes {made.scale:.6g} times {name} for an exponent, whose terms are {made.term:.6g} "
            f"and more: {_tell_steps(made.term)}, and {made.step:.3g} in the exponent"
        )
        yield Finding("lost_difference", node.label, name, made.step, LARGEST_STEP, reason)


def _tell_steps(most: float) -> str:
    return f"FP16's steps are {step_at(most):g} there" if most < FP16_OVERFLOW else "FP16 ends at 65504"


@lru_cache(maxsize=1)
def _evidence_of_divided(graph: Graph, ranges: RangeTable) -> dict[str, list[tuple[SmallDifference, str]]]:
    """For each node concerned, the differences that are divided by, divided, chosen among or given out, or show; and by what; each once.

    None that are told as over 1024 and small, but for what is chosen among, of which less may be left.
    """
    found: dict[str, list[tuple[SmallDifference, str]]] = {}
    told: set[str] = set()
    walked: Walked = {}
    divided, given, shown = (
        (one for one in find(graph, ranges, walked) if not _find_terms(graph, ranges, one.difference.node))
        for find in (find_divided, find_given_differences, find_shown_differences)
    )
    for small, nodes, made in chain(divided, find_chosen(graph, ranges), given, shown):
        if small.node.label not in told:
            told.add(small.node.label)
            for label in dict.fromkeys(node.label for node in nodes):
                found.setdefault(label, []).append((small, made))
    return found


@lru_cache(maxsize=1)
def _evidence_of_cancelled(graph: Graph, ranges: RangeTable) -> dict[str, list[Cancelled]]:
    """For each node concerned, the differences from squares; none that are told."""
    return _list_by_node(graph, ranges, find_cancelled(graph, ranges), _find_told(graph, ranges))


@lru_cache(maxsize=1)
def _evidence_of_given(graph: Graph, ranges: RangeTable) -> dict[str, list[Given]]:
    """For each node concerned, the distances that are given out; none that are told."""
    return _list_by_node(graph, ranges, find_given_distances(graph, ranges), _find_told(graph, ranges))


@lru_cache(maxsize=1)
def _evidence_of_standardised(graph: Graph, ranges: RangeTable) -> dict[str, list[Standardised]]:
    """For each node concerned, what constants make of a difference; none of those over 1024 that are small themselves."""
    return _list_by_node(graph, ranges, find_standardised(graph, ranges), frozenset())


@lru_cache(maxsize=1)
def _evidence_of_normalised(graph: Graph, ranges: RangeTable) -> dict[str, list[Normalised]]:
    """For each node concerned, the normalisations whose mean leaves little."""
    return _list_by_node(graph, ranges, find_normalised(graph, ranges), frozenset())


@lru_cache(maxsize=1)
def _evidence_of_exponents(graph: Graph, ranges: RangeTable) -> dict[str, list[Exponent]]:
    """For each node concerned, the distances in an exponent; none that are told."""
    return _list_by_node(graph, ranges, find_exponents(graph, ranges), _find_told(graph, ranges))


def _find_told(graph: Graph, ranges: RangeTable) -> Set[str]:
    found = _evidence_of_divided(graph, ranges).values()
    return {small.node.label for told in found for small, _ in told}


def _list_by_node(
    graph: Graph, ranges: RangeTable, found: Iterable[_Evidence], told: Set[str]
) -> dict[str, list[_Evidence]]:
    """By the label of each of the nodes, of which the difference is the first; none that are told, or over 1024 and small."""
    by_label: dict[str, list[_Evidence]] = {}
    for one in found:
        is_told = one.nodes[0].label in told or bool(_find_terms(graph, ranges, one.nodes[0]))
        for label in dict.fromkeys(node.label for node in one.nodes if not is_told):
            by_label.setdefault(label, []).append(one)
    return by_label


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[str, tuple[str, ...]]]:
    """For each node concerned, the differences and the terms that are lost."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for node in graph.nodes:
        terms = _find_terms(graph, ranges, node)
        for concerned in _trace_far(graph, ranges, node, terms) if terms else ():
            found.setdefault(concerned.label, {}).setdefault(node.outputs[0], terms)
    return found


def _trace_far(graph: Graph, ranges: RangeTable, node: Node, terms: tuple[str, ...]) -> Iterator[Node]:
    """The node, and what computes its terms; of E[x²] − E[x]² and of distances also what is small before it is squared.

    Of that not the layer that writes x, whose error averages out.
    """
    if "cancellation" in ranges.inner_of.get(node.label, {}) or is_distance(graph, node):
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
