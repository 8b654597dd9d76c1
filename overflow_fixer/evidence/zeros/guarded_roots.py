"""Roots of what a constant keeps from zero, √(x² + 1e-12), and whether it matters that one is zero and not 1e-6.

It does where something divides by it, takes its logarithm, tells it from zero, or gives it out: as it is, in sums, or scaled.
Beside other data, or a bias, 1e-6 is nothing: a training needs such a guard for its gradient, and the network none.
"""

from __future__ import annotations

import math
from functools import lru_cache

from onnx import TensorProto

from overflow_fixer.evidence.paths import find_leading
from overflow_fixer.evidence.semantics import read_epsilon
from overflow_fixer.evidence.zeros.near_zero import NO_SMALLER, SUMS, divides, keeps_zero
from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, CASTS, COMPARES, UNSEEN
from overflow_fixer.graph.powers import read_exponent
from overflow_fixer.records import RangeTable

_TAKES_BIAS = frozenset("Conv ConvTranspose Gemm".split())
_NORMALISES = frozenset(name for name in SUMS if name.endswith("Normalization"))
_TELLS_APART = COMPARES | {"Equal"}
_LARGEST_GUARD = 2.0**-10
"""A larger constant that is added is a bias, beside which the root of one that FP16 makes zero of is nothing."""


def is_harmless(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    """Whether it is a root, Sqrt or Pow, and it does not matter that it is zero where FP32 has the root of 2^-25 or less."""
    is_root = node.standard_op == "Sqrt" or 0 < read_exponent(graph, node) < 1
    return is_root and node.outputs[0] not in _list_shown(graph, ranges)


@lru_cache(maxsize=1)
def _list_shown(graph: Graph, ranges: RangeTable) -> frozenset[str]:
    """The tensors of which a value as small is divided by, given out, or read where nobody looks."""
    shown = {*graph.outputs, *(name for node in graph.nodes for name in node.captured)}

    def goes_on(reader: Node, slot: int) -> bool:
        return _stays_small(graph, ranges, reader, slot)

    def is_end(reader: Node, slot: int) -> bool:
        gives_out = not shown.isdisjoint(reader.writes) and goes_on(reader, slot)
        is_told = divides(graph, reader, slot) or _tells_from_zero(graph, ranges, reader, slot)
        return reader.standard_op in UNSEEN or is_told or _scales_up(reader, slot) or gives_out

    return find_leading(graph, goes_on, is_end) | shown


def _tells_from_zero(graph: Graph, ranges: RangeTable, node: Node, slot: int) -> bool:
    """Whether the node makes true, or one, of all but zero, or compares what it reads there with a constant that is as small."""
    is_made_true = node.standard_op in CASTS and graph.dtypes.get(node.outputs[0]) == TensorProto.BOOL
    if is_made_true or node.standard_op in ("Sign", "Ceil"):
        return True
    constants = _list_constants(graph, ranges, node, slot)
    return node.standard_op in _TELLS_APART and max(constants, default=math.inf) <= _LARGEST_GUARD


def _scales_up(node: Node, slot: int) -> bool:
    """Whether it is a normalisation whose epsilon is as small as what the root is of: it divides by nothing else that is larger."""
    return slot == 0 and node.standard_op in _NORMALISES and read_epsilon(node) <= FP16_UNDERFLOW


def _stays_small(graph: Graph, ranges: RangeTable, node: Node, slot: int) -> bool:
    """Whether what the node makes of values as small may be as small: nothing larger is added to them."""
    op = node.standard_op
    if op in SUMS:
        return not (op in _TAKES_BIAS and any(node.inputs[2:]))
    if op in ADDS:
        return _adds_little(graph, ranges, node, slot)
    return op in NO_SMALLER or keeps_zero(graph, node, slot)


def _adds_little(graph: Graph, ranges: RangeTable, node: Node, slot: int) -> bool:
    """Whether constants that are added are as small, and so is what was computed: of that, a sum that was never negative tells."""
    constants = _list_constants(graph, ranges, node, slot)
    made = ranges.get(node.outputs[0])
    is_small = made is not None and made.min >= 0 and made.min_nonzero_abs <= _LARGEST_GUARD
    are_all = len(constants) == len(node.beside(slot))
    return max(constants, default=0.0) <= _LARGEST_GUARD and (are_all or is_small)


def _list_constants(graph: Graph, ranges: RangeTable, node: Node, slot: int) -> list[float]:
    """The largest of each constant beside the slot; infinity of one that has NaN or was not measured."""
    seen = [ranges.get(name) for name in node.beside(slot) if name in graph.constants]
    return [math.inf if one is None or one.nan_count else one.max_abs for one in seen]
