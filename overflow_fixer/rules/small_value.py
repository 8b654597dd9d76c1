"""A tensor so small as a whole that FP16 holds it badly, or not at all, where that shows in what comes out.

Below 2^-14, FP16 has steps of 2^-24 and no smaller ones. A tensor whose largest value is 2^-18 has 64 of them: its
typical values keep four or five bits. That is no matter where it is added to larger values (the branch of a layer
scale of 1e-6), or behind Softmax, Sigmoid and Exp. It is where the tensor is scaled up again, or given out, behind
activations that are zero at zero as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from onnx import TensorProto

from overflow_fixer.formats import FP16_MIN_SUBNORMAL, FP16_UNDERFLOW, round_to_fp16
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, Range, RangeTable
from overflow_fixer.rules.batches import find_worst_batch
from overflow_fixer.rules.near_zero import ELEMENTWISE, PLACES, SUMS, TERMS
from overflow_fixer.rules.semantics import moves, readers

LEAST_MAGNITUDE = 2.0**-18
"""A largest |x| below it is too small: at most 64 steps of 2^-24, where rounding noise nears 30 dB."""
_MOST_NOISE = 10.0**-1.5
"""30 dB below the values, as verification tolerates."""
_OWN_ROUNDING = 2.0**-11
"""What an output loses by its own rounding, as a share of its largest value."""

_WEIGHTED = frozenset("Conv ConvTranspose Gemm".split())
_ADDED = dict.fromkeys(
    [*_WEIGHTED, "BatchNormalization", "LayerNormalization", "InstanceNormalization", "GroupNormalization"], 2
)
"""Operators that add what they read in a slot; a Gemm scales it first."""
_CHOOSES = frozenset("ArgMax ArgMin Hardmax".split())


@dataclass(frozen=True)
class _Loss:
    """`magnitude` of what came of a small tensor in another, and the share of it that is lost."""

    magnitude: float
    share: float

    def shows_in(self, seen: Range | None) -> bool:
        """Whether more is lost than the tensor's own rounding takes."""
        return seen is None or self.magnitude * self.share >= seen.max_abs * _OWN_ROUNDING


def find_small_values(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each tensor below 2^-18 as a whole that the node writes, or reads on the way to where it shows.

    `value` is its max |x|. None of a tensor of zeros, or that holds NaN. Of constants, only those that
    FP16 does hold, but with less than 30 dB: vanishing_constant tells of the others.
    """
    for tensor, end in _evidence(graph, ranges).get(node.label, {}).items():
        seen = ranges.by_tensor[tensor]
        held = (
            "nothing" if seen.max_abs <= FP16_UNDERFLOW else f"{seen.max_abs / FP16_MIN_SUBNORMAL:.1f} steps"
        )
        reason = f"{tensor} reaches {seen.max_abs:.3g}, of which FP16 holds {held} of 2^-24, and {end}"
        batch = find_worst_batch(graph, ranges, tensor)
        yield Finding("small_value", node.label, tensor, seen.max_abs, LEAST_MAGNITUDE, reason, batch)


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[str, str]]:
    """For each node concerned, the small tensors and, in words, where each shows."""
    found: dict[str, dict[str, str]] = {}
    for tensor in graph.tensors:
        share = _lost_share(graph, ranges, tensor)
        if share is None:
            continue
        for node, end in _concerned(graph, ranges, tensor, share):
            found.setdefault(node.label, {}).setdefault(tensor, end)
    return found


def _lost_share(graph: Graph, ranges: RangeTable, tensor: str) -> float | None:
    """The share of the largest value that FP16 may lose; None where it is not too small."""
    seen = ranges.get(tensor)
    if seen is None or graph.dtypes.get(tensor) != TensorProto.FLOAT or seen.nan_count:
        return None
    if not 0 < seen.max_abs < LEAST_MAGNITUDE:
        return None
    if tensor not in graph.constants:
        return min(1.0, FP16_UNDERFLOW / seen.max_abs)
    if seen.max_abs <= FP16_UNDERFLOW:
        return None
    value = graph.read_constant(tensor)
    assert value is not None
    noise = float(np.linalg.norm(value - round_to_fp16(value).astype(np.float64)) / np.linalg.norm(value))
    return noise if noise > _MOST_NOISE else None


def _concerned(graph: Graph, ranges: RangeTable, tensor: str, share: float) -> Iterator[tuple[Node, str]]:
    """The readers in whose output the loss shows in the end, with the tensor's writer, and where it shows."""
    loss = _Loss(ranges.by_tensor[tensor].max_abs, share)
    ends = {
        node: end
        for node, _ in readers(graph, tensor)
        if (end := _find_end(graph, ranges, node, tensor, loss))
    }
    given = "the model gives it out" if tensor in graph.outputs else next(iter(ends.values()), "")
    if given and tensor in graph.producers and tensor not in graph.constants:
        yield graph.producers[tensor], given
    yield from ends.items()


def _find_end(graph: Graph, ranges: RangeTable, node: Node, tensor: str, loss: _Loss) -> str:
    """In words, where a loss in the tensor that the node reads shows in the end; "" where nowhere."""
    pending, seen = [(node, tensor, loss)], {(node.label, tensor)}
    while pending:
        reader, name, held = pending.pop()
        if reader.standard_op in _CHOOSES:
            return f"{reader.op_type} {reader.label} chooses by it"
        for output in reader.writes:
            passed = _pass(graph, ranges, reader, name, output, held)
            if passed is None:
                continue
            if output in graph.outputs:
                return f"{output} shows it"
            fresh = [(r, output, passed) for r, _ in readers(graph, output) if (r.label, output) not in seen]
            seen.update((r.label, output) for r, *_ in fresh)
            pending += fresh
    return ""


def _pass(
    graph: Graph, ranges: RangeTable, node: Node, tensor: str, output: str, loss: _Loss
) -> _Loss | None:
    """The loss in an output of a node that reads a tensor with one; None where it is gone."""
    op, read, written = node.standard_op, ranges.get(tensor), ranges.get(output)
    is_moved = op in PLACES or moves(node, node.inputs.index(tensor))
    if not op or read is None or written is None or is_moved:
        return loss
    if read.max_abs == 0 or written.max_abs == 0:
        return None
    if op == "BatchNormalization" and tensor == node.inputs[4]:
        return None  # vanishing_constant judges what its epsilon makes of it
    passed = loss
    if [slot for slot, name in enumerate(node.inputs) if name == tensor] == [_ADDED.get(op)]:
        passed = _Loss(loss.magnitude * abs(node.value_of("beta", 1.0)), loss.share)
    elif op in _WEIGHTED or op == "BatchNormalization":
        passed = _through_weights(graph, ranges, node, tensor, loss)
    elif op in ELEMENTWISE or op in SUMS:
        passed = _Loss(loss.magnitude * written.max_abs / read.max_abs, loss.share)
    elif op not in TERMS:
        return None
    return passed if op in ELEMENTWISE or passed.shows_in(written) else None


def _through_weights(graph: Graph, ranges: RangeTable, node: Node, tensor: str, loss: _Loss) -> _Loss:
    """In a product, beside a bias that may be all that the output shows: what the other factor makes of it."""
    read, written = ranges.by_tensor[tensor], ranges.by_tensor[node.outputs[0]]
    whole = loss.magnitude * written.max_abs / read.max_abs
    is_normalized = node.standard_op == "BatchNormalization"
    gain = (_gain_of_normalization if is_normalized else _gain)(graph, ranges, node, tensor)
    return _Loss(min(whole, loss.magnitude * gain), loss.share)


def _gain_of_normalization(graph: Graph, ranges: RangeTable, node: Node, tensor: str) -> float:
    """What BatchNormalization multiplies data and means with; inf for its scale, and where that is not known."""
    scale, variance = ranges.get(node.inputs[1]), ranges.get(node.inputs[4])
    added = node.value_of("epsilon", 1e-5)
    if tensor == node.inputs[1] or scale is None or variance is None or variance.min + added <= 0:
        return math.inf
    return scale.max_abs / math.sqrt(variance.min + added)


def _gain(graph: Graph, ranges: RangeTable, node: Node, tensor: str) -> float:
    """How much larger rounding noise typically gets, bias aside: its sum over n terms grows by the root of n.

    inf where there is no bias, or the weights are not constant.
    """
    weight = graph.constants.get(node.inputs[1])
    other = ranges.get(node.inputs[0 if tensor == node.inputs[1] else 1])
    if len(node.inputs) < 3 or not node.inputs[2] or weight is None or other is None:
        return math.inf
    return (
        other.max_abs * math.sqrt(_count_terms(node, weight.dims)) * abs(float(node.value_of("alpha", 1.0)))
    )


def _count_terms(node: Node, weight: Sequence[int]) -> float:
    """How many products of data and weights, of these dimensions, are added up in an element; of a ConvTranspose at most so many."""
    if node.standard_op == "Gemm":
        return weight[1] if node.value_of("transB", 0) else weight[0]
    channels = weight[1] if node.standard_op == "Conv" else weight[0] / node.value_of("group", 1)
    return channels * math.prod(weight[2:])
