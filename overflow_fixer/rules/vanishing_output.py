"""An output of the model with values under 2^-24, FP16's least number: it makes zero of them, or 2^-24.

A variance, a rate, a likelihood of 1e-9 is never zero in FP32, and what comes after the model may divide by it, or
take its logarithm: what computes it stays in FP32. What is about zero by chance, what is zero elsewhere, and shares of a
whole (Softmax, Sigmoid and products of them) are told of and left alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from onnx import TensorProto

from overflow_fixer.evidence.paths import find_ways, walk_back
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.evidence.zeros.near_zero import ELEMENTWISE, NO_SMALLER, SUMS, TERMS
from overflow_fixer.formats import FP16_MIN_SUBNORMAL, FP16_UNDERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.softmax import find_shared_out
from overflow_fixer.records import Action, Finding, PlanPolicy, Range, RangeTable

_SHARES = frozenset("Softmax Sigmoid HardSigmoid".split())
_ADDS = (SUMS | TERMS | {"BatchNormalization"}) - NO_SMALLER
"""Operators whose output may be other than zero where an input is zero."""


@dataclass(frozen=True)
class _Told:
    """What is told of an output at a node: the smallest magnitude in what the node hands to it."""

    least: float
    reason: str
    action: Action = "pin"


_Evidence = dict[str, dict[str, _Told]]
"""By the label of the node concerned, and by output."""


def find_vanishing_outputs(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each such output that the node writes, or computes what is moved into it.

    Pins are asked for where every value that was seen has one sign, and none is zero, and it is no share. Of what is
    left there is one finding an output, for the record, at what computes the smallest of it. None where there is NaN or
    infinity, nothing but zeros, or no value. `value` is the smallest magnitude but zero, where that was taken.
    """
    for output, told in _evidence(graph, ranges).get(node.label, {}).items():
        values = told.least, FP16_MIN_SUBNORMAL
        yield Finding("vanishing_output", node.label, output, *values, told.reason, action=told.action)


class _Moved(NamedTuple):
    """A tensor of which an output has elements, moved there.

    `alone` is the largest of the smallest magnitudes but zero of what holds these alone, `joined` of what holds others as well,
    behind a Concat: none of them is smaller. -inf where none was taken, infinity where there are none but zeros and NaN.
    `is_signed`: they are all positive, or all negative.
    """

    tensor: str
    alone: float = -math.inf
    joined: float = -math.inf
    is_signed: bool = False

    @property
    def least(self) -> float:
        return max(self.alone, self.joined)

    def back_to(self, node: Node, tensor: str) -> _Moved:
        """Its elements in what the node moves."""
        if node.standard_op != "Concat":
            return self._replace(tensor=tensor)
        return _Moved(tensor, joined=self.least, is_signed=self.is_signed)

    def seen_as(self, seen: Range | None) -> _Moved:
        """With what was seen of the tensor."""
        if seen is None or seen.min_nonzero_abs == -math.inf:
            return self
        own = math.inf if math.isnan(seen.min_nonzero_abs) else seen.min_nonzero_abs
        is_signed = self.is_signed or seen.min > 0 or seen.max < 0
        return self._replace(alone=max(self.alone, own), is_signed=is_signed)


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> _Evidence:
    found: _Evidence = {}
    for output in graph.outputs:
        small = [
            moved for moved in _moved_into(graph, ranges, output) if _is_small_there(graph, ranges, moved)
        ]
        reasons = {moved: _reason_to_leave(graph, ranges, moved) for moved in small}
        for moved in (one for one in small if not reasons[one]):
            told = _tell(output, moved.least, "is never zero and")
            for node in (*_writers(graph, ranges, moved.tensor), *_movers(graph, moved.tensor, output)):
                found.setdefault(node.label, {}).setdefault(output, told)
        left = [moved for moved in small if reasons[moved]]
        for moved in sorted(left, key=lambda one: one.least)[:1]:
            told = _tell(output, moved.least, "", reasons[moved])
            found.setdefault(graph.producers[moved.tensor].label, {}).setdefault(output, told)
    return found


def _tell(output: str, least: float, what: str, why_left: str = "") -> _Told:
    rounded = "zero" if least <= FP16_UNDERFLOW else f"{FP16_MIN_SUBNORMAL:.3g}"
    said = " ".join(filter(None, ("the output", output, what, f"has values down to {least:.3g}")))
    reason = f"{said}, which FP16 makes {rounded}"
    return _Told(least, f"{reason}; not pinned: {why_left}", "none") if why_left else _Told(least, reason)


def _is_small_there(graph: Graph, ranges: RangeTable, moved: _Moved) -> bool:
    """Whether the output has values under 2^-24 of it, and it is computed in FP32, without NaN and infinities."""
    is_small = moved.alone > -math.inf and moved.least < FP16_MIN_SUBNORMAL
    return is_small and _find_computed(graph, ranges, moved.tensor) is not None


def _reason_to_leave(graph: Graph, ranges: RangeTable, moved: _Moved) -> str:
    """Why the values under 2^-24 of a tensor are no matter; "" where they are."""
    seen = ranges.by_tensor[moved.tensor]
    if _is_share(graph, moved.tensor):
        return "it is a share of a whole, of which one as small is none"
    if moved.is_signed:
        return ""
    if seen.min < 0 < seen.max:
        return "it has values of both signs, so that small ones are about zero by chance"
    return "zeros are among its values, so that its reader takes zeros"


def _moved_into(graph: Graph, ranges: RangeTable, output: str) -> Iterator[_Moved]:
    """The tensors of which the output has its values, themselves not moved but computed."""
    pending = [_Moved(output).seen_as(ranges.get(output))]
    seen = set(pending)
    while pending:
        moved = pending.pop()
        node = graph.producers.get(moved.tensor)
        if node is None or moved.tensor in graph.constants:
            continue
        if not moves(node, 0):
            yield moved
            continue
        sources = [name for slot, name in enumerate(node.inputs) if moves(node, slot)]
        parts = dict.fromkeys(moved.back_to(node, name).seen_as(ranges.get(name)) for name in sources)
        fresh = [part for part in parts if part not in seen]
        seen.update(fresh)
        pending += fresh


def _movers(graph: Graph, tensor: str, output: str) -> tuple[Node, ...]:
    """The nodes that move the tensor's values into the output."""
    return find_ways(graph, tensor, moves, lambda node, slot: moves(node, slot) and output in node.outputs)


def _writers(graph: Graph, ranges: RangeTable, tensor: str) -> Iterator[Node]:
    """The node that writes the tensor, and those before it that write values as small for it, of whatever sign."""

    def keeps_small(node: Node, name: str) -> bool:
        if node.standard_op in _ADDS:
            return _vanishes(graph, ranges, name)
        if node.standard_op in NO_SMALLER and _is_not_taken(graph, ranges, name):
            return not any(_is_small_constant(graph, ranges, one) for one in node.inputs)
        hands_on = node.standard_op in ELEMENTWISE | NO_SMALLER or moves(node, 0)
        return hands_on and _is_small(graph, ranges, name)

    return walk_back(graph, tensor, keeps_small)


def _is_small_constant(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    """Whether it is a constant, such as a bound, with values under 2^-24 that are not zero."""
    seen = ranges.get(tensor)
    return tensor in graph.constants and seen is not None and 0 < seen.min_nonzero_abs < FP16_MIN_SUBNORMAL


def _is_not_taken(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    """Whether it is computed in FP32, of finite values of both signs of which nobody took the smallest magnitude."""
    seen = _find_computed(graph, ranges, tensor)
    return seen is not None and seen.min_nonzero_abs == -math.inf


def _vanishes(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    """Whether it is small, of one sign and never zero."""
    seen = ranges.get(tensor)
    return seen is not None and (seen.min > 0 or seen.max < 0) and _is_small(graph, ranges, tensor)


def _is_small(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    """Whether it is computed in FP32, has values under 2^-24, and neither NaN nor infinities."""
    seen = _find_computed(graph, ranges, tensor)
    return seen is not None and 0 < seen.min_nonzero_abs < FP16_MIN_SUBNORMAL


def _find_computed(graph: Graph, ranges: RangeTable, tensor: str) -> Range | None:
    """The range of a tensor that is computed in FP32, without NaN and infinities."""
    seen = ranges.get(tensor)
    if seen is None or tensor in graph.constants or graph.dtypes.get(tensor) != TensorProto.FLOAT:
        return None
    return seen if seen.is_finite else None


def _is_share(graph: Graph, tensor: str) -> bool:
    """Whether it is a Softmax or Sigmoid, or a product of such, moved or not."""
    pending, seen = [tensor], {tensor}
    while pending:
        node = graph.producers.get(pending.pop())
        if node is None or not (_makes_share(graph, node) or node.standard_op == "Mul" or moves(node, 0)):
            return False
        if not _makes_share(graph, node):
            fresh = [
                n
                for s, n in enumerate(node.inputs)
                if (moves(node, s) or node.standard_op == "Mul") and n not in seen
            ]
            seen.update(fresh)
            pending += fresh
    return True


def _makes_share(graph: Graph, node: Node) -> bool:
    """Whether it is such an operator, or the division by a sum that ends a softmax written out."""
    return node.standard_op in _SHARES or find_shared_out(graph, node) is not None
