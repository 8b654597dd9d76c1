"""A result of which FP16 makes zero, since a term is rounded to the one number of which that is the result.

Of 1 - p it is where FP16 rounds p to 1, and so of log x, arccos x and arcosh x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from overflow_fixer.evidence.differences.losses import FP32_NOISE
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.measured import find_least
from overflow_fixer.evidence.paths import walk_back
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.formats import FP16_OVERFLOW, FP16_UNDERFLOW, round_to_fp16, step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, MATRIX_PRODUCTS
from overflow_fixer.records import Array, Range, RangeTable

_CHOOSES = frozenset("Clip Max Min Where".split())
_KEEPS_DIGITS = _CHOOSES | frozenset("Abs Neg Sqrt Mul Div Pow".split())
"""Operators whose output is as near to a number as their input is."""
_ADDS_UP = ADDS | frozenset("Mean ReduceSum ReduceMean".split())
_LEAST_SHARE = 16
"""A term of a sum that is smaller than the number by more is rounded by less than matters."""


@dataclass(frozen=True)
class _Function:
    """A function that is zero at 1, by its inverse; `sides` of 1 on which it is defined, -1 below."""

    inverse: Callable[[Array], Array]
    sides: tuple[int, ...]
    limit: float
    """The largest |result| that FP16 may make zero of, its input rounded to 1."""


_ZERO_AT_1: Mapping[str, _Function] = {
    "Log": _Function(np.exp, (-1, 1), math.log1p(2.0**-11)),
    "Acos": _Function(np.cos, (-1,), math.acos(1 - 2.0**-12)),
    "Acosh": _Function(np.cosh, (1,), math.acosh(1 + 2.0**-11)),
}


@dataclass(frozen=True)
class Cancellation:
    """The tensor `term`, which FP16 rounds to `number` where it is nearest to it; `function` of what that is zero.

    It is a difference where there is no `function`: from the number, or from the tensor `other`, and the number is what both
    are at least.
    """

    term: str
    number: float
    function: str = ""
    other: str = ""

    @property
    def limit(self) -> float:
        """The largest magnitude of a result that FP16 may make zero of."""
        if self.function:
            return _ZERO_AT_1[self.function].limit
        return step_at(self.number) / (1 if self.other else 2)

    @property
    def text(self) -> str:
        if self.function:
            return f"{self.function} of what FP16 rounds to {self.number:g}"
        if self.other:
            return f"a difference of {self.term} and {self.other}, of {self.number:g} and more"
        return f"a difference from {self.number:g}"


def find_cancellation(graph: Graph, ranges: RangeTable, node: Node) -> Cancellation | None:
    """Of Add or Sub, of Log, Acos and Acosh, where the smallest result but 0 that was measured is 0 in FP16."""
    if node.standard_op in _ZERO_AT_1:
        return _find_near_1(graph, ranges, node)
    if node.standard_op not in ("Add", "Sub"):
        return None
    if graph.constants.keys().isdisjoint(node.inputs):
        return _find_of_two(graph, ranges, node)
    term, constant = sorted(node.inputs, key=lambda name: name in graph.constants)
    read, left = ranges.get(term), ranges.get(node.outputs[0])
    number = _read_number(ranges, constant) * (-1 if node.standard_op == "Add" else 1)
    if read is None or left is None or not FP16_UNDERFLOW < abs(number) < FP16_OVERFLOW:
        return None
    sides = _find_sides(number, read)
    is_rounded = _is_rounded_to(number, number + sides * left.min_nonzero_abs, left)
    return Cancellation(term, number) if is_rounded else None


def _find_near_1(graph: Graph, ranges: RangeTable, node: Node) -> Cancellation | None:
    """Of a function that is zero at 1, computed in FP32; the input that gave the smallest result is told by its inverse."""
    term, function = node.inputs[0], _ZERO_AT_1[node.standard_op]
    read, left = ranges.get(term), ranges.get(node.outputs[0])
    if read is None or left is None or term in graph.constants:
        return None
    sides = np.asarray([side for side in _find_sides(1.0, read) if side in function.sides])
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = function.inverse(sides * left.min_nonzero_abs).astype(np.float32)
    return Cancellation(term, 1.0, node.standard_op) if _is_rounded_to(1.0, nearest, left) else None


def _find_of_two(graph: Graph, ranges: RangeTable, node: Node) -> Cancellation | None:
    """Of two tensors of one sign, of which the result is less than a step of FP16 even where both are least.

    FP16 makes 0 of it or a step there. None of what FP32 itself rounds.
    """
    left, number = ranges.get(node.outputs[0]), find_least_term(ranges, node)
    if left is None or not 0 < number < FP16_OVERFLOW or not find_lost_terms(graph, ranges, node):
        return None
    term, other = node.inputs
    is_lost = FP32_NOISE * number < left.min_nonzero_abs < step_at(number)
    return Cancellation(term, number, other=other) if is_lost else None


def find_least_term(ranges: RangeTable, node: Node) -> float:
    """What both terms of a difference are at least, in magnitude, where they are nearly equal; 0 where they may be near zero."""
    if node.standard_op not in ("Add", "Sub"):
        return 0.0
    first, second = (find_least(ranges, name) for name in node.inputs)
    is_difference = (first * second > 0) == (node.standard_op == "Sub")
    return max(abs(first), abs(second)) if is_difference and first and second else 0.0


def _find_sides(number: float, term: Range) -> Array:
    """On which sides of the number, -1 and 1, the term was seen."""
    return np.asarray([side for side, there in ((-1, term.min < number), (1, term.max > number)) if there])


def _is_rounded_to(number: float, nearest: Array, left: Range) -> bool:
    """Whether FP16 rounds to the number what is as near to it as gives the smallest result, on each side on which that may be."""
    if not nearest.size or not 0 < left.min_nonzero_abs < math.inf:
        return False
    return bool(np.all(round_to_fp16(nearest) == round_to_fp16(np.asarray(number))))


def _read_number(ranges: RangeTable, constant: str) -> float:
    """NaN where it is not one number throughout."""
    seen = ranges.get(constant)
    return seen.min if seen is not None and seen.min == seen.max else math.nan


def trace_term(graph: Graph, ranges: RangeTable, tensor: str, number: float) -> Iterator[Node]:
    """The node that writes the term, and those behind it whose rounding would bring it to the number as well.

    Through a sum these are terms that reach a 16th of the number, and through a product of data (a cosine of unit vectors)
    its factors. Of 1 - q that is near 1, q is small.
    """
    near = {tensor}

    def keeps_digits(node: Node, name: str) -> bool:
        if not graph.is_float(name) or name in graph.constants:
            return False
        is_near = not near.isdisjoint(node.writes)
        if node.standard_op in _ADDS_UP:
            rest = _read_rest(ranges, node, name, number) if is_near else math.nan
            return _is_large(ranges, name, number) and not abs(rest) * _LEAST_SHARE < abs(number)
        if node.standard_op in MATRIX_PRODUCTS:
            is_data = graph.constants.keys().isdisjoint(node.inputs[:2])
            return is_data and _is_large(ranges, name, number)
        is_chosen = node.standard_op in _CHOOSES or moves(node, 0)
        near.update([name] if is_near and is_chosen else [])
        return node.standard_op in _KEEPS_DIGITS or is_chosen

    return walk_back(graph, tensor, keeps_digits)


def _is_large(ranges: RangeTable, name: str, number: float) -> bool:
    """Whether a term is not much smaller than the number."""
    seen = ranges.get(name)
    return seen is not None and seen.max_abs * _LEAST_SHARE >= abs(number)


def _read_rest(ranges: RangeTable, node: Node, name: str, number: float) -> float:
    """What `name` is where the node adds one number to it, or takes one from the other, and writes `number`; NaN elsewhere."""
    if node.standard_op not in ("Add", "Sub") or node.inputs[0] == node.inputs[1]:
        return math.nan
    other = _read_number(ranges, node.inputs[1 - node.inputs.index(name)])
    if node.standard_op == "Add":
        return number - other
    return number + other if name == node.inputs[0] else other - number
