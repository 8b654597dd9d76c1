"""Places: coordinates so far from the origin that FP16 rounds them by a pixel and more, and what computes them.

Over 1024, FP16's steps are 1; over 8192 they are 8.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache

from onnx import TensorProto

from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS
from overflow_fixer.records import RangeTable

LARGEST_COORDINATE = 1024.0
"""Beyond it FP16's steps are 1 and more: NMS keeps 10 % more of boxes of 4 to 8 pixels, below it 3 % at most."""
FARTHEST_CELL = 32.0
"""Beyond it FP16's steps are 1/32 and more: of numbers spread evenly it rounds one in 64 to beyond the next integer, or more."""

_ADDED = {
    **dict.fromkeys("Add Sub Sum Max Min".split(), None),
    **dict.fromkeys("Neg Abs Relu Floor Ceil Round Clip Pad".split(), frozenset({0})),
    "Where": frozenset({1, 2}),
    **dict.fromkeys("ScatterElements ScatterND".split(), frozenset({0, 2})),
}
"""Operators that keep an absolute error, and of what is at which slots (None: at any)."""
_SCALED = {"Mul": frozenset({0, 1}), "Div": frozenset({0})}
_PRODUCTS = frozenset("MatMul Gemm".split())
_CONVERSION_ELEMENTS = 16
"""A constant matrix of as many turns centres and sides into corners; larger ones make features of features."""


def is_far(graph: Graph, ranges: RangeTable, tensor: str, limit: float = LARGEST_COORDINATE) -> bool:
    """Whether the tensor, not one of integers, has numbers over `limit`: from 1024 on FP16 may round them by 1/2 and more."""
    if not limit < _read_largest(graph, ranges, tensor) < math.inf:
        return False
    multiples = find_multiples(graph, ranges)
    return not multiples.is_lost(tensor) and not multiples.is_held(tensor)


def _is_coarse(graph: Graph, ranges: RangeTable, tensor: str, scale: float) -> bool:
    """Whether it is of FP32 and finite, and reaches, times `scale`, over 1024."""
    return LARGEST_COORDINATE < _read_largest(graph, ranges, tensor) * scale < math.inf


def _read_largest(graph: Graph, ranges: RangeTable, tensor: str) -> float:
    """Its max |x|; 0 where it was not measured, is not of FP32, or has NaN or infinities."""
    seen = ranges.get(tensor)
    if seen is None or not seen.is_finite or graph.dtypes.get(tensor) != TensorProto.FLOAT:
        return 0.0
    return seen.max_abs


def trace_back(graph: Graph, ranges: RangeTable, tensor: str) -> Iterator[Node]:
    """The node that writes the coordinates, and those behind it whose rounding would move them by as much.

    Through what is smaller, too, where it is a difference of terms that are as large.
    """
    multiples, hidden_terms = find_multiples(graph, ranges), _find_hidden_terms(graph, ranges)
    pending, seen = [(tensor, 1.0)], {tensor}
    while pending:
        name, scale = pending.pop()
        node = graph.producers.get(name)
        if node is None or name in graph.constants:
            continue
        yield node
        for part in _parts(graph, node):
            grown = scale * _growth(ranges, node, part, name)
            is_far_term = hidden_terms.get(part, 0.0) * grown > LARGEST_COORDINATE
            is_coarse = is_far_term or _is_coarse(graph, ranges, part, grown)
            if part not in seen and is_coarse and not multiples.is_held(part):
                seen.add(part)
                pending.append((part, grown))


@lru_cache(maxsize=1)
def _find_hidden_terms(graph: Graph, ranges: RangeTable) -> Mapping[str, float]:
    """For each sum that is smaller than a term that FP16 rounds, and what is moved of it, how large that is; through sums of sums.

    Unlike origins._find_largest_terms through no scale, and none that is not finite: of places, steps of 1 alone matter.
    """
    multiples = find_multiples(graph, ranges)
    found: dict[str, float] = {}
    for node in graph.nodes:
        is_sum = node.standard_op in ADDS
        parts = node.inputs if is_sum else node.inputs[:1] if moves(node, 0) else ()
        rounded = [name for name in parts if name not in graph.constants and not multiples.is_held(name)]
        own = (_read_largest(graph, ranges, name) for name in (rounded if is_sum else ()))
        term = max((*own, *(found.get(name, 0.0) for name in rounded)), default=0.0)
        written = (_read_largest(graph, ranges, name) for name in node.writes)
        found.update((name, term) for name, left in zip(node.writes, written, strict=True) if 0 < left < term)
    return found


def _parts(graph: Graph, node: Node) -> Iterator[str]:
    """Those inputs whose places, or their multiples, are in what the node writes."""
    op = node.standard_op
    for slot, name in enumerate(node.inputs):
        if op in _ADDED:
            slots = _ADDED[op]
            is_part = slots is None or slot in slots
        elif op in _PRODUCTS:
            is_part = slot < 2 and _is_conversion(graph, node.inputs[1 - slot])
        else:
            is_part = slot in _SCALED.get(op, ()) or moves(node, slot)
        if is_part:
            yield name


def _is_conversion(graph: Graph, tensor: str) -> bool:
    return tensor in graph.constants and math.prod(graph.constants[tensor].dims) <= _CONVERSION_ELEMENTS


def _growth(ranges: RangeTable, node: Node, part: str, output: str) -> float:
    """How much larger a product is than the factor; 1 of what is added or moved."""
    read, written = ranges.get(part), ranges.get(output)
    if node.standard_op not in (*_SCALED, *_PRODUCTS) or read is None or written is None or not read.max_abs:
        return 1.0
    return written.max_abs / read.max_abs
