"""A difference of nearly equal numbers that is divided by: a variance as E[x²] − E[x]², or the largest x less the least.

What FP16 takes from it is a large share of it, and so of the quotient. What is divided by as little (x less its mean, or
its least) is such a difference itself, as a rule: what FP16 takes from it is made as large.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial
from itertools import chain, islice

from overflow_fixer.evidence.differences.kept_small import is_largest, keeps_small, may_keep
from overflow_fixer.evidence.differences.losses import (
    FEWEST_STEPS,
    FP32_NOISE,
    STEPS_OF_A_DIVISOR,
)
from overflow_fixer.evidence.differences.small_differences import SmallDifference, SmallLoss, find_small
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.measured import find_inner, read_maxima
from overflow_fixer.evidence.origins import Walked
from overflow_fixer.evidence.paths import find_leading, find_ways, walk_back
from overflow_fixer.evidence.semantics import moves, readers
from overflow_fixer.evidence.zeros.near_zero import divides
from overflow_fixer.formats import FP16_MIN_NORMAL
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable

_MOST_BATCHES = 8
"""Of those in which a difference is small, the worst that are followed to what divides by it."""


def find_divided(graph: Graph, ranges: RangeTable, walked: Walked) -> Iterator[SmallLoss]:
    """Each difference once: those that are divided by, in the worst batch that shows it; then what is divided by these.

    The nodes are found as they are asked for.
    """
    told = set[str]()
    ways: list[tuple[SmallDifference, tuple[Node, ...]]] = []
    for small, way in _find_divisors(graph, ranges):
        told.add(small.node.label)
        ways.append((small, way))
        kept = way if _grows_tiny(ranges, small, way) else ()
        verb = "takes its logarithm" if way[-1].standard_op == "Log" else "divides by it"
        made = f"{way[-1].op_type} {way[-1].label} {verb}"
        sources = find_sources(graph, ranges, small.node, small.value, walked)
        yield SmallLoss(small, chain(sources, kept), made)
    for divisor, way in ways:
        for end, small in _find_dividends(graph, ranges, divisor, way):
            if small.node.label not in told:
                told.add(small.node.label)
                made = f"{end.op_type} {end.label} scales it up"
                yield SmallLoss(small, find_sources(graph, ranges, small.node, small.value, walked), made)


def _find_divisors(graph: Graph, ranges: RangeTable) -> Iterator[tuple[SmallDifference, tuple[Node, ...]]]:
    """Each difference that is divided by, and the nodes from it to what does so, in order."""
    for node in graph.nodes:
        if _may_be_divided_by(graph).isdisjoint(node.outputs[:1]):
            continue
        for small in islice(find_small(graph, ranges, node, STEPS_OF_A_DIVISOR), _MOST_BATCHES):
            goes_on = partial(_is_lost_behind, graph, ranges, small)
            way = find_ways(graph, node.outputs[0], goes_on, partial(divides, graph))
            if way:
                yield small, way
                break


@lru_cache(maxsize=1)
def _may_be_divided_by(graph: Graph) -> frozenset[str]:
    """The tensors that something divides by, whatever the data are."""
    return find_leading(graph, partial(may_keep, graph), partial(divides, graph))


def _grows_tiny(ranges: RangeTable, small: SmallDifference, way: tuple[Node, ...]) -> bool:
    """Whether the difference, or what is made of it, is below FP16's normal numbers in the batch, where digits are lost again."""
    made = (name for node in (small.node, *way) for name in node.writes)
    return any(0 < read_maxima(ranges, name)[small.batch] < FP16_MIN_NORMAL for name in made)


def _is_lost_behind(graph: Graph, ranges: RangeTable, small: SmallDifference, node: Node, slot: int) -> bool:
    """Whether what comes in there is zero where it goes out, or nearly so, or added to less than its limit.

    An epsilon over the difference hides nothing where it is a few of FP16's steps at the terms itself; but of what does not vary,
    of which FP32 leaves as little as it rounds, FP16 leaves zero, unless it squares before.
    """
    if keeps_small(graph, ranges, small.batch, node, slot):
        return True
    is_of_squares = find_inner(ranges, small.node, "cancellation") is not None
    is_noise = small.value <= FP32_NOISE * small.largest and not is_of_squares
    is_itself = read_maxima(ranges, node.inputs[slot])[small.batch] == small.value
    is_sum = node.standard_op in ("Add", "Sum") and is_itself and not is_noise
    return is_sum and is_largest(ranges, small.batch, node, slot, small.limit)


def _find_dividends(
    graph: Graph, ranges: RangeTable, divisor: SmallDifference, way: tuple[Node, ...]
) -> Iterator[tuple[Node, SmallDifference]]:
    """The differences that the ends of the way divide, as they are, moved or as factors, in the batch of the divisor, and by which end."""
    small = {divisor.node.outputs[0], *chain.from_iterable(node.writes for node in way)}
    for end in way:
        is_end = any(name in small and divides(graph, end, slot) for slot, name in enumerate(end.inputs))
        for tensor in _find_divided_by(graph, end) if is_end else ():
            for node in walk_back(graph, tensor, partial(_hands_on_share, graph)):
                found = find_small(graph, ranges, node, FEWEST_STEPS)
                yield from ((end, one) for one in found if one.batch == divisor.batch)


def _hands_on_share(graph: Graph, node: Node, name: str) -> bool:
    """Whether as large a share of what the node writes is lost as of what it reads there."""
    return name not in graph.constants and (node.standard_op in ("Mul", "Div") or moves(node, 0))


def _find_divided_by(graph: Graph, end: Node) -> Iterator[str]:
    """What a quotient is of; of a reciprocal, what it is multiplied by, behind constant factors and moves."""
    if end.standard_op == "Div" and end.inputs[0] not in graph.constants:
        yield end.inputs[0]
        return
    pending, seen = [end] if end.standard_op != "Log" else [], {end.label}
    while pending:
        for reader, slot in readers(graph, pending.pop().outputs[0]):
            other = reader.inputs[1 - slot] if reader.standard_op == "Mul" else ""
            if other and other not in graph.constants:
                yield other
            elif (other or moves(reader, slot)) and reader.label not in seen:
                seen.add(reader.label)
                pending.append(reader)
