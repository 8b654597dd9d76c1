"""A difference from a square of which some element is little beside its terms: E[x²] − E[x]² of a quiet row.

How little was measured element by element, so that one row counts though the others are larger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

from overflow_fixer.evidence.differences.losses import MOST_ROUNDED, LostDifference
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.measured import are_finite, list_inner
from overflow_fixer.evidence.origins import find_origins
from overflow_fixer.evidence.paths import find_given, find_ways
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.evidence.zeros.near_zero import divides
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import read_exponent
from overflow_fixer.records import InnerRange, RangeTable

_MOST_WHERE_DIVIDED_BY = 128.0
"""FP16 rounds terms so many times what is left of them by up to a 16th of it: see docs/numerics.md."""
_FP32_NOISE = 2.0**-16
"""Of the terms: below zero by less is what FP32 rounds of what is never below."""
_KEEPS = frozenset("Abs Relu Clip Max Sqrt".split())


def find_cancelled(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each such difference that is never negative, and is given out or divided by.

    The value is how many times an element of it the first term is at most, and the limit 32, or 128 where it is divided by.
    None of terms or results with NaN or infinities, and of terms that FP16 is known to hold.
    """
    for node, inner in list_inner(graph, ranges, "cancellation"):
        if not _is_variance(graph, ranges, node):
            continue
        limit, made = _find_use(graph, ranges, node, inner)
        name, value = node.outputs[0], inner.seen.max_abs
        if value > limit:
            reason = (
                f"of {name} an element is left of terms {value:.6g} times as large, which FP16 rounds by up to a 2048th, "
                f"over the limit of {limit:g}, and {made}"
            )
            nodes = tuple(_find_sources(graph, ranges, node, inner))
            yield LostDifference(nodes, name, value, limit, reason, ranges.worst_batch_of(inner.seen))


def _is_variance(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    if not are_finite(graph, ranges, *node.inputs, node.outputs[0]):
        return False
    largest = max(ranges.by_tensor[name].max_abs for name in node.inputs)
    is_negative = ranges.by_tensor[node.outputs[0]].min < -_FP32_NOISE * largest
    return not is_negative and bool(find_lost_terms(graph, ranges, node))


def _find_use(graph: Graph, ranges: RangeTable, node: Node, inner: InnerRange) -> tuple[float, str]:
    """The limit, and what is made of the difference; none holds where nothing is."""
    least = max(ranges.by_tensor[name].max_abs for name in node.inputs) / max(inner.seen.max_abs, 1.0)
    keeps = partial(_keeps, graph, ranges, least)
    given = find_given(graph, node.outputs[0], keeps)
    if given is not None:
        return MOST_ROUNDED, f"the output {given} tells it"
    ways = find_ways(graph, node.outputs[0], keeps, partial(divides, graph))
    return (
        (_MOST_WHERE_DIVIDED_BY, f"{ways[-1].op_type} {ways[-1].label} divides by it")
        if ways
        else (math.inf, "")
    )


def _keeps(graph: Graph, ranges: RangeTable, least: float, node: Node, slot: int) -> bool:
    """Whether an element as small shows in what the node writes."""
    if node.standard_op == "Add" and node.inputs[1 - slot] in graph.constants:
        return ranges.by_tensor[node.inputs[1 - slot]].max_abs < least
    is_product = node.standard_op == "Mul" or (node.standard_op == "Div" and slot == 0)
    is_scaled = is_product and node.inputs[1 - slot] in graph.constants
    is_power = read_exponent(graph, node) > 0
    return is_scaled or is_power or node.standard_op in _KEEPS or moves(node, slot)


def _find_sources(graph: Graph, ranges: RangeTable, node: Node, inner: InnerRange) -> Iterator[Node]:
    """The node, and those whose rounding moves what is left by more than a 64th of it."""
    yield node
    for name in find_lost_terms(graph, ranges, node):
        most = MOST_ROUNDED * ranges.by_tensor[name].max_abs / inner.seen.max_abs
        yield from find_origins(graph, ranges, name, most)
