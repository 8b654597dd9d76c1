"""Squared distances, written out as |a|² + |b|² − 2ab, of which the nearest are chosen; 1 − cos as well.

The range of all distances does not show that the nearest are less than FP16's steps at |a|²: what was chosen does.
Of an ArgMin, which gives out the place alone, it matters by how much the nearest is nearer than the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain

from overflow_fixer.evidence.differences.losses import FEWEST_STEPS, FP32_NOISE, MOST_ROUNDED
from overflow_fixer.evidence.differences.small_differences import SmallDifference, SmallLoss, find_small
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.differences.terms import find_terms
from overflow_fixer.evidence.distances.squared_distances import find_summands, hands_on, is_distance
from overflow_fixer.evidence.measured import find_inner
from overflow_fixer.evidence.origins import find_origins
from overflow_fixer.evidence.paths import find_ways, tells_places, trace_moves
from overflow_fixer.evidence.semantics import readers
from overflow_fixer.evidence.zeros.cancellation import trace_term
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import MATRIX_PRODUCTS
from overflow_fixer.graph.powers import is_root, is_square
from overflow_fixer.records import RangeTable

_CHOOSES = frozenset("ReduceMin ReduceMax TopK".split())
_TELLS_WHERE = frozenset({"ArgMin", "ArgMax"})
"""Operators that give out the place of what they choose; by how much is measured inside them."""


def find_chosen(graph: Graph, ranges: RangeTable) -> Iterator[SmallLoss]:
    """Each distance, or number less something, of which less than 64 of FP16's steps are left in what is chosen, in the worst batch.

    Of several choices the one that leaves least is told, with what each of them needs.

    Or in the mean margin, where a place is chosen: what the points themselves lose moves a distance and the next nearly alike
    then, and counts where it is much.
    """
    for node in graph.nodes:
        found = [
            (small, end)
            for end, of_roots in _list_told(graph, node)
            if (small := _find_lost(graph, ranges, node, end, of_roots)) is not None
        ]
        if found:
            small, choice = min(found, key=lambda one: one[0].left)
            nodes = chain.from_iterable(_find_nodes(graph, ranges, *one) for one in found)
            yield SmallLoss(
                small, tuple(dict.fromkeys(nodes)), f"{choice.op_type} {choice.label} chooses among it"
            )


def _list_told(graph: Graph, node: Node) -> list[tuple[Node, bool]]:
    """The choices among a distance, and whether behind a root; among what a number leaves of something those alone that give a value out."""
    ends = list(_find_choices(graph, node)) if find_terms(graph, node) else []
    if ends and _is_left_of_a_number(graph, node):
        return [one for one in ends if one[0].standard_op not in _TELLS_WHERE]
    return ends if ends and is_distance(graph, node) else []


def _find_lost(
    graph: Graph, ranges: RangeTable, node: Node, choice: Node, of_roots: bool
) -> SmallDifference | None:
    """How little is chosen; None where it is enough, or as little as FP32 itself rounds. A margin is that of squares already."""
    shown = _name_chosen(ranges, choice)
    of_roots = of_roots and choice.standard_op not in _TELLS_WHERE
    small = next(find_small(graph, ranges, node, FEWEST_STEPS, shown, of_roots), None)
    return small if small is not None and small.left > FP32_NOISE * small.largest else None


def _find_nodes(graph: Graph, ranges: RangeTable, small: SmallDifference, choice: Node) -> Iterator[Node]:
    """What computes the distance; where places are told, what stands between it and the choice, and a TopK too.

    An ArgMin reads what it is given.
    """
    if _is_left_of_a_number(graph, small.node):
        number, term = small.node.inputs
        yield from trace_term(graph, ranges, term, ranges.by_tensor[number].max)
    is_place_alone = choice.standard_op in _TELLS_WHERE
    yield from (
        _find_sums(graph, ranges, small)
        if is_place_alone
        else find_sources(graph, ranges, small.node, small.left)
    )
    if is_place_alone or tells_places(graph, choice):
        yield from _find_between(graph, small.node, choice)


def _find_between(graph: Graph, node: Node, choice: Node) -> Sequence[Node]:
    def is_choice(reader: Node, slot: int) -> bool:
        return reader is choice and slot == 0

    ways = find_ways(graph, node.outputs[0], partial(hands_on, graph), is_choice)
    return ways[:-1] if choice.standard_op in _TELLS_WHERE else ways


def _name_chosen(ranges: RangeTable, choice: Node) -> str:
    """The tensor that was chosen; of a place the margin inside the node, as a scan names it."""
    inner = find_inner(ranges, choice, "mean margin")
    return choice.outputs[0] if inner is None else inner.seen.tensor


def _find_sums(graph: Graph, ranges: RangeTable, small: SmallDifference) -> Iterator[Node]:
    """The nodes that add up the distance, and of what computes the points what FP16 moves by more than a 64th of the margin's root.

    Of points that are fed what moves them in any case: one term would be of other points than the rest.
    """
    distance, most = small.node.outputs[0], MOST_ROUNDED * math.sqrt(small.value)
    for writer in find_summands(graph, distance):
        yield writer
        multiplies = writer.standard_op in MATRIX_PRODUCTS or is_square(graph, writer)
        for name in writer.inputs if multiplies else ():
            seen = ranges.get(name)
            if seen is not None and seen.max_abs > most and name not in graph.constants:
                yield from find_origins(graph, ranges, name, most)
            else:
                yield from _find_movers(graph, name)


def _find_movers(graph: Graph, tensor: str) -> list[Node]:
    """What moves an input of the model to the tensor; none where it is computed."""
    source, movers = trace_moves(graph, tensor)
    return movers if source not in graph.producers and source not in graph.constants else []


def is_only_subtracted(graph: Graph, choice: Node) -> bool:
    """Whether it is taken from what it was chosen of, and nothing else: a Softmax that is written out gives the same of any number."""
    behind = [reader for reader, _ in readers(graph, choice.outputs[0])]
    is_told = choice.outputs[0] in graph.outputs
    return (
        bool(behind)
        and not is_told
        and all(reader.standard_op == "Sub" and choice.inputs[0] in reader.inputs for reader in behind)
    )


def _find_choices(graph: Graph, node: Node) -> Iterator[tuple[Node, bool]]:
    """The nodes that choose among what the node writes, behind moves, masks, bounds and a root, and whether behind a root."""
    pending, seen = [(node, False)], {node.label}
    while pending:
        writer, is_behind = pending.pop()
        for reader, slot in readers(graph, writer.outputs[0]):
            takes_root = is_root(graph, reader)
            if slot == 0 and _chooses(graph, reader):
                yield reader, is_behind
            elif (
                reader.label not in seen and hands_on(graph, reader, slot) and not (is_behind and takes_root)
            ):
                seen.add(reader.label)
                pending.append((reader, is_behind or takes_root))


def _is_left_of_a_number(graph: Graph, node: Node) -> bool:
    """Whether it is what a constant number less something is, as 1 - cos of unit vectors, half of their squared distance."""
    value = graph.find_constant(node.inputs[0]) if node.standard_op == "Sub" else None
    return value is not None and value.size == 1


def _chooses(graph: Graph, node: Node) -> bool:
    is_told = node.standard_op in _CHOOSES and not is_only_subtracted(graph, node)
    return is_told or node.standard_op in _TELLS_WHERE
