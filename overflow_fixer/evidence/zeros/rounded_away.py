"""How large a value may be that FP16 makes zero of, because it comes of a difference.

A difference of two tensors, one of them computed, is zero in FP16 wherever both are rounded to one number: at up to 2^-10 of
the smaller of their largest values. So are its products, powers, sums of squares and all else that is zero at zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from overflow_fixer.evidence.kernels.difference_kernels import HALF_STEP, PRODUCTS, read_kernels
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.evidence.zeros.near_zero import NO_SMALLER
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, MATRIX_PRODUCTS
from overflow_fixer.graph.powers import least_exponent
from overflow_fixer.records import Range, RangeTable

_FACTORS = MATRIX_PRODUCTS | {"Mul", "Conv"}
_SQUARES = frozenset({"ReduceL2", "ReduceSumSquare"})
_SUMS = _SQUARES | {"ReduceSum", "ReduceL1"}
_AS_LARGE = (NO_SMALLER - {"LpPool", "GlobalLpPool", *_SUMS}) | frozenset(
    """LeakyRelu PRelu Elu Celu Gelu Swish HardSwish Mish ThresholdedRelu Shrink Tanh Softsign Erf Sin Atan Asinh ReduceMean
    AveragePool GlobalAveragePool""".split()
)
"""Operators of whose output no more is rounded away than of what comes in."""


@lru_cache(maxsize=1)
def find_rounded_away(graph: Graph, ranges: RangeTable) -> Mapping[str, float]:
    """By tensor, the largest magnitude that FP16 may make zero of; inf where it may of all. Others have no such value.

    That is as far as the largest values of what a node reads and writes tell: an estimate.
    """
    found = _Found(graph, ranges)
    for node in graph.nodes:
        found.add(node)
    return found.of


@dataclass
class _Found:
    graph: Graph
    ranges: RangeTable
    of: dict[str, float] = field(default_factory=dict)
    source: dict[str, str] = field(default_factory=dict)
    """Of what has the elements of another tensor, moved: that tensor."""

    def add(self, node: Node) -> None:
        """Tell of what the node writes."""
        if moves(node, 0) and len(node.inputs) and node.standard_op != "Concat":
            self.source.update(dict.fromkeys(node.writes, self.source.get(node.inputs[0], node.inputs[0])))
        for name in node.writes if node.standard_op else ():
            written = self.ranges.get(name)
            value = 0.0 if written is None else self._find(node, written)
            if value > 0:
                self.of[name] = value

    def _find(self, node: Node, written: Range) -> float:
        op = node.standard_op
        if op in ADDS:
            return self._of_terms(node)
        if op in _FACTORS:
            return max(self._of_factors(node, written), self._of_kernel(node) if op in PRODUCTS else 0.0)
        if op == "Div":
            return self._scale(node.inputs[0], written)
        if op == "Pow":
            return self._scale(node.inputs[0], written, least_exponent(self.graph, node))
        if op == "Sqrt":
            return self._scale(node.inputs[0], written, 0.5)
        if op in _SUMS:
            return self._of_sum(node, written)
        hands_on = (name for slot, name in enumerate(node.inputs) if op in _AS_LARGE or moves(node, slot))
        return max((self.of.get(name, 0.0) for name in hands_on), default=0.0)

    def _of_terms(self, node: Node) -> float:
        """Where terms nearly cancel, none is larger than what the others may be; where they cannot, all must be zero."""
        known = [one for one in map(self.ranges.get, node.inputs) if one is not None]
        if len(known) < len(node.inputs) or self.graph.constants.keys() >= set(node.inputs):
            return 0.0
        largest = sorted(one.max_abs for one in known)
        away = 2 * HALF_STEP * sum(largest[:-1])
        if self._can_cancel(node, known, away):
            return away
        all_away = [self.of.get(name, 0.0) for name in node.inputs]
        return sum(all_away) if all(all_away) else 0.0

    @staticmethod
    def _can_cancel(node: Node, known: Sequence[Range], away: float) -> bool:
        """Whether the sum of what was seen of the terms may be as small as this."""
        signs = (1.0, -1.0) if node.standard_op == "Sub" else (1.0,) * len(known)
        bounds = [sorted((sign * one.min, sign * one.max)) for sign, one in zip(signs, known, strict=True)]
        return sum(low for low, _ in bounds) <= away and sum(high for _, high in bounds) >= -away

    def _of_factors(self, node: Node, written: Range) -> float:
        """Of a product, in which one factor is zero; both where they are one."""
        if self._has_bias(node):
            return 0.0
        factors = node.inputs[:2] if node.standard_op in PRODUCTS else node.inputs
        power = 2.0 if len({self.source.get(name, name) for name in factors}) == 1 else 1.0
        return max(self._scale(name, written, power) for name in factors)

    def _of_kernel(self, node: Node) -> float:
        """Of a product by constants that add up to zero, which is a difference of what lies near one another."""
        kernels = ((self.ranges.get(name), rows) for name, rows in read_kernels(self.graph, node))
        found = (
            read.max_abs * float(np.abs(rows).sum(1).max()) for read, rows in kernels if read is not None
        )
        return HALF_STEP * max(found, default=0.0)

    def _of_sum(self, node: Node, written: Range) -> float:
        """Of a sum over elements that are all zero."""
        read, away = self.ranges.get(node.inputs[0]), self.of.get(node.inputs[0], 0.0)
        if read is None or not away:
            return 0.0
        count = read.element_count / max(written.element_count, 1)
        total = count * (away * away if node.standard_op in _SQUARES else away)
        return math.sqrt(total) if node.standard_op == "ReduceL2" else total

    def _scale(self, name: str, written: Range, power: float = 1.0) -> float:
        """What becomes of it by a power or factor, as far as the largest values tell that; inf where all of it may be zero."""
        read, away = self.ranges.get(name), self.of.get(name, 0.0)
        if read is None or not away or not 0 < read.max_abs < math.inf or not power > 0:
            return 0.0
        return math.inf if away >= read.max_abs else math.pow(away / read.max_abs, power) * written.max_abs

    def _has_bias(self, node: Node) -> bool:
        if node.standard_op not in ("Gemm", "Conv") or len(node.inputs) < 3 or not node.inputs[2]:
            return False
        bias = self.ranges.get(node.inputs[2])
        return bias is None or bias.max_abs > 0
