"""A tensor that holds NaN or infinity in the original model pins the node that writes it and every node that reads it."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from overflow_fixer.evidence.constants.divided_by_zero import find_infinities_of_zeros
from overflow_fixer.evidence.constants.huge_values import only_bounds
from overflow_fixer.evidence.constants.infinite_constants import (
    find_infinities_handed_on,
    find_masked_rows,
    find_nan_of_constants,
    hands_nan_on,
    is_same_in_fp16,
)
from overflow_fixer.evidence.own_fp16 import find_lost_in_own_fp16
from overflow_fixer.evidence.semantics import touched
from overflow_fixer.formats import FP16_MAX
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Action, Finding, PlanPolicy, Range, RangeTable


def find_non_finite(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each tensor the node touches in which a NaN or an infinity was counted.

    `value` is the tensor's max |x|: inf where there is an infinity, NaN where there is nothing but NaN.
    `batch` is where an infinity was seen first; None for a constant and where there are only NaN, whose
    batch a range does not tell. A constant that is only a bound (Clip, Min, Max) is none. What comes from an overflow in
    the model's own FP16 is for the record, unless there are finite values beside it that FP16 cannot hold. So are
    infinities of constants of which the node makes in FP16 what it makes in FP32, those of zeros, of which it makes them as
    well, the NaN of a Softmax of rows of these alone, and those of constants.
    """
    for tensor, verb in touched(node).items():
        seen = ranges.get(tensor)
        if seen is None or seen.is_finite:
            continue
        if only_bounds(graph, node, seen, FP16_MAX):
            continue
        where = "as the model stands" if TensorProto.FLOAT16 in graph.dtypes.values() else "in FP32"
        times = len(ranges.batch_names) if tensor in graph.constants else 1  # it is counted in each batch
        nans, infinities = (count // max(times, 1) for count in (seen.nan_count, seen.inf_count))
        reason = f"{verb} {tensor}, which holds {nans} NaN and {infinities} infinite values {where}"
        excuse = _find_excuse(node, graph, ranges, seen)
        action: Action = "none" if excuse else "pin"
        is_seen = seen.inf_count and tensor not in graph.constants
        batch = ranges.worst_batch_of(seen) if is_seen else None
        told = "; ".join(filter(None, (reason, excuse)))
        yield Finding("non_finite", node.label, tensor, seen.max_abs, FP16_MAX, told, batch, action)


def _find_excuse(node: Node, graph: Graph, ranges: RangeTable, seen: Range) -> str:
    """Why no pin changes what the node makes of such a tensor; nothing where one may."""
    tensor, lost = seen.tensor, find_lost_in_own_fp16(graph, ranges)
    if tensor in lost and seen.over_fp16_count == seen.inf_count:
        return _say_source(tensor, lost[tensor])
    if tensor in find_infinities_handed_on(graph, ranges) and is_same_in_fp16(node, graph, ranges):
        return "a constant brings them, and FP16 makes the same of them"
    if tensor in find_infinities_of_zeros(graph, ranges):
        return "zeros bring them, of which FP16 makes infinity as well, and they are taken out again"
    if tensor in find_masked_rows(graph, ranges) and hands_nan_on(node):
        return "rows that a constant masks as a whole are NaN in FP16 as well"
    if tensor in find_nan_of_constants(graph, ranges) and hands_nan_on(node):
        return "a constant is NaN in FP16 as well"
    return ""


def _say_source(tensor: str, source: str) -> str:
    where = "it" if source == tensor else f"{source}, from which they come,"
    return f"{where} is FP16 in the model itself, so no pin changes that"
