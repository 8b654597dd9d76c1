"""Comparisons with zero or a tiny number that FP16 decides otherwise, of values within what was seen.

FP16 makes zero of 1e-10 and of what is compared with it: x² < 1e-10 guards no division there. One element near zero among
millions is no danger; so values but zero count where they are there by no chance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from overflow_fixer.evidence.measured import is_never_negative
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.evidence.zeros.near_zero import SUMS, TERMS
from overflow_fixer.evidence.zeros.shown_decisions import is_shown
from overflow_fixer.formats import FP16_MIN_NORMAL, FP16_MIN_SUBNORMAL
from overflow_fixer.graph.comparisons import Comparison, find_tiny_comparisons
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import is_square
from overflow_fixer.records import Range, RangeTable

_RARE = 2.0**-10
"""How likely the smallest of evenly spread values is as small by chance, at most."""
_ADDS_SQUARES = "ReduceSumSquare"


class LostDecision(NamedTuple):
    """A comparison, a value of which FP16 decides otherwise, and the smallest magnitude but zero of what it compares."""

    comparison: Comparison
    value: float
    least: float


def find_lost_decisions(graph: Graph, ranges: RangeTable) -> Iterator[LostDecision]:
    """Those that show, in the order of the graph."""
    for comparison in find_tiny_comparisons(graph):
        seen = ranges.get(comparison.tensor)
        value = math.nan if seen is None else _find_otherwise(graph, ranges, comparison, seen)
        if seen is not None and not math.isnan(value) and is_shown(graph, ranges, comparison):
            yield LostDecision(comparison, value, seen.min_nonzero_abs)


def _find_otherwise(graph: Graph, ranges: RangeTable, comparison: Comparison, seen: Range) -> float:
    """A value of which FP16 decides otherwise; NaN without one."""
    if 0 in (seen.min, seen.max) and comparison.is_otherwise_in_fp16(0.0):
        return 0.0
    if not seen.min_nonzero_abs > 0 or not _is_there_by_no_chance(graph, ranges, comparison.tensor, seen):
        return math.nan
    found = (one for one in _list_values(comparison, seen) if comparison.is_otherwise_in_fp16(one))
    return next(found, math.nan)


def _list_values(comparison: Comparison, seen: Range) -> Iterator[float]:
    """What was seen nearest to zero, and numbers beside that of the comparison, between what was seen."""
    least, number = seen.min_nonzero_abs, comparison.number
    beside = [number + times * FP16_MIN_SUBNORMAL / 4 for times in (1, -1, 2, -2)]
    for value in (least, -least, *(beside if number else ())):
        if seen.min <= value <= seen.max and least <= abs(value):
            yield value


def _is_there_by_no_chance(graph: Graph, ranges: RangeTable, tensor: str, seen: Range) -> bool:
    """Whether values as small as the smallest are more than chance or rounding makes of a tensor of so many elements.

    Of values that are spread evenly up to 2^-14, one in 1024 is within a step of any number.
    """
    power = _find_powers(graph, ranges).get(tensor, 1)
    if not power or not seen.max_abs > 0:
        return False
    chance = math.pow(seen.min_nonzero_abs / seen.max_abs, 1 / power) * seen.element_count
    return chance <= _RARE or seen.max_abs <= FP16_MIN_NORMAL


@lru_cache(maxsize=1)
def _find_powers(graph: Graph, ranges: RangeTable) -> Mapping[str, int]:
    """By tensor, 2 of squares, moved, scaled and added up, else 1; 0 where a difference was before, of which rounding leaves what it will."""
    found: dict[str, int] = {}
    for node in graph.nodes:
        found.update(dict.fromkeys(node.writes, _find_power(graph, ranges, node, found)))
    return found


def _find_power(graph: Graph, ranges: RangeTable, node: Node, found: Mapping[str, int]) -> int:
    """The power of what the node writes, by that of the first float that it reads."""
    op = node.standard_op
    is_squared = is_square(graph, node) or op == _ADDS_SQUARES
    if not is_squared and op in TERMS | SUMS and not _adds_one_sign(graph, ranges, node):
        return 0
    scales = node.inputs if op == "Mul" else node.inputs[1:] if op == "Div" else ()
    is_scaled = any(name in graph.constants for name in scales)
    goes_on = is_squared or is_scaled or moves(node, 0) or op in ("Abs", "Neg") or op in TERMS | SUMS
    live = (name for name in node.inputs if name not in graph.constants and graph.is_float(name))
    before = found.get(next(live, ""), 1) if goes_on else 1
    return 2 if is_squared and before else before


def _adds_one_sign(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    floats = [name for name in node.inputs if graph.is_float(name)]
    return node.standard_op != "Sub" and all(is_never_negative(ranges, name) for name in floats)
