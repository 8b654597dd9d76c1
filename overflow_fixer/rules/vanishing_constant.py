"""A constant that rounds to zero in FP16 where zero matters.

An epsilon of 1e-12 guards a Sqrt, Div, Log, Reciprocal or Pow against zero; FP16 stores it as 0 and
the guard is gone. The nodes that bring it, the node that adds it and everything up to the guarded
operator stay in FP32; but not where the data never came near zero: there the guard has nothing to do. A factor of 1e-9
makes zeros of products that FP16 could hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from onnx import TensorProto

from overflow_fixer.evidence.paths import lead_back
from overflow_fixer.evidence.semantics import moves, read_epsilon, readers
from overflow_fixer.evidence.zeros.guarded_roots import is_harmless
from overflow_fixer.evidence.zeros.rounded_away import find_rounded_away
from overflow_fixer.formats import FP16_MIN_NORMAL, FP16_UNDERFLOW, round_to_fp16
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import DIVISOR_SLOTS
from overflow_fixer.graph.powers import least_exponent
from overflow_fixer.records import Action, Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.settling import protection_of

_GUARD_SLOTS = {
    **dict.fromkeys(("Add", "Sum", "Sub", "Max", "Min"), None),
    "Clip": frozenset({1, 2}),
    "Where": frozenset({1, 2}),
}
"""Operators that keep a value from zero by a constant at one of these slots (None: at any)."""

_SENSITIVE = {**DIVISOR_SLOTS, "Sqrt": 0, "Log": 0, "Pow": 0}
"""Operators for which zero at this slot is not just a small number."""

_LARGEST_EPSILON = 2.0**-10
"""An array with a vanishing element and a larger one than this is a bias, not an epsilon by channel."""

_FACTOR_SLOTS = {
    "Div": frozenset({0}),
    **dict.fromkeys(("Conv", "ConvTranspose"), frozenset({1})),
    **dict.fromkeys(("Mul", "MatMul", "Gemm"), frozenset({0, 1})),
}


_NORMALIZATIONS = frozenset(
    "LayerNormalization InstanceNormalization GroupNormalization RMSNormalization MeanVarianceNormalization".split()
)
_STASH_TYPE_SINCE = {"LayerNormalization": 17, "GroupNormalization": 21}
"""The opset from which on the operator computes its variance in FP32 unless `stash_type` says otherwise."""
_MOST_CHANGE = 2.0**-5
"""By which share of it a variance, its epsilon added, may change: twice what 30 dB are."""


@dataclass(frozen=True)
class _Vanishing:
    """A constant of which FP16 makes zeros: its least magnitude but 0, its largest, and what to call it."""

    tensor: str
    least: float
    most: float
    text: str


@dataclass(frozen=True)
class _Use:
    """A node that computes with a constant at `slot`, behind `movers` that bring it."""

    constant: _Vanishing
    node: Node
    slot: int
    movers: tuple[Node, ...] = ()


@dataclass(frozen=True)
class _Consequence:
    """What becomes of a use of zero instead of a constant, and the nodes that this concerns."""

    text: str
    nodes: tuple[Node, ...]
    action: Action = "pin"


@dataclass(frozen=True)
class _Told:
    """What is told of a constant at a node."""

    reason: str
    action: Action = "pin"


_Evidence = dict[str, dict[_Vanishing, _Told]]
"""By the label of the node concerned."""


def find_vanishing_constants(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each vanishing constant that the node adds, divides or multiplies by, or passes on.

    The epsilon of a normalisation that the backend computes in FP32 by itself is protected. For the record only, and at
    the node that adds it, is a guard whose output kept 2^-14 and more from zero, without NaN or infinity, in every batch.
    """
    for constant, told in _evidence(graph, ranges).get(node.label, {}).items():
        limit, values = FP16_UNDERFLOW, (constant.tensor, constant.least)
        found = Finding("vanishing_constant", node.label, *values, limit, told.reason, action=told.action)
        protection = protection_of(node, policy) if node.standard_op in _NORMALIZATIONS else None
        if protection is not None:
            found = replace(found, action="protected", reason=f"{told.reason}; {protection}")
        yield found


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> _Evidence:
    """For each node concerned, the vanishing constants and what each does to it."""
    found: _Evidence = {}
    for use in (*_uses_of_constants(graph, ranges), *_uses_of_attributes(graph)):
        for consequence in _consequences(graph, ranges, use):
            reason = f"{use.constant.text} rounds to zero in FP16, {consequence.text}"
            for node in consequence.nodes:
                _tell(found, node, use.constant, _Told(reason, consequence.action))
    for node in graph.nodes:
        for constant, reason in (*_in_normalization(graph, node), *_in_batch_normalization(graph, node)):
            _tell(found, node, constant, _Told(reason))
    return found


def _tell(found: _Evidence, node: Node, constant: _Vanishing, told: _Told) -> None:
    """Keep what was told first, unless that asks for no pin."""
    known = found.setdefault(node.label, {}).setdefault(constant, told)
    if known.action != "pin":
        found[node.label][constant] = told


def _in_normalization(graph: Graph, node: Node) -> Iterator[tuple[_Vanishing, str]]:
    """The epsilon of an operator that divides by what it measures of the data, where ONNX does not ask for FP32."""
    epsilon = read_epsilon(node)
    if node.standard_op not in _NORMALIZATIONS or not 0 < epsilon <= FP16_UNDERFLOW:
        return
    in_fp32 = node.value_of("stash_type", TensorProto.FLOAT) == TensorProto.FLOAT
    if graph.opset >= _STASH_TYPE_SINCE.get(node.op_type, math.inf) and in_fp32:
        return
    text = f"the epsilon of {node.label} = {epsilon:.3g}"
    reason = f"{text} rounds to zero in FP16, so that nothing keeps zero from the division inside"
    yield _Vanishing(node.outputs[0], epsilon, epsilon, text), reason


def _in_batch_normalization(graph: Graph, node: Node) -> Iterator[tuple[_Vanishing, str]]:
    """The variance that FP16 changes most, its epsilon added."""
    variances = graph.find_constant(node.inputs[4]) if node.standard_op == "BatchNormalization" else None
    if variances is None or graph.dtypes.get(node.inputs[4]) != TensorProto.FLOAT or not variances.size:
        return
    epsilon, exact = read_epsilon(node), variances.astype(np.float64).reshape(-1)
    right = exact + epsilon
    kept = round_to_fp16(exact).astype(np.float64) + (epsilon if epsilon > FP16_UNDERFLOW else 0)
    with np.errstate(all="ignore"):
        change = np.where((right > 0) & (exact < FP16_MIN_NORMAL), np.abs(kept / right - 1), 0)
    worst = int(np.argmax(change))
    if change[worst] > _MOST_CHANGE:
        text = f"a variance of {node.label}, its epsilon added, is {right[worst]:.3g}"
        constant = _Vanishing(node.inputs[4], float(right[worst]), float(right[worst]), text)
        yield constant, f"{text} and becomes {kept[worst]:.3g} in FP16, and its root is divided by"


def _uses_of_constants(graph: Graph, ranges: RangeTable) -> Iterator[_Use]:
    for name in graph.constants:
        seen = ranges.get(name)
        if seen is not None and 0 < seen.min_nonzero_abs <= FP16_UNDERFLOW:
            least, most = seen.min_nonzero_abs, seen.max_abs
            yield from _follow(graph, _Vanishing(name, least, most, f"{name} = {least:.3g}"), name)


def _uses_of_attributes(graph: Graph) -> Iterator[_Use]:
    """Clip's bounds below opset 11."""
    for node in graph.nodes:
        for name, slot in (("min", 1), ("max", 2)) if node.standard_op == "Clip" else ():
            bound = node.attribute(name)
            if bound is not None and 0 < abs(bound.f) <= FP16_UNDERFLOW:
                text = f"the {name} of {node.label} = {bound.f:.3g}"
                yield _Use(_Vanishing(node.outputs[0], abs(bound.f), abs(bound.f), text), node, slot)


def _follow(graph: Graph, constant: _Vanishing, tensor: str) -> Iterator[_Use]:
    """Every node that computes with the constant, directly or behind nodes that only move elements."""
    pending, movers = [tensor], dict[str, Node]()
    uses: list[tuple[Node, int, str]] = []
    while pending:
        name = pending.pop()
        for node, slot in readers(graph, name):
            if not moves(node, slot):
                uses.append((node, slot, name))
            elif node.label not in movers:
                movers[node.label] = node
                pending.extend(node.writes)
    for node, slot, name in uses:
        yield _Use(constant, node, slot, _bringers(graph, name, movers))


def _bringers(graph: Graph, tensor: str, movers: Mapping[str, Node]) -> tuple[Node, ...]:
    """Those of `movers` that the tensor comes through."""
    pending, found = [tensor], dict[str, Node]()
    while pending:
        producer = graph.producers.get(pending.pop())
        if producer is not None and producer.label in movers and producer.label not in found:
            found[producer.label] = producer
            pending.extend(producer.reads)
    return tuple(found.values())


def _consequences(graph: Graph, ranges: RangeTable, use: _Use) -> Iterator[_Consequence]:
    node, slot, op = use.node, use.slot, use.node.standard_op
    concerned = (*use.movers, node)
    if _is_sensitive(graph, node, slot):
        yield _Consequence(f"and {op} of it gives zero, infinity or NaN", concerned)
    elif (
        op in _GUARD_SLOTS and slot in (_GUARD_SLOTS[op] or {slot}) and use.constant.most <= _LARGEST_EPSILON
    ):
        behind = _path_to_sensitive(graph, ranges, node, use.constant.least)
        if behind:
            yield _of_a_guard(graph, ranges, use, behind)
    elif slot in _FACTOR_SLOTS.get(op, ()) and use.constant.most <= FP16_UNDERFLOW:
        most = _find_most_made(ranges, use)
        if most > FP16_UNDERFLOW:
            yield _Consequence(f"and with it every product, of up to {most:.3g}", concerned)


def _find_most_made(ranges: RangeTable, use: _Use) -> float:
    """The largest that may be made of a factor: what was seen, or what the other factor makes of it, where others are beside it.

    Of a matrix product as many terms as the factor has elements may be added up, at most.
    """
    node, seen = use.node, ranges.get(use.node.outputs[0])
    read, other = ranges.get(node.inputs[use.slot]), ranges.get(node.inputs[1 - use.slot])
    if seen is None or read is None or other is None or node.standard_op == "Div":
        return 0.0 if seen is None else seen.max_abs
    batches = max(len(ranges.batch_names), 1)
    terms = 1.0 if node.standard_op == "Mul" else max(read.element_count / batches, 1.0)
    made = use.constant.most * other.max_abs * terms * abs(float(node.value_of("alpha", 1.0)))
    return min(seen.max_abs, made) if made >= 0 else seen.max_abs


def _of_a_guard(graph: Graph, ranges: RangeTable, use: _Use, behind: tuple[Node, ...]) -> _Consequence:
    """That of a guard with these nodes behind it; it is no matter where what it gives out is never small.

    A constant of up to 2^-25 is no more than FP16's rounding of what is 2^-14 and larger: such a value was guarded by
    nothing, whether the constant is added, subtracted, a bound or put in the place of zeros. Of a difference FP16 may
    make zero wherever it is no larger than the rounding of its terms.
    """
    text = f"so that it no longer keeps zero from {behind[-1].op_type}"
    seen = ranges.get(use.node.outputs[0])
    away = find_rounded_away(graph, ranges)
    least = max(FP16_MIN_NORMAL, *(away.get(name, 0.0) for name in use.node.inputs))
    if seen is None or not seen.is_finite or not max(seen.min, -seen.max) >= least:
        return _Consequence(text, (*use.movers, use.node, *behind))
    measured = f"below {seen.min:.4g}" if seen.min > 0 else f"above {seen.max:.4g}"
    return _Consequence(f"{text}; but what it guards was never {measured}", (use.node,), "none")


def _is_sensitive(graph: Graph, node: Node, slot: int) -> bool:
    op = node.standard_op
    return _SENSITIVE.get(op) == slot and not (op == "Pow" and least_exponent(graph, node) >= 1)


def _path_to_sensitive(graph: Graph, ranges: RangeTable, guard: Node, least: float) -> tuple[Node, ...]:
    """The nodes from a guard on, itself left out, to every operator that it keeps zero from, in order.

    None to a root that may as well be zero.
    """
    behind: dict[str, list[Node]] = {}
    ends: list[Node] = []
    pending = [(guard, least)]
    while pending:
        node, bound = pending.pop()
        for reader, slot in ((r, s) for output in node.writes for r, s in readers(graph, output)):
            is_new = reader.label not in behind
            behind.setdefault(reader.label, []).append(node)
            if _is_sensitive(graph, reader, slot) and not is_harmless(graph, ranges, reader):
                ends.append(reader)
            image = _image(graph, reader, slot, bound)
            if is_new and image is not None and image <= FP16_UNDERFLOW:
                pending.append((reader, image))
    return tuple(node for node in lead_back(behind, ends) if node is not guard)


def _image(graph: Graph, node: Node, slot: int, bound: float) -> float | None:
    """What the node makes of a value of `bound`; None where its output may not be zero for zero."""
    op = node.standard_op
    if op == "Sqrt" and slot == 0:
        return math.sqrt(bound)
    if op == "Pow" and slot == 0:
        return bound ** least_exponent(graph, node) if least_exponent(graph, node) > 0 else None
    return bound if op in ("Mul", "Abs", "Neg") or moves(node, slot) else None
