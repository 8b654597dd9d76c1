"""Scores with an offset in common, of which a TopK chooses: a class, a group or a batch times a large number keeps them apart.

At 3000 FP16's steps are 2: of scores up to 1 nothing is left there, and those of a group are chosen in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from overflow_fixer.evidence.differences.losses import FEWEST_STEPS, LostDifference, tell_steps
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.measured import are_finite
from overflow_fixer.evidence.paths import find_ways, tells_places, walk_back
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.formats import step_at
from overflow_fixer.graph.filled import is_filled
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS
from overflow_fixer.records import RangeTable


def find_offset_choices(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each sum whose scores have less than 64 of FP16's steps at the least that is chosen; the value is the largest score.

    Of a TopK whose places are read, behind moves and masks. What FP16 is known to hold is offset, and all else scores. None of sums or
    scores with NaN or infinities.
    """
    for choice in graph.nodes:
        node = _find_sum(graph, choice) if tells_places(graph, choice) else None
        if node is None or not are_finite(graph, ranges, *node.inputs, choice.outputs[0]):
            continue
        chosen = ranges.by_tensor[choice.outputs[0]]
        least = max(chosen.min, -chosen.max, 0.0)
        most = max(
            (ranges.by_tensor[name].max_abs for name in find_lost_terms(graph, ranges, node)), default=0.0
        )
        limit = FEWEST_STEPS * step_at(least)
        if 0 < most < limit:
            reason = (
                f"{choice.op_type} {choice.label} tells the places of what is {least:.6g} or more in magnitude, and what is "
                f"added up to {node.outputs[0]} besides an offset is {most:.6g} at most: {tell_steps(least)}"
            )
            nodes = (*find_sources(graph, ranges, node, most), *_find_way(graph, node, choice))
            yield LostDifference(nodes, node.outputs[0], most, limit, reason)


def _find_sum(graph: Graph, choice: Node) -> Node | None:
    """The sum or difference that is chosen among, as it is, moved or masked."""

    def goes_on(node: Node, name: str) -> bool:
        return _hands_on(graph, node, node.inputs.index(name))

    behind = walk_back(graph, choice.inputs[0], goes_on)
    first = next((node for node in behind if not any(goes_on(node, name) for name in node.inputs)), None)
    return first if first is not None and first.standard_op in ADDS else None


def _hands_on(graph: Graph, node: Node, slot: int) -> bool:
    return moves(node, slot) or is_filled(graph, node, slot)


def _find_way(graph: Graph, node: Node, choice: Node) -> tuple[Node, ...]:
    def is_choice(reader: Node, slot: int) -> bool:
        return reader is choice and slot == 0

    return find_ways(graph, node.outputs[0], partial(_hands_on, graph), is_choice)
