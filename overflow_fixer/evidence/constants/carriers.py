"""The tensors that can carry the value of a constant that FP16 cannot hold, whatever the data showed.

Where nothing depends on the data (a weight, a bias), every sample shows what the constant does, and the measured
ranges say where its value ends. What comes into a body of control flow, or out of it, is followed through it, whether it
ran or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np
import onnx
from onnx import TensorProto

from overflow_fixer.evidence.constants.huge_values import (
    NEGATIVE,
    POSITIVE,
    Signs,
    replaced_infinity,
    shown_signs,
)
from overflow_fixer.evidence.constants.repeated import find_repeated
from overflow_fixer.evidence.constants.traces import (
    LARGEST_OF_MANY,
    STEPS,
    Origin,
    Trace,
    Traces,
    ends_beyond_fp32,
    merge,
    reach_of_steps,
    resize,
)
from overflow_fixer.evidence.inlined_bodies import can_inline, inline_bodies, leaves_body, list_carried
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.graph.body_graphs import find_bodies
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operator_types import QUANTIZING
from overflow_fixer.graph.operators import CASTS, MATRIX_PRODUCTS, SCATTERS
from overflow_fixer.records import Array, Range, RangeTable

_INTEGERS = frozenset({TensorProto.INT32, TensorProto.INT64, TensorProto.UINT32, TensorProto.UINT64})
_INTEGER_ARITHMETIC = frozenset("Add Sub Mul Neg Max Min Where".split())
_PRODUCTS = MATRIX_PRODUCTS | {"Mul"}
"""Operators that show a value or not where the other factor is a mask."""

_SELECTORS = SCATTERS | frozenset(
    "Where Gather GatherND GatherElements OneHot Compress Slice Pad SequenceAt".split()
)
"""Operators that show a value or not, as their inputs that are no floats say."""


@lru_cache(maxsize=1)
def find_carriers(graph: Graph, ranges: RangeTable) -> Traces:
    """Each tensor that can carry the value of a constant out of range, with those constants.

    Those of bodies too, by the names that ranges have for them; a body that is not read can show whatever it is given.
    """
    is_inlined = can_inline(graph) and bool(find_bodies(graph).read)
    flat = inline_bodies(graph, ranges, unseen=True) if is_inlined else graph
    reached: dict[str, tuple[Trace, ...]] = {
        origin.tensor: (Trace.of(origin),) for origin in find_huge_constants(flat, ranges)
    }
    _spread(flat, ranges, reached)
    carried = list(list_carried(graph)) if is_inlined else []
    while _carry(carried, reached):
        _spread(flat, ranges, reached)
    return reached


def _spread(graph: Graph, ranges: RangeTable, reached: dict[str, tuple[Trace, ...]]) -> None:
    """From node to node, in place."""
    for node in graph.nodes:
        if any(name in reached for name in node.reads):
            for index, output in enumerate(node.outputs):
                shown = tuple(_shown(node, index, reached, graph, ranges)) if output else ()
                if shown:
                    reached[output] = merge((*reached.get(output, ()), *shown))


def _carry(carried: Iterable[tuple[str, str]], reached: dict[str, tuple[Trace, ...]]) -> bool:
    """From each run of a body to the next, in place; whether that brings anything new. A value that grows may grow without end."""
    is_new = False
    for source, target in carried:
        before = reached.get(target, ())
        merged = merge((*before, *reached.get(source, ())))
        if merged != before:
            known = {trace.origin for trace in before}
            widened = (one.widened() if one.origin in known and one not in before else one for one in merged)
            reached[target], is_new = tuple(widened), True
    return is_new


@lru_cache(maxsize=2)
def find_huge_constants(graph: Graph, ranges: RangeTable) -> tuple[Origin, ...]:
    """Initializers, Constants and ConstantOfShape with an element that FP16 cannot hold; integers too.

    An integer mask may be converted to floats later on.
    """
    return tuple(_find_origins(graph, ranges))


def _find_origins(graph: Graph, ranges: RangeTable) -> Iterator[Origin]:
    for name, proto in graph.constants.items():
        seen = ranges.get(name)
        if seen is not None and seen.max_abs >= FP16_OVERFLOW:
            yield _origin(name, seen.min, seen.max, seen.over_fp16_count == seen.inf_count)
        elif proto.data_type in _INTEGERS:
            yield from _origin_of_array(name, graph.read_constant(name))
    for node in graph.nodes:
        if node.standard_op == "ConstantOfShape" and (filled := node.attribute("value")) is not None:
            yield from _origin_of_array(node.outputs[0], onnx.numpy_helper.to_array(filled.t))


def _origin_of_array(tensor: str, value: Array) -> Iterator[Origin]:
    if value.size and max(-float(value.min()), float(value.max())) >= FP16_OVERFLOW:
        is_infinite = not np.isfinite(value[(value >= FP16_OVERFLOW) | (value <= -FP16_OVERFLOW)]).any()
        yield _origin(tensor, float(value.min()), float(value.max()), bool(is_infinite))


def _origin(tensor: str, low: float, high: float, is_infinite: bool) -> Origin:
    signs = frozenset(sign for sign, extreme in ((-1, -low), (1, high)) if extreme >= FP16_OVERFLOW)
    return Origin(tensor, low if -low >= high else high, signs, is_infinite)


def _shown(node: Node, index: int, reached: Traces, graph: Graph, ranges: RangeTable) -> Iterator[Trace]:
    """What output number `index` shows of the values that the node's inputs carry."""
    output = node.outputs[index]
    for slot, name in enumerate((*node.inputs, *node.captured)):
        traces = reached.get(name, ())
        if not traces or not _passes(node, slot, (name, output), graph):
            continue
        may_hide = _is_decided_by_data(node, slot, graph, ranges)
        for trace in traces:
            if ends_beyond_fp32(node, trace):
                continue
            signs = shown_signs(node, slot, index, trace.signs, graph) - _outdone(node, slot, reached)
            if may_replace(node, slot, reached, graph):
                signs = trace.signs
            by_data = trace.by_data or may_hide
            if signs and (by_data or not _fits(ranges.get(output))):
                sizes = resize(node, slot, trace, reached, graph, ranges)
                is_number = trace.origin.is_infinite and makes_a_number(node, slot, graph, reached)
                origin = replace(trace.origin, is_infinite=False) if is_number else trace.origin
                yield Trace(origin, signs, by_data, *sizes)


def makes_a_number(node: Node, slot: int, graph: Graph, reached: Traces) -> bool:
    """Whether the node may make of an infinity what is none, and what FP16 cannot hold: a bound, an integer, who knows what."""
    is_cast = node.standard_op in CASTS and not graph.is_float(node.outputs[0])
    return is_cast or node.standard_op in ("", "Pow") or _meets_bound(node, slot, reached)


def _meets_bound(node: Node, slot: int, reached: Traces) -> bool:
    """Whether a finite constant that FP16 cannot hold may take the place of the infinity that comes in at `slot`."""
    rivals = (trace for name in node.beside(slot) for trace in reached.get(name, ()))
    return node.standard_op in ("Max", "Min", "Clip") and any(
        not rival.origin.is_infinite for rival in rivals
    )


def may_replace(node: Node, slot: int, reached: Traces, graph: Graph) -> bool:
    """Whether a Where puts what comes in at this slot in the place of infinities that constants can bring."""
    return slot == 1 and (replaced_infinity(node, graph) or "") in reached


def _passes(node: Node, slot: int, tensors: tuple[str, str], graph: Graph) -> bool:
    """Whether values go from one tensor to the other: floats always, integers where they are computed with, or are quantized floats."""
    quantized = [graph.dtypes.get(name) in STEPS for name in tensors]
    if all(quantized) or (any(quantized) and node.standard_op in QUANTIZING):
        is_small = node.standard_op == "DequantizeLinear" and reach_of_steps(node, graph) <= LARGEST_OF_MANY
        return (slot == 0 and not is_small) or moves(node, slot)
    takes_integers = node.standard_op in _INTEGER_ARITHMETIC or moves(node, slot)
    return all(
        may_be_float(name, graph) or (takes_integers and graph.dtypes.get(name) in _INTEGERS)
        for name in tensors
    )


def may_be_float(name: str, graph: Graph) -> bool:
    """Whether the tensor is of floats, or is a sequence or optional of something."""
    return graph.is_float(name) or name not in graph.dtypes


def _is_decided_by_data(node: Node, slot: int, graph: Graph, ranges: RangeTable) -> bool:
    """Whether it depends on the data if the output shows what comes in at `slot`, so that a scan may miss it."""
    op = node.standard_op
    if not op or slot >= len(node.inputs) or op in ("If", "Loop", "Scan") or leaves_body(node):
        return True
    fixed = find_repeated(graph)
    live = [name for name in node.beside(slot) if name and name not in fixed and name not in graph.constants]
    if op in _PRODUCTS:
        return any(_is_switch(ranges.get(name)) for name in live)
    return op in _SELECTORS and any(op == "OneHot" or not graph.is_float(name) for name in live)


def _is_switch(seen: Range | None) -> bool:
    """Whether a factor was only seen on (one magnitude) and off (0): a mask, not a number computed with."""
    return seen is None or not seen.min_nonzero_abs < seen.max_abs


def _outdone(node: Node, slot: int, reached: Traces) -> Signs:
    """The signs that do not come through Max or Min, because another input carries no such value."""
    stopped = {"Max": NEGATIVE, "Min": POSITIVE}.get(node.standard_op, frozenset[int]())
    others = node.beside(slot)
    rivals = all(any(stopped <= trace.signs for trace in reached.get(name, ())) for name in others)
    return frozenset() if rivals else stopped


def _fits(seen: Range | None) -> bool:
    return seen is not None and seen.nan_count == 0 and seen.max_abs < FP16_OVERFLOW
