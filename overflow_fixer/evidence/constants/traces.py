"""What a constant out of range is in the tensors that can carry it: with which signs, and how large."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from overflow_fixer.evidence.constants.huge_values import Signs
from overflow_fixer.evidence.semantics import moves, read_reduction
from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, SCATTERS
from overflow_fixer.records import RangeTable

_CHOOSES = frozenset(
    """Neg Abs Relu ThresholdedRelu Where Max Min Clip ReduceMax ReduceMin MaxPool GlobalMaxPool TopK Pad Trilu
    CenterCropPad Floor Ceil Round""".split()
)
"""Operators whose elements are elements that come in, or as large."""
STEPS: dict[int, float] = {
    **dict.fromkeys((TensorProto.INT8, TensorProto.UINT8), 255.0),
    **dict.fromkeys((TensorProto.INT16, TensorProto.UINT16), 65535.0),
}
"""How far from its zero point a number of these types can be. None is out of range by itself, but as what was quantized."""
_SCALES = frozenset("Mul Div".split())
_BENDS = frozenset(
    "Softmax Hardmax Sigmoid HardSigmoid Tanh Softsign Erf Sign Sin Cos Asin Acos Atan Reciprocal".split()
)
"""Functions of single elements, or of differences, that FP16 computes of every number of up to 100."""
LARGEST_OF_MANY = 10000.0
"""Numbers up to this that are moved, added and scaled are numbers like others."""
_LARGEST_BENT = 100.0
_BEYOND_FP32 = frozenset("Exp Sinh Cosh".split())
_LEAST_BEYOND = 90.0
"""Of this and more FP32 has no exponential; of its opposite it has 0."""


@dataclass(frozen=True)
class Origin:
    """A constant that FP16 cannot hold, or a mask: its element of largest magnitude, and the signs of all that are over.

    `is_infinite` where all that are over are infinities, which FP16 holds.
    """

    tensor: str
    value: float
    signs: Signs
    is_infinite: bool = False


@dataclass(frozen=True)
class Trace:
    """An origin's value in a tensor: the signs it can have there, and whether the data decide if it shows.

    Its magnitude there is from `least` to `largest`, whatever it was added to.
    """

    origin: Origin
    signs: Signs
    by_data: bool = False
    least: float = 0.0
    largest: float = math.inf

    @staticmethod
    def of(origin: Origin) -> Trace:
        """In the constant itself."""
        return Trace(origin, origin.signs, False, FP16_OVERFLOW, abs(origin.value))

    def widened(self) -> Trace:
        return replace(self, least=0.0, largest=math.inf)


Traces = Mapping[str, tuple[Trace, ...]]


def merge(traces: Iterable[Trace]) -> tuple[Trace, ...]:
    """One trace an origin, with the signs and sizes of all of them."""
    merged: dict[Origin, Trace] = {}
    for trace in traces:
        known = merged.get(trace.origin, trace)
        merged[trace.origin] = Trace(
            trace.origin,
            known.signs | trace.signs,
            known.by_data or trace.by_data,
            min(known.least, trace.least),
            max(known.largest, trace.largest),
        )
    return tuple(merged.values())


def resize(
    node: Node, slot: int, trace: Trace, reached: Traces, graph: Graph, ranges: RangeTable
) -> tuple[float, float]:
    """How small and how large the trace that comes in at `slot` is behind the node; from 0 to infinity where nobody can tell."""
    if moves(node, slot) or chooses(node):
        return trace.least, trace.largest
    others = node.beside(slot)
    if node.standard_op in ADDS:
        added = sum(_bound(name, reached, ranges) for name in others)
        return max(trace.least - added, 0.0), trace.largest + added
    if node.standard_op == "QuantizeLinear":
        return trace.least, trace.largest
    if node.standard_op == "DequantizeLinear":
        return 0.0, min(trace.largest, reach_of_steps(node, graph))
    if node.standard_op in _SCALES and (node.standard_op == "Mul" or slot == 0):
        return _scale(node.standard_op, trace, others[0], reached, graph, ranges)
    return 0.0, math.inf


def reach_of_steps(node: Node, graph: Graph) -> float:
    """How large a DequantizeLinear's numbers can be, of 8 or 16 bits and by a constant scale; infinity of others."""
    dtype, scale = graph.dtypes.get(node.inputs[0]), graph.find_constant(node.inputs[1])
    if dtype not in STEPS or scale is None:
        return math.inf
    return float(np.abs(scale).max(initial=0.0)) * STEPS[dtype]


def _bound(tensor: str, reached: Traces, ranges: RangeTable) -> float:
    """The largest magnitude that was seen, or that a constant can bring; infinity where none was seen."""
    seen = ranges.get(tensor)
    if seen is None or seen.nan_count:
        return math.inf
    return max((seen.max_abs, *(trace.largest for trace in reached.get(tensor, ()))))


def chooses(node: Node) -> bool:
    """Whether the elements that the node writes are elements that it reads, or as large."""
    is_set = read_reduction(node) in (b"none", b"max", b"min")
    return node.standard_op in _CHOOSES or (node.standard_op in SCATTERS and is_set)


def _scale(
    op: str, trace: Trace, other: str, reached: Traces, graph: Graph, ranges: RangeTable
) -> tuple[float, float]:
    """By a constant, or by data, of which a factor that was never on is 1 where it is."""
    factor, bound = ranges.get(other), _bound(other, reached, ranges)
    if factor is None or other not in graph.constants or not 0 < bound < math.inf:
        return 0.0, trace.largest * max(bound, 1.0) if op == "Mul" else math.inf
    least = 0.0 if factor.min <= 0 <= factor.max else factor.min_nonzero_abs
    if op == "Mul":
        return trace.least * least, trace.largest * bound
    return trace.least / bound, trace.largest / least if least else math.inf


def ends_beyond_fp32(node: Node, trace: Trace) -> bool:
    """Whether FP32 makes 0 or infinity of the value as well, so that FP16 makes nothing else of it."""
    return node.standard_op in _BEYOND_FP32 and trace.least >= _LEAST_BEYOND


def is_like_others(node: Node, slot: int, trace: Trace, reached: Traces) -> bool:
    """Whether constants made so small a number of the value before the node, and behind it, that FP16 holds it and computes with it."""
    op = node.standard_op
    is_linear = moves(node, slot) or chooses(node) or op in ADDS or op in _SCALES
    limit = LARGEST_OF_MANY if is_linear else _LARGEST_BENT if op in _BENDS else 0.0
    behind = [
        one.largest for name in node.writes for one in reached.get(name, ()) if one.origin == trace.origin
    ]
    return trace.largest <= limit and max(behind, default=0.0) <= LARGEST_OF_MANY
