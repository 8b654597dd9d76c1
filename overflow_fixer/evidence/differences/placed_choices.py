"""Sums of which an ArgMin or ArgMax tells the place, and chooses by a few of FP16's steps: the scores of paths that grow.

At 130 FP16's steps are 1/8; of paths that differ by 0.7 another is chosen now and then, and what is read back along them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overflow_fixer.evidence.differences.losses import FP32_NOISE, LostDifference, tell_steps
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.differences.terms import find_lost_terms, find_terms
from overflow_fixer.evidence.distances.squared_distances import is_distance
from overflow_fixer.evidence.measured import are_finite, list_inner, read_maxima
from overflow_fixer.evidence.origins import Walked
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import is_root
from overflow_fixer.inner.choices import trace_sum
from overflow_fixer.records import RangeTable

_FEWEST_STEPS = 16
"""Rounding the sum alone chooses another in 1 of 80 rows there, and verification allows 1 of 100: see docs/numerics.md."""


def find_placed_choices(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each sum that is chosen among by less than 16 of FP16's steps at what is chosen, on average; the value is that margin.

    Neither of distances, which are chosen_distances', nor of roots. None of sums, terms or choices with NaN or infinities, nor by as
    little as FP32 itself rounds.
    """
    walked: Walked = {}
    for choice, inner in list_inner(graph, ranges, "mean margin"):
        way = trace_sum(graph, choice)
        if way is None or not _counts(graph, ranges, choice, way):
            continue
        node, *between = way
        chosen = _find_chosen(ranges, choice)
        margin = float(np.nanmean(inner.batch_max_abs)) if np.isfinite(inner.batch_max_abs).any() else 0.0
        limit = _FEWEST_STEPS * step_at(chosen)
        if FP32_NOISE * chosen < margin < limit:
            reason = (
                f"{choice.op_type} {choice.label} chooses among {node.outputs[0]}, {chosen:.6g} in magnitude there, by {margin:.3g} on "
                f"average: {tell_steps(chosen)}"
            )
            nodes = (*find_sources(graph, ranges, node, margin, walked), *between)
            yield LostDifference(nodes, node.outputs[0], margin, limit, reason)


def _counts(graph: Graph, ranges: RangeTable, choice: Node, way: list[Node]) -> bool:
    """Whether it adds up finite floats that FP16 may not hold, and is none of the sums that others look after."""
    node = way[0]
    names = (*find_terms(graph, node), *node.writes, choice.inputs[0])
    is_other = is_distance(graph, node) or any(is_root(graph, one) for one in way)
    is_told = not is_other and are_finite(graph, ranges, *names)
    return is_told and bool(find_lost_terms(graph, ranges, node))


def _find_chosen(ranges: RangeTable, choice: Node) -> float:
    """How large in magnitude what is chosen is on average, at most; of what has one sign throughout at least."""
    seen = ranges.by_tensor[choice.inputs[0]]
    end, is_far_side = (seen.max, seen.max < 0) if choice.op_type == "ArgMax" else (seen.min, seen.min > 0)
    maxima = read_maxima(ranges, choice.inputs[0])
    return abs(end) if is_far_side else float(np.nanmean(np.minimum(abs(end), maxima)))
