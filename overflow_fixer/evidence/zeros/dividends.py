"""What is divided by a value that FP16 rounds to zero, where it is as small itself: the quotient is of the two."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from overflow_fixer.evidence.differences.losses import FEWEST_STEPS
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.origins import Walked
from overflow_fixer.evidence.paths import walk_back
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.evidence.zeros.cancellation import find_least_term
from overflow_fixer.evidence.zeros.divisors import Divisor, find_guards
from overflow_fixer.evidence.zeros.small_sources import NEARLY, Part, trace_badly_held
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable


def find_dividends(
    graph: Graph,
    ranges: RangeTable,
    divisor: Divisor,
    reached: tuple[Node, ...],
    walked: Walked,
) -> Iterator[tuple[Node, Node, str]]:
    """What writes that which is divided by as little, if that is as small; the division, and in words what becomes of it."""
    writers = [graph.producers[name] for name in (divisor.tensor,) if name in graph.producers]
    small = {divisor.tensor} | {name for node in reached for name in node.writes}
    guards = find_guards(graph, ranges, (*writers, *reached))
    for end in reached:
        if end.standard_op != "Div" or end.inputs[0] in small:
            continue
        dividend = _read_dividend(ranges, end, guards)
        if dividend is not None:
            makes = f"less of what it divides, which is {dividend.magnitude:.3g} at most there"
            yield from ((node, end, makes) for node in trace_badly_held(graph, ranges, dividend))
            if divisor.terms:
                yield from ((node, end, makes) for node in _find_difference(graph, ranges, dividend, walked))


def _read_dividend(ranges: RangeTable, division: Node, guards: Iterable[float]) -> Part | None:
    """What is divided where the divisor is smallest: no more than the largest quotient times that.

    None where a guard is all of the divisor: zero, as a rule, as of the rows that are masked as a whole.
    """
    least = ranges.by_tensor[division.inputs[1]].min_nonzero_abs
    magnitude = ranges.by_tensor[division.outputs[0]].max_abs * least
    is_guard = any(guard * NEARLY >= least for guard in guards)
    return None if is_guard else Part(division.inputs[0], magnitude)


def _find_difference(graph: Graph, ranges: RangeTable, dividend: Part, walked: Walked) -> Iterator[Node]:
    """What computes it, where it is a difference, too, of which FP16 leaves less than 64 steps there."""
    for node in walk_back(graph, dividend.tensor, lambda node, name: moves(node, 0)):
        least = find_least_term(ranges, node)
        if least and 0 < dividend.magnitude < FEWEST_STEPS * step_at(least):
            yield from find_sources(graph, ranges, node, dividend.magnitude, walked)
