"""What is divided by, or a logarithm is taken of, and may fall under FP16's numbers with more data.

The smallest of n elements tells how they are spread towards zero: where its logarithm is D under that of the largest, it falls by
D / log n of that with each doubling, as of a power law, of which evenly spread values are one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from onnx import TensorProto

from overflow_fixer.evidence.semantics import moves, readers
from overflow_fixer.evidence.zeros.divisors import FEW_STEPS, find_guards, guards_in_vain
from overflow_fixer.evidence.zeros.near_zero import divides
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import is_root
from overflow_fixer.planning.extremes import UNKNOWN, find_extremes
from overflow_fixer.records import Fall, PrecisionPlan, RangeTable

_FARTHEST = 16
"""Nodes on the way back to a guard."""
_KEEP_ZERO = frozenset("Abs Sqrt Neg Relu".split())
"""Operators that are zero where what they read is."""


def find_falling(graph: Graph, ranges: RangeTable, plan: PrecisionPlan, doublings: int) -> tuple[Fall, ...]:
    """Those that so many doublings of the data would bring under 2^-21, eight of FP16's steps, from where on they are pinned; the nearest first.

    Asked of each computed FP32 tensor that a node divides by as it is, or takes the logarithm of, and of what that is the root of,
    a small guard beside the root or none, where FP16 is in either. None of what a guard, a Clip or the like keeps over that, with
    NaN or infinities, of one element or of one magnitude alone.
    """
    extremes = find_extremes(graph, ranges)
    found = [
        fall
        for name in dict.fromkeys(_find_divided(graph, ranges, plan))
        if extremes.get(name, UNKNOWN)[0] < FEW_STEPS and not _is_guarded(graph, ranges, name)
        for fall in _measure(ranges, name)
        if fall.margin_bits < doublings * fall.fall_bits
    ]
    return tuple(sorted(found, key=lambda fall: fall.margin_bits))


def _find_divided(graph: Graph, ranges: RangeTable, plan: PrecisionPlan) -> Iterator[str]:
    for node in graph.nodes:
        for name in node.writes:
            if name in graph.constants or graph.dtypes.get(name) != TensorProto.FLOAT:
                continue
            ends = [reader.label for reader, slot in readers(graph, name) if divides(graph, reader, slot)]
            if ends and not plan.pinned.issuperset([node.label, *ends]):
                yield name
            root = _find_root(graph, ranges, node) if ends else None
            if root is not None and not _is_pinned(graph, plan, root):
                yield root.inputs[0]


def _find_root(graph: Graph, ranges: RangeTable, node: Node) -> Node | None:
    """The square root that the node writes, moves, or adds a guard to under the root of 2^-21."""
    for _ in range(_FARTHEST):
        if is_root(graph, node):
            return node
        is_passed = node.standard_op in _KEEP_ZERO or moves(node, 0)
        slot = 0 if is_passed else _find_guarded(graph, ranges, node)
        writer = None if slot is None else graph.producers.get(node.inputs[slot])
        if writer is None:
            return None
        node = writer
    return None


def _find_guarded(graph: Graph, ranges: RangeTable, node: Node) -> int | None:
    """The slot at which it reads what a constant is added to, or bounds, that is less than the root of 2^-21."""
    slots = (slot for slot, name in enumerate(node.inputs) if name not in graph.constants)
    most = math.sqrt(FEW_STEPS)
    return next((slot for slot in slots if guards_in_vain(graph, ranges, node, slot, most)), None)


def _is_pinned(graph: Graph, plan: PrecisionPlan, root: Node) -> bool:
    """Whether what the root is of is computed and read in FP32, fed or a constant, or no FP32."""
    name = root.inputs[0]
    writer = graph.producers.get(name)
    if writer is None or name in graph.constants or graph.dtypes.get(name) != TensorProto.FLOAT:
        return True
    return plan.pinned.issuperset([writer.label, root.label])


def _measure(ranges: RangeTable, name: str) -> Iterator[Fall]:
    seen = ranges.get(name)
    if seen is None or not seen.is_finite:
        return
    if FEW_STEPS <= seen.min_nonzero_abs < seen.max_abs:
        fall = math.log2(seen.max_abs / seen.min_nonzero_abs) / math.log2(seen.element_count)
        margin = math.log2(seen.min_nonzero_abs / FEW_STEPS)
        yield Fall(name, seen.min_nonzero_abs, margin, fall)


def _is_guarded(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    """Whether a constant that FP16 holds well was added to it, or bounds it, behind moves, roots and scales perhaps."""
    limit = FEW_STEPS
    for _ in range(_FARTHEST):
        node = graph.producers.get(tensor)
        if node is None:
            return False
        if any(guard >= limit for guard in find_guards(graph, ranges, [node])):
            return True
        if moves(node, 0) or node.standard_op in _KEEP_ZERO:
            tensor, scale = node.inputs[0], 1.0
        else:
            tensor, scale = _unscale(graph, ranges, node)
        if not scale:
            return False
        limit = max(limit, limit / scale)
    return False


def _unscale(graph: Graph, ranges: RangeTable, node: Node) -> tuple[str, float]:
    """What a constant multiplies or divides, and by how much at least; 0 where it is no such node."""
    slots = {"Mul": (0, 1), "Div": (1,)}.get(node.standard_op, ())
    slot = next((slot for slot in slots if node.inputs[slot] in graph.constants), None)
    seen = None if slot is None else ranges.get(node.inputs[slot])
    if slot is None or seen is None or not seen.is_finite or not seen.max_abs:
        return "", 0.0
    least = seen.min_nonzero_abs if node.standard_op == "Mul" else 1 / seen.max_abs
    return node.inputs[1 - slot], least
