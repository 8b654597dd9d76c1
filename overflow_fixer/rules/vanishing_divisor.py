"""A value that FP16 rounds to zero, where it is divided by, or a logarithm is taken of it.

FP32 divides by 1e-9; FP16 stores it as 0, and gives infinity or NaN. The root of 1e-12 is 1e-6, which FP16 holds,
but not where the 1e-12 was rounded to zero before. What writes the value stays in FP32, and all up to the division.
So does what it is made of that is as small, such as the terms of a sum that FP16 holds. And so does what FP16 has a few
steps of, which it makes another number of, and zero where the next data are a little smaller.
Of 1 - p, 1e-4 is zero as well, since FP16 rounds such a p to 1; then what writes p stays, too. A guard of 1e-5 beside it, which
FP16 holds, makes a number of that zero, but not FP32's. Atanh has that 1 - |x| inside. The same is true of log p, of an angle arccos p, and of
arcosh p.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from typing import NamedTuple

from overflow_fixer.evidence.differences.losses import MOST_ROUNDED
from overflow_fixer.evidence.origins import Walked, find_origins
from overflow_fixer.evidence.paths import find_leading, find_ways
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.evidence.zeros.cancellation import trace_term
from overflow_fixer.evidence.zeros.dividends import find_dividends
from overflow_fixer.evidence.zeros.divisors import Divisor, find_divisors, find_guards, guards_in_vain
from overflow_fixer.evidence.zeros.near_zero import divides, keeps_zero
from overflow_fixer.evidence.zeros.part_values import is_told_by_itself, may_hold
from overflow_fixer.evidence.zeros.small_sources import FARTHEST, carry_back, trace_small
from overflow_fixer.formats import FP16_MIN_NORMAL, FP16_UNDERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import is_root
from overflow_fixer.records import Finding, PlanPolicy, RangeTable, Severity

_KEEPS_THE_LEAST = frozenset({"ReduceMin", "ReduceProd"})


class _Passed(NamedTuple):
    """The largest guards that are passed: beside a value as it is, and beside a root of it."""

    plain: float
    beside_root: float


class _Way(NamedTuple):
    """From a divisor to what divides by it, or to where another way tells of that; `end` divides by it last."""

    divisor: Divisor
    nodes: tuple[Node, ...]
    end: Node


def find_vanishing_divisors(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each such tensor that the node writes, passes on, or divides by.

    `value` is the smallest magnitude but zero that was seen, which may have been in any batch; `limit` is 2^-25 where FP16
    makes zero of it, and 2^-21, eight of its steps, where it makes a few of them; of a difference half a step of FP16 at
    the number that it is from (of 1 - |x| under Atanh, below 1), and what Log, Acos and Acosh make of a number half a step
    from 1. Zeros themselves, which FP32 divides by as well, are the rule non_finite's matter. The severity is low where a
    sum would be held and only its terms, on average, would not.
    """
    for divisor, end in _evidence(graph, ranges).get(node.label, {}).items():
        verb = "are" if divisor.is_mean else "is"
        made = f"{end.op_type} {end.label} makes {divisor.makes}"
        reason = f"{divisor.text}, which {verb} {divisor.becomes}, and {made}"
        severity: Severity = "low" if divisor.is_mean else "high"
        yield Finding(
            "vanishing_divisor",
            node.label,
            divisor.tensor,
            divisor.least,
            divisor.limit,
            reason,
            severity=severity,
        )


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[Divisor, Node]]:
    """For each node concerned, the divisors and what divides by each."""
    found: dict[str, dict[Divisor, Node]] = {}
    ways = _find_all_ways(graph, ranges)
    told = {way.divisor.tensor for way in ways if _is_plain(way.divisor)}
    walked: Walked = {}
    for divisor, reached, end in ways:
        divisor = _say_guard(graph, ranges, divisor, reached)
        kept = reached if _grows_tiny(ranges, divisor, reached) else ()
        for node in (*_sources(graph, ranges, divisor, told, walked), *kept):
            found.setdefault(node.label, {}).setdefault(divisor, end)
        for node, division, makes in find_dividends(graph, ranges, divisor, reached, walked):
            found.setdefault(node.label, {}).setdefault(replace(divisor, makes=makes), division)
    return found


def _grows_tiny(ranges: RangeTable, divisor: Divisor, reached: tuple[Node, ...]) -> bool:
    """Whether the way to the division would lose it again: a difference of two terms, once it is right, is well in FP16's normal numbers."""
    if not divisor.terms:
        return True
    made = (ranges.get(name) for node in reached for name in node.writes)
    least = (divisor.least, *(seen.min_nonzero_abs for seen in made if seen is not None))
    return any(0 < one < FP16_MIN_NORMAL for one in least)


def _find_all_ways(graph: Graph, ranges: RangeTable) -> list[_Way]:
    """The divisors that something divides by.

    The last come first: where a way comes to a tensor that a long one of its own leads from, that tells the rest. Of a long
    chain each node would be told of all before.
    """
    ways: list[_Way] = []
    ends: dict[str, Node] = {}
    divisors = [*find_divisors(graph, ranges)]
    divided = _find_divided(graph, ranges, divisors)
    for divisor in reversed([one for one in divisors if one.inside or one.tensor in divided]):
        reached = (divisor.inside,) if divisor.inside else _reach(graph, ranges, divisor, ends)
        if reached:
            behind = (ends[name] for node in reached for name in node.writes if name in ends)
            end = max((reached[-1], *behind), key=lambda node: node.index)
            ways.append(_Way(divisor, reached, end))
            if _is_plain(divisor) and len(reached) > FARTHEST:
                ends[divisor.tensor] = end
    return ways[::-1]


def _find_divided(graph: Graph, ranges: RangeTable, divisors: Iterable[Divisor]) -> frozenset[str]:
    """The tensors that something may divide by: from no other a way is looked for, which would go through all behind it."""
    passed = max((divisor.limit for divisor in divisors), default=0.0)
    under_root = max((math.sqrt(divisor.least) for divisor in divisors if divisor.least > 0), default=0.0)
    goes_on = partial(_keeps_zero, graph, ranges, _Passed(passed, under_root))
    return find_leading(graph, goes_on, partial(divides, graph))


def _is_plain(divisor: Divisor) -> bool:
    """Whether the tensor itself is as small."""
    return divisor.cancelled is None and not divisor.parts


def _reach(graph: Graph, ranges: RangeTable, divisor: Divisor, told: Container[str]) -> tuple[Node, ...]:
    """The nodes from the tensor to those that divide by it, or write what is `told`, in order; none where none do.

    A guard under half of what FP16 rounds away from a difference is passed, too: it stands in for all of that; and so is one
    under half of the value's root, added to that. A part without a value as small is not.
    """
    passed = _Passed(FP16_UNDERFLOW, math.sqrt(divisor.least) / 2 if divisor.least > 0 else 0.0)
    if divisor.cancelled is not None:
        passed = _Passed(divisor.limit / 2, divisor.limit / 2)
    goes_on = partial(_keeps_zero, graph, ranges, passed)
    enters = partial(_hands_on, graph, ranges, divisor)

    def is_end(node: Node, slot: int) -> bool:
        is_told = _is_plain(divisor) and all(name in told and enters(node, name) for name in node.writes)
        return divides(graph, node, slot) or (is_told and bool(node.writes) and goes_on(node, slot))

    return find_ways(graph, divisor.tensor, goes_on, is_end, enters)


def _hands_on(graph: Graph, ranges: RangeTable, divisor: Divisor, node: Node, output: str) -> bool:
    """Whether what the node writes may have the small value, where it only moves elements, of which it may leave some out.

    Not where it has others as small, but not that one: these are told by themselves. Of a sum whose terms are small it is
    not asked.
    """
    if not moves(node, 0) or divisor.parts:
        return True
    if divisor.cancelled is None and is_told_by_itself(graph, ranges, output, divisor.least):
        return False
    return may_hold(graph, ranges, output, divisor.tensor, divisor.limit)


def _say_guard(graph: Graph, ranges: RangeTable, divisor: Divisor, reached: tuple[Node, ...]) -> Divisor:
    """What becomes of it beside a guard that FP16 holds: where zero was kept from the operator, another number."""
    found = find_guards(graph, ranges, reached)
    guards = [value for value in found if value > FP16_UNDERFLOW]
    if not guards:
        return divisor
    left = f"the guard of {max(guards):.3g} is all that is left"
    if divisor.is_held:
        return replace(divisor, makes=f"another number of it, and {left} of one that is a little smaller")
    return replace(divisor, makes=f"something else of it, as {left}")


def _keeps_zero(graph: Graph, ranges: RangeTable, passed: _Passed, node: Node, slot: int) -> bool:
    """Whether the node makes zero of zero: also where a constant would keep it from that, which is `passed` as it is small."""
    if node.standard_op in _KEEPS_THE_LEAST or keeps_zero(graph, node, slot):
        return True
    most = max(passed) if _reads_root(graph, node.inputs[slot]) else passed.plain
    return guards_in_vain(graph, ranges, node, slot, most)


def _reads_root(graph: Graph, tensor: str) -> bool:
    """Whether it is a square root, moved perhaps."""
    writer = graph.producers.get(tensor)
    while writer is not None and moves(writer, 0):
        writer = graph.producers.get(writer.inputs[0])
    return writer is not None and is_root(graph, writer)


def _sources(
    graph: Graph,
    ranges: RangeTable,
    divisor: Divisor,
    told: Container[str],
    walked: Walked,
) -> Iterator[Node]:
    """The nodes that compute it from what FP16 holds, or from what is `told`."""
    writer = graph.producers.get(divisor.tensor)
    if writer is None:
        return
    yield writer
    if divisor.terms:
        for term in divisor.terms:
            yield from find_origins(graph, ranges, term, MOST_ROUNDED * divisor.least, walked)
    elif divisor.cancelled is not None:
        yield from trace_term(graph, ranges, divisor.cancelled.term, divisor.cancelled.number)
    else:
        parts = divisor.parts or carry_back(graph, ranges, writer, divisor.least)
        limit = divisor.limit if divisor.is_held else FP16_UNDERFLOW
        yield from trace_small(graph, ranges, parts, told, limit)
