"""What a tensor is made of: the nodes whose rounding to FP16 would move it as much as its own.

A product of 300 and 6.28 loses as much where the 300 is rounded as where the product is. So the way goes back
through what moves, adds and scales, as long as the error matters, up to the layer that writes data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from functools import lru_cache

from onnx import TensorProto

from overflow_fixer.evidence.integers.coordinates import find_coordinates
from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.evidence.kernels.weighted_means import find_weighted_means
from overflow_fixer.evidence.measured import count_terms
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, MATRIX_PRODUCTS
from overflow_fixer.records import RangeTable

_KEPT = frozenset(
    """Add Sub Sum Max Min Neg Abs Relu LeakyRelu PRelu Elu Celu Selu Softplus Gelu Mish Swish HardSwish
    ThresholdedRelu Tanh Sigmoid HardSigmoid Softsign Erf Asin Acos Atan Asinh Atanh Sin Cos Floor Ceil Round Mod
    Clip Pad Where Trilu Scatter ScatterElements ScatterND MaxPool GlobalMaxPool ReduceMax ReduceMin TopK
    ReduceLogSumExp LogSoftmax""".split()
)
"""Operators of slope 1 or less, nearly: an absolute error is no larger behind them. Of Asin, Acos and Atanh it may be."""
_SCALED = frozenset(
    """Mul Div ReduceL1 ReduceL2 AveragePool Sqrt Pow Reciprocal BatchNormalization""".split()
)
"""Operators that scale it with the value."""
_MEANS = frozenset("Mean ReduceMean GlobalAveragePool".split())
_SUMS = _MEANS | frozenset("ReduceSum CumSum".split())
"""Those that scale it as well, unless their terms cancel: an error of one term is one of the sum, and a share of the mean."""
_CANCELS = _SUMS | ADDS
"""Operators that may write less than each of their terms."""
_SLOPES: Mapping[str, Callable[[float, float], float]] = {
    "Exp": lambda read, written: written,
    "Log": lambda read, written: 1 / read if read else 0.0,
    "Sinh": lambda read, written: math.hypot(1, written),
    "Cosh": lambda read, written: math.sqrt(max(0.0, written * written - 1)),
    "Tan": lambda read, written: 1 + written * written,
    "Acosh": lambda read, written: 1 / math.sqrt(read * read - 1) if read > 1 else 0.0,
}
"""Operators of another slope: what it is where they read and write their largest value; 0 where it has no end."""
_RESIZES = frozenset("Resize Upsample".split())


Walked = MutableMapping[str, float]
"""The least limit of the walks so far by the tensors that they came through; each walk adds to it."""


def find_origins(
    graph: Graph, ranges: RangeTable, tensor: str, limit: float, walked: Walked | None = None
) -> Iterator[Node]:
    """The node that writes the tensor, and those behind it that round it as one over `limit` is; the last first.

    Through a small difference the way goes on to terms that are as large: the nodes between are none of them. What other walks
    told, as `walked` has it, is left out, for of a long chain each walk would go through all behind it.
    """
    walked = {} if walked is None else walked
    parts_of, largest_terms = _list_parts(graph, ranges), _find_largest_terms(graph, ranges)
    scales, pending = {tensor: 1.0}, {tensor} & graph.producers.keys()
    while pending:
        node = max((graph.producers[name] for name in pending), key=lambda writer: writer.index)
        pending.difference_update(node.writes)
        written = max((name for name in node.writes if name in scales), key=scales.__getitem__)
        if scales[written] > 0:
            walked[written] = min(limit / scales[written], walked.get(written, math.inf))
        is_rounded = written == tensor or _is_over(ranges, written, scales[written], limit)
        for part, growth in parts_of.get(written, ()):
            scale = scales[written] * growth
            is_term = _is_over(ranges, part, scale, limit) and (is_rounded or node.standard_op in _CANCELS)
            is_rounded = is_rounded or is_term
            is_told = scale * walked.get(part, math.inf) <= limit
            if not is_told and (is_term or largest_terms.get(part, 0.0) * scale > limit):
                scales[part] = max(scale, scales.get(part, 0.0))
                pending.update({part} & graph.producers.keys())
        if is_rounded:
            yield node


def _is_over(ranges: RangeTable, tensor: str, scale: float, limit: float) -> bool:
    """Whether it reaches, times `scale`, over the limit, or is NaN there."""
    return not ranges.by_tensor[tensor].max_abs * scale <= limit


@lru_cache(maxsize=1)
def _find_largest_terms(graph: Graph, ranges: RangeTable) -> Mapping[str, float]:
    """For each tensor of which what it is made of is larger, by cancelling: how large that is, in the tensor's own measure."""
    found: dict[str, float] = {}
    for written, parts in _list_parts(graph, ranges).items():
        cancels = graph.producers[written].standard_op in _CANCELS
        for part, growth in parts:
            own = ranges.by_tensor[part].max_abs if cancels else 0.0
            term = growth * max(own, found.get(part, 0.0))
            if term > max(ranges.by_tensor[written].max_abs, found.get(written, 0.0)):
                found[written] = term
    return found


@lru_cache(maxsize=1)
def _list_parts(graph: Graph, ranges: RangeTable) -> Mapping[str, tuple[tuple[str, float], ...]]:
    """For each tensor that a node writes, in order, its parts; each walk asks for many of them."""
    written = ((node, name) for node in graph.nodes for name in node.writes if ranges.get(name) is not None)
    return {name: tuple(_parts(graph, ranges, node, name)) for node, name in written}


def _parts(graph: Graph, ranges: RangeTable, node: Node, output: str) -> Iterator[tuple[str, float]]:
    """Each computed input that FP16 does not hold, and how many times its error an error of the output is."""
    for slot, name in enumerate(node.inputs):
        growth = _growth(graph, ranges, node, slot, output) if _is_rounded(graph, ranges, name) else None
        if growth is not None:
            yield name, growth
            yield from _logits(graph, ranges, node)


def _is_rounded(graph: Graph, ranges: RangeTable, name: str) -> bool:
    is_computed = graph.dtypes.get(name) == TensorProto.FLOAT and name not in graph.constants
    return is_computed and ranges.get(name) is not None and not find_multiples(graph, ranges).is_held(name)


def _logits(graph: Graph, ranges: RangeTable, node: Node) -> Iterator[tuple[str, float]]:
    """Those of the Softmax of which the node is the logarithm, whose error is that of LogSoftmax: the same."""
    writer = graph.producers.get(node.inputs[0]) if node.standard_op == "Log" else None
    if (
        writer is not None
        and writer.standard_op == "Softmax"
        and _is_rounded(graph, ranges, writer.inputs[0])
    ):
        yield writer.inputs[0], 1.0


def _growth(graph: Graph, ranges: RangeTable, node: Node, slot: int, output: str) -> float | None:
    """How many times an error of what comes in at `slot` an error of the output is; None of what a layer, as any product of data, reads."""
    op = node.standard_op
    if op in _KEPT or moves(node, slot) or (op in _RESIZES and slot == 0):
        return 1.0
    read, written = ranges.by_tensor[node.inputs[slot]].max_abs, ranges.by_tensor[output].max_abs
    if op in _SLOPES:
        return _SLOPES[op](read, written)
    if op in _SUMS:
        return max(1 / _count_averaged(ranges, node, output), written / read) if read else None
    is_mean = slot == 0 and node.label in find_weighted_means(graph)
    is_scaled = op in _SCALED or is_mean or (op in MATRIX_PRODUCTS and output in find_coordinates(graph))
    return written / read if is_scaled and read else None


def _count_averaged(ranges: RangeTable, node: Node, output: str) -> float:
    """How many terms a mean is of; 1 of a sum."""
    if node.standard_op == "Mean":
        return len(node.inputs)
    return count_terms(ranges, node, ranges.by_tensor[output]) if node.standard_op in _MEANS else 1.0
