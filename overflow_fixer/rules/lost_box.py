"""Boxes so far from the origin that FP16 rounds their corners by a pixel and more.

Over 1024, FP16's steps are 1; over 8192 they are 8. Boxes of a few pixels that are moved there (class-aware NMS adds a
multiple of the class) lose their sides and their overlap: NMS keeps boxes that it should drop. The same where a side is
computed, x2 - x1: what the corners lost is a large share of it. What computes the corners stays in FP32, back to where
its values are small, or held exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from onnx import TensorProto

from overflow_fixer.graph import Graph, Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.multiples import EXACT_STEPS, find_multiples
from overflow_fixer.rules.semantics import moves, operator

LARGEST_COORDINATE = 1024.0
"""Beyond it FP16's steps are 1 and more: NMS keeps 10 % more of boxes of 4 to 8 pixels, below it 3 % at most."""
_FEWEST_STEPS = 64
"""A difference of less is too small: where a tensor's largest value is, rounding noise nears 30 dB."""

_BOXES = {"NonMaxSuppression": 0, "RoiAlign": 1, "MaxRoiPool": 1}
"""Operators that read boxes, and at which slot."""
_DIFFERENCES = frozenset("Sub Add Sum".split())
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


@dataclass(frozen=True)
class _Use:
    """A node to which the places in some tensors matter, and why, in words."""

    node: Node
    tensors: tuple[str, ...]
    reason: str


def find_lost_boxes(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each tensor of coordinates over 1024 that the node computes, cuts or compares boxes by, or subtracts.

    `value` is its max |x|. None where it has NaN or infinities, where FP16 is known to hold every value, and for
    integers, which the rule lost_integer looks after.
    """
    for tensor, reason in _evidence(graph, ranges).get(node.label, {}).items():
        seen = ranges.by_tensor[tensor]
        batch = ranges.worst_batch_of(seen) if tensor not in graph.constants else None
        yield Finding("lost_box", node.label, tensor, seen.max_abs, LARGEST_COORDINATE, reason, batch)


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[str, str]]:
    """For each node concerned, the coordinates and why they matter."""
    found: dict[str, dict[str, str]] = {}
    for use in _find_uses(graph, ranges):
        for tensor in use.tensors:
            for node in (use.node, *_origins(graph, ranges, tensor)):
                found.setdefault(node.label, {}).setdefault(tensor, use.reason)
    return found


def _find_uses(graph: Graph, ranges: RangeTable) -> Iterator[_Use]:
    for node in graph.nodes:
        op = operator(node)
        if op in _BOXES:
            boxes = node.inputs[_BOXES[op]]
            if _is_far(graph, ranges, boxes):
                text = f"{_describe(ranges, [boxes])}, and {op} {node.label} takes them for boxes"
                yield _Use(node, (boxes,), text)
        elif op in _DIFFERENCES:
            tensors = tuple(dict.fromkeys(name for name in node.inputs if _is_far(graph, ranges, name)))
            if tensors and _is_lost(ranges, node, tensors):
                most = ranges.by_tensor[node.outputs[0]].max_abs
                text = (
                    f"{_describe(ranges, tensors)}; their difference {node.outputs[0]} is {most:.4g} at most"
                )
                yield _Use(node, tensors, text)


def _is_far(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    """Whether the tensor, not one of integers, has coordinates that FP16 may round by 1/2 and more."""
    if not _is_coarse(graph, ranges, tensor, 1.0):
        return False
    multiples = find_multiples(graph, ranges)
    return not multiples.is_lost(tensor) and not multiples.is_held(tensor)


def _is_coarse(graph: Graph, ranges: RangeTable, tensor: str, scale: float) -> bool:
    """Whether it is of FP32 and finite, and reaches over 1024 times a `scale`."""
    seen = ranges.get(tensor)
    if seen is None or seen.nan_count or graph.dtypes.get(tensor) != TensorProto.FLOAT:
        return False
    return LARGEST_COORDINATE < seen.max_abs * scale < math.inf


def _is_lost(ranges: RangeTable, node: Node, tensors: Sequence[str]) -> bool:
    """Whether the output is no more than a few steps of what is subtracted."""
    most = ranges.get(node.outputs[0])
    step = max(_step_at(ranges.by_tensor[name].max_abs) for name in tensors)
    return most is not None and 0 < most.max_abs < _FEWEST_STEPS * step


def _describe(ranges: RangeTable, tensors: Sequence[str]) -> str:
    most = max(ranges.by_tensor[name].max_abs for name in tensors)
    return f"{' and '.join(tensors)}: coordinates up to {most:.6g}, where FP16's steps are {_step_at(most):g}"


def _step_at(value: float) -> float:
    """The distance of FP16's numbers there."""
    return math.ldexp(1 / EXACT_STEPS, math.frexp(value)[1])


def _origins(graph: Graph, ranges: RangeTable, tensor: str) -> Iterator[Node]:
    """The node that writes the coordinates, and those behind it whose rounding would move them by 1/2 and more."""
    multiples = find_multiples(graph, ranges)
    pending, seen = [(tensor, 1.0)], {tensor}
    while pending:
        name, scale = pending.pop()
        node = graph.producers.get(name)
        if node is None or name in graph.constants:
            continue
        yield node
        for part in _parts(graph, node):
            grown = scale * _growth(ranges, node, part, name)
            if part not in seen and _is_coarse(graph, ranges, part, grown) and not multiples.is_held(part):
                seen.add(part)
                pending.append((part, grown))


def _parts(graph: Graph, node: Node) -> Iterator[str]:
    """Those inputs whose places, or their multiples, are in what the node writes."""
    op = operator(node)
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
    if operator(node) not in (*_SCALED, *_PRODUCTS) or read is None or written is None or not read.max_abs:
        return 1.0
    return written.max_abs / read.max_abs
