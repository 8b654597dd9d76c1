"""Tensors that are made of integers, inputs and constants by arithmetic: positions, coordinates, frequencies."""

from __future__ import annotations

import math
from functools import lru_cache

from overflow_fixer.evidence.semantics import moves, read_reduction
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import SCATTERS

_TABLE_ELEMENTS = 1 << 16
_ARITHMETIC = frozenset(
    """Add Sub Sum Mul Div Neg Abs MatMul Gemm Einsum Pow Reciprocal Sqrt Exp Log Mod Floor Ceil Round Max Min Clip
    Where Range CumSum ReduceSum ReduceMax ReduceMin ConstantOfShape OneHot Trilu Pad Sign""".split()
)


@lru_cache(maxsize=1)
def find_coordinates(graph: Graph) -> frozenset[str]:
    """Every such tensor, the constants, inputs and integers themselves included."""
    found = {*graph.constants, *(spec.name for spec in graph.inputs)}
    for node in graph.nodes:
        is_made = _computes_plainly(node, graph) and all(name in found for name in node.reads)
        found.update(name for name in node.writes if is_made or not graph.is_float(name))
    return frozenset(found)


def _computes_plainly(node: Node, graph: Graph) -> bool:
    """Whether the node only computes or moves: looking words up in a large table makes data of them."""
    if node.standard_op.startswith("Gather") and node.inputs[0] in graph.constants:
        return math.prod(graph.constants[node.inputs[0]].dims) <= _TABLE_ELEMENTS
    return node.standard_op in _ARITHMETIC or moves(node, 0) or _puts(node)


def _puts(node: Node) -> bool:
    """Whether it puts elements in the place of others, as an assignment to a slice is exported."""
    return node.standard_op in SCATTERS and read_reduction(node) == b"none"
