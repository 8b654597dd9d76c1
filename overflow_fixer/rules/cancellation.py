"""A difference from one number of which FP16 makes zero: 1 - p, where FP16 rounds p to 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from overflow_fixer.formats import FP16_OVERFLOW, FP16_UNDERFLOW, round_to_fp16
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Range, RangeTable
from overflow_fixer.rules.paths import walk_back
from overflow_fixer.rules.semantics import moves

_KEEPS_DIGITS = frozenset("Clip Max Min Where Abs Neg Sqrt Mul Div Pow".split())
"""Operators whose output is as near to a number as their input is."""


@dataclass(frozen=True)
class Cancellation:
    """The tensor `term`, which FP16 rounds to `number` where it is nearest to it."""

    term: str
    number: float


def find_cancellation(graph: Graph, ranges: RangeTable, node: Node) -> Cancellation | None:
    """Of Add or Sub with a constant, where the smallest result but 0 that was measured is 0 in FP16."""
    if node.standard_op not in ("Add", "Sub") or not any(name in graph.constants for name in node.inputs):
        return None
    term, constant = sorted(node.inputs, key=lambda name: name in graph.constants)
    read, left = ranges.get(term), ranges.get(node.outputs[0])
    number = _read_number(ranges, constant) * (-1 if node.standard_op == "Add" else 1)
    if read is None or left is None or not FP16_UNDERFLOW < abs(number) < FP16_OVERFLOW:
        return None
    is_rounded = _is_rounded_to(number, read, left.min_nonzero_abs)
    return Cancellation(term, number) if is_rounded else None


def _is_rounded_to(number: float, term: Range, least: float) -> bool:
    """Whether FP16 rounds to the number what is so near to it, on each side on which the term was seen."""
    sides = [side for side, is_there in ((-1, term.min < number), (1, term.max > number)) if is_there]
    if not sides or not 0 < least < math.inf:
        return False
    nearest = number + np.asarray(sides) * least
    return bool(np.all(round_to_fp16(nearest) == round_to_fp16(np.asarray(number))))


def _read_number(ranges: RangeTable, constant: str) -> float:
    """NaN where it is not one number throughout."""
    seen = ranges.get(constant)
    return seen.min if seen is not None and seen.min == seen.max else math.nan


def trace_term(graph: Graph, tensor: str) -> Iterator[Node]:
    """The node that writes the term, and those behind it whose rounding would bring it to the number as well."""

    def keeps_digits(node: Node, name: str) -> bool:
        is_computed = graph.is_float(name) and name not in graph.constants
        return is_computed and (node.standard_op in _KEEPS_DIGITS or moves(node, 0))

    return walk_back(graph, tensor, keeps_digits)
