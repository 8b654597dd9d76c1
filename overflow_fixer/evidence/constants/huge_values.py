"""What operators do to a huge value that comes in: the tables that the rules share.

They hold for the standard operators alone. An operator that no table names, and every operator of
another domain, is taken to show the value in each of its outputs, with either sign.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from overflow_fixer.evidence.semantics import MOVES, moves, read_reduction
from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import CASTS, SCATTERS
from overflow_fixer.records import Range

Signs = frozenset[int]
"""The signs, -1 and 1, that a huge value can have; empty where none is left."""

NEGATIVE: Signs = frozenset({-1})
POSITIVE: Signs = frozenset({1})
EITHER: Signs = frozenset({-1, 1})
NEITHER: Signs = frozenset()

_ABSORBED: Mapping[str, frozenset[int]] = {
    **dict.fromkeys(
        """Softmax Hardmax Sigmoid HardSigmoid Tanh Softsign Erf Sign Sin Cos Asin Acos Atan Reciprocal
        LayerNormalization InstanceNormalization GroupNormalization RMSNormalization LpNormalization
        MeanVarianceNormalization EyeLike RandomNormalLike RandomUniformLike Bernoulli""".split(),
        frozenset({0}),
    ),
    "BatchNormalization": frozenset({4}),
    "CastLike": frozenset({1}),
    "DeformConv": frozenset({2}),
    "Div": frozenset({1}),
    "Dropout": frozenset({1}),
    "GridSample": frozenset({1}),
    "MaxRoiPool": frozenset({1}),
    "OneHot": frozenset({0, 1}),
    "Resize": frozenset({1, 2}),
    "RoiAlign": frozenset({1}),
    "Upsample": frozenset({1}),
}
"""Inputs whose magnitude the first output does not show: it is bounded, or they only steer it."""

_ATTENTION_INPUTS = ({2, 5}, {1, 4}, {2, 5})
"""For each output of Attention, the inputs whose magnitude it shows: the others end in its softmax."""

_CONVERTS = CASTS | {"Identity"}
_ENDLESS = 2.0**120
_MAKES_INFINITY = frozenset("Log Div Reciprocal Pow".split())
_HANDS_INFINITY_ON = frozenset("Where Neg Abs Add Sub Mul Max Min Clip Relu".split())

_STOPS_NEGATIVE = frozenset(
    "Relu Exp Elu Celu Selu Softplus Gelu Mish Swish HardSwish ThresholdedRelu".split()
)
_TO_POSITIVE = frozenset("Abs Sqrt Cosh ReduceL1 ReduceL2 ReduceSumSquare LpPool GlobalLpPool".split())
_NEVER_NEGATIVE = frozenset(
    "Relu Softplus Exp Sigmoid HardSigmoid Softmax Abs Sqrt ReduceL1 ReduceL2 ReduceSumSquare".split()
)
_KEEPS_SIGN = MOVES | frozenset(
    """Add Sum Mean Where Max Min Clip ReduceMax ReduceMin ReduceSum ReduceMean MaxPool AveragePool
    GlobalMaxPool GlobalAveragePool CumSum TopK Pad Trilu OneHot Floor Ceil Round CenterCropPad""".split()
)


def shown_signs(node: Node, slot: int, output: int, signs: Signs, graph: Graph) -> Signs:
    """The signs with which output number `output` can show a huge value of `signs` at input `slot`.

    Slots from len(node.inputs) on are the tensors that the node's bodies capture. Whether another input
    of Max or Min hides the value is not looked at.
    """
    op = node.standard_op
    if not op or slot >= len(node.inputs):
        return EITHER
    if _is_absorbed(node, slot, output):
        return NEITHER
    if op in ("Clip", "Where") and is_bound(node, slot, signs, graph):
        return NEITHER
    if op == "LogSoftmax" or (op == "Sub" and _subtracts_own_maximum(node, graph)):
        return NEGATIVE
    if op in _STOPS_NEGATIVE:
        return signs & POSITIVE
    if op in _TO_POSITIVE:
        return POSITIVE
    if op == "Neg" or (op == "Sub" and slot == 1):
        return frozenset(-sign for sign in signs)
    if op == "Clip":
        return signs - _clipped_signs(node, graph)
    keeps_sign = op in _KEEPS_SIGN or op == "Sub" or (op in SCATTERS and read_reduction(node) != b"mul")
    return signs if keeps_sign or _scales_by_no_negative(node, slot, graph) else EITHER


def _scales_by_no_negative(node: Node, slot: int, graph: Graph) -> bool:
    """Whether the value is multiplied or divided by what is never negative, whatever is fed."""
    if node.standard_op != "Mul" and (node.standard_op, slot) != ("Div", 0):
        return False
    name = _as_it_was(node.inputs[1 - slot], graph)
    writer = graph.producers.get(name)
    while writer is not None and moves(writer, 0) and writer.standard_op != "Concat":
        name = _as_it_was(writer.inputs[0], graph)
        writer = graph.producers.get(name)
    value = graph.read_fixed(name)
    if value is not None:
        return bool(value.size) and bool((value >= 0).all())
    return writer is not None and writer.standard_op in _NEVER_NEGATIVE


def _is_absorbed(node: Node, slot: int, output: int) -> bool:
    """Whether the output's magnitude is free of the magnitude of the input."""
    op = node.standard_op
    if op == "Attention" and output < len(_ATTENTION_INPUTS):
        return slot not in _ATTENTION_INPUTS[output]
    return output == 0 and slot in _ABSORBED.get(op, ())


def is_bound(node: Node, slot: int, signs: Signs, graph: Graph) -> bool:
    """Whether a huge constant of `signs` at `slot` is a bound that no FP16 value passes.

    Of Clip, Min and Max; or what Where puts in the place of a tensor's infinities, if FP32 makes none there of finite data. An
    input may hold some: in their place only what is near FP32's largest number is no matter.
    """
    op = node.standard_op
    if op == "Clip":
        return (slot == 1 and signs == NEGATIVE) or (slot == 2 and signs == POSITIVE)
    if op == "Where":
        source = replaced_infinity(node, graph) if slot == 1 else None
        if source is None or _can_be_infinite(source, graph):
            return False
        return not _is_fed(source, graph) or _is_endless(node.inputs[1], graph)
    return (op == "Max" and signs == NEGATIVE) or (op == "Min" and signs == POSITIVE)


def only_bounds(graph: Graph, node: Node, seen: Range, limit: float) -> bool:
    """Whether the node reads the constant `seen.tensor`, which is over `limit`, only as such a bound."""
    if seen.tensor not in graph.constants or seen.nan_count:
        return False
    slots = [slot for slot, name in enumerate(node.inputs) if name == seen.tensor]
    signs = frozenset(sign for sign, extreme in ((-1, -seen.min), (1, seen.max)) if extreme > limit)
    return bool(slots) and all(is_bound(node, slot, signs, graph) for slot in slots)


def _subtracts_own_maximum(node: Node, graph: Graph) -> bool:
    """x - ReduceMax(x), the first step of a softmax written out: at most 0, whatever x holds."""
    maximum = graph.producers.get(node.inputs[1])
    if maximum is None or maximum.standard_op != "ReduceMax" or maximum.inputs[0] != node.inputs[0]:
        return False
    return bool(maximum.value_of("keepdims", 1))  # without, it is taken from other rows


def _clipped_signs(node: Node, graph: Graph) -> Signs:
    """The signs that Clip's constant bounds stop: below its minimum, above its maximum."""
    low, high = (_clip_bound(node, graph, *where) for where in (("min", 1), ("max", 2)))
    stopped = {-1: low is not None and low > -FP16_OVERFLOW, 1: high is not None and high < FP16_OVERFLOW}
    return frozenset(sign for sign, is_stopped in stopped.items() if is_stopped)


def _clip_bound(node: Node, graph: Graph, name: str, slot: int) -> float | None:
    """Clip's bound: an attribute below opset 11, an input since."""
    attribute = node.attribute(name)
    if attribute is not None:
        return float(attribute.f)
    value = graph.find_constant(node.inputs[slot]) if slot < len(node.inputs) else None
    return float(value.astype(np.float64).reshape(())) if value is not None and value.size == 1 else None


def replaced_infinity(node: Node, graph: Graph) -> str | None:
    """The tensor in the place of whose infinities a Where puts something, as torch.nan_to_num does; None of another node."""
    tested = _find_tested(node.inputs[0], graph) if node.standard_op == "Where" else set()
    pending, seen = [node.inputs[2]] if tested else [], set[str]()
    while pending:
        name = _as_it_was(pending.pop(), graph)
        if name in tested:
            return name
        before = graph.producers.get(name)
        fresh = before.inputs[1:] if before is not None and before.standard_op == "Where" else ()
        pending += [one for one in fresh if one not in seen]
        seen.update(fresh)
    return None


def _find_tested(condition: str, graph: Graph) -> set[str]:
    """The tensors x of which the condition is IsInf(x), or that and something else."""
    found, pending, seen = set[str](), [condition], {condition}
    while pending:
        node = graph.producers.get(_as_it_was(pending.pop(), graph))
        if node is not None and node.standard_op == "IsInf":
            found.add(_as_it_was(node.inputs[0], graph))
        fresh = [
            name
            for name in (node.inputs if node is not None and node.standard_op == "And" else ())
            if name not in seen
        ]
        seen.update(fresh)
        pending += fresh
    return found


def _as_it_was(tensor: str, graph: Graph) -> str:
    """The tensor before it was converted."""
    node = graph.producers.get(tensor)
    while node is not None and node.standard_op in _CONVERTS:
        tensor = node.inputs[0]
        node = graph.producers.get(tensor)
    return tensor


def _can_be_infinite(tensor: str, graph: Graph) -> bool:
    """Whether finite data make infinities there in FP32: by a logarithm, a quotient or a power, moved, added to or scaled."""
    return any(node is not None and node.standard_op in _MAKES_INFINITY for node in _walk_up(tensor, graph))


def _is_fed(tensor: str, graph: Graph) -> bool:
    """Whether it has elements of an input, moved, added to or scaled."""
    return any(node is None for node in _walk_up(tensor, graph))


def _walk_up(tensor: str, graph: Graph) -> Iterator[Node | None]:
    """What computes the tensor and, through moves, choices, sums and products by element, what comes in; None for an input."""
    pending, seen = [tensor], {tensor}
    while pending:
        node = graph.producers.get(pending.pop())
        yield node
        if node is not None and (node.standard_op in _HANDS_INFINITY_ON or moves(node, 0)):
            fresh = [name for name in node.inputs if graph.is_float(name) and name not in seen]
            pending += [name for name in fresh if name not in graph.constants]
            seen.update(fresh)


def _is_endless(tensor: str, graph: Graph) -> bool:
    """Whether it is a constant of numbers that no sum or product of FP32 bears either."""
    value = graph.find_constant(tensor)
    return (
        value is not None and bool(value.size) and float(np.abs(value.astype(np.float64)).min()) >= _ENDLESS
    )
