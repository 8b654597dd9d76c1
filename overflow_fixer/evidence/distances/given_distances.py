"""Squared distances, written out as |a|² + |b|² − 2ab, that are given out: whoever reads them looks for the nearest.

The nearest of all shows in the range; where it is less than a few of FP16's steps at |a|², it and others come out as
anything, below zero too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from overflow_fixer.evidence.differences.losses import FEWEST_STEPS, FP32_NOISE, LostDifference, tell_steps
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.differences.terms import find_terms
from overflow_fixer.evidence.distances.squared_distances import hands_on, is_distance
from overflow_fixer.evidence.measured import are_finite
from overflow_fixer.evidence.paths import walk_back
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable


def find_given_distances(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Those of which the least is less than 64 of FP16's steps at the largest term, and more than FP32's own rounding.

    The value is that least, of whatever batch. Behind moves, bounds and roots, too, and as multiples: of a constant, or of
    what divides them, as d / max d. None of terms or distances with NaN or infinities.
    """
    for output in graph.outputs:
        for node in filter(partial(is_distance, graph), _find_sums_given(graph, output)):
            terms = find_terms(graph, node)
            if not are_finite(graph, ranges, *terms, *node.writes):
                continue
            largest = max(ranges.by_tensor[name].max_abs for name in terms)
            name, limit = node.outputs[0], FEWEST_STEPS * step_at(largest)
            least = ranges.by_tensor[name].min
            if FP32_NOISE * largest < least < limit:
                reason = (
                    f"{name} is as small as {least:.6g}, and its terms, up to {largest:.6g}, lose much: "
                    f"{tell_steps(largest)}, and the output {output} tells it"
                )
                nodes = tuple(find_sources(graph, ranges, node, least))
                yield LostDifference(nodes, name, least, limit, reason)


def _find_sums_given(graph: Graph, output: str) -> Iterator[Node]:
    """The last sums before the output, behind moves, bounds, roots and factors: from outputs, since of long chains of sums these are few."""

    def goes_on(node: Node, name: str) -> bool:
        slot = node.inputs.index(name)
        return not find_terms(graph, node) and (hands_on(graph, node, slot) or _scales(graph, node, slot))

    return (node for node in walk_back(graph, output, goes_on) if find_terms(graph, node))


def _scales(graph: Graph, node: Node, slot: int) -> bool:
    """Whether it multiplies what comes in there by a constant, or divides it by anything."""
    is_product = node.standard_op == "Mul" and node.inputs[1 - slot] in graph.constants
    return is_product or (node.standard_op == "Div" and slot == 0)
