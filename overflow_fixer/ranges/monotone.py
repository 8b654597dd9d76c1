"""What nodes do to extremes: operators that are monotone and correctly rounded, whose output tells nothing new.

They take the extremes of their input to those of their output. Sigmoid, Tanh, Erf and Exp are approximations and not
monotone to the last bit, and not every runtime's Sqrt is exact; none of them is here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from overflow_fixer.formats import FP16_MAX
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.model_file.weights import read_values

Values = npt.NDArray[np.float32]
Step = Callable[[Values, Values], Values]
"""Of values [2, tensor], and for each tensor the numbers [k, tensor], gives values [2, tensor]."""
_INTEGERS: dict[int, np.iinfo[Any]] = {
    TensorProto.UINT8: np.iinfo(np.uint8),
    TensorProto.INT8: np.iinfo(np.int8),
    TensorProto.UINT16: np.iinfo(np.uint16),
    TensorProto.INT16: np.iinfo(np.int16),
}
_FLOAT = struct.Struct("<f")
_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_OWN_PRECISION = (TensorProto.UNDEFINED, TensorProto.FLOAT)
_LARGEST_QUOTIENT = 2.0**31 - 2.0**16
"""To what is no larger a kernel can add a zero point in an int32."""


class Monotone(NamedTuple):
    """What a node writes is what `step`, with its `numbers`, makes of each element of the tensors it `reads`."""

    reads: tuple[str, ...]
    step: Step
    numbers: tuple[float, ...] = ()


def find_monotone(graph: Graph, node: Node) -> Iterator[Monotone]:
    """The ways in which a standard operator that gives float32 is one; two where either input may be the tensor."""
    if node.op_type not in _OPERATORS or not node.is_standard:
        return
    if graph.dtypes.get(node.outputs[0]) == TensorProto.FLOAT:
        yield from _OPERATORS[node.op_type](graph, node)


def keep(values: Values, numbers: Values) -> Values:
    """The same."""
    return values


def negate(values: Values, numbers: Values) -> Values:
    """With other signs."""
    return -values


def clip(values: Values, bounds: Values) -> Values:
    """Those between the least and the largest that `bounds` [2, tensor] give; those that FP16 cannot hold stop nothing.

    But for infinities: what a Clip does without a bound is to make them the largest float.
    """
    return np.asarray(np.minimum(np.maximum(values, bounds[0]), bounds[1]), np.float32)


def quantize(values: Values, numbers: Values) -> Values:
    """To integers and back, as QuantizeLinear and DequantizeLinear: rounded half to even, and kept within the type.

    The `numbers` are the scale, the ends of the type less the zero point, the zero point less that of the way back, and the
    scale of that. FP16 can hold all that it gives. NaN where the quotient may not fit an int32: of that kernels make one thing
    or another.
    """
    scale, least, most, shift, scale_back = numbers
    quotients = values / scale
    steps = np.minimum(np.maximum(np.rint(quotients), least), most) + shift
    is_known = np.abs(quotients) < _LARGEST_QUOTIENT
    return np.asarray(np.where(is_known, steps * scale_back, np.nan), np.float32)


def multiply(values: Values, numbers: Values) -> Values:
    """By a number."""
    return np.asarray(values * numbers[0], np.float32)


def divide(values: Values, numbers: Values) -> Values:
    """By a number that is not 0."""
    return np.asarray(values / numbers[0], np.float32)


def find_ends(step: Step, numbers: tuple[float, ...]) -> tuple[float, float]:
    """The least and the largest value that the step can give of any; infinite where it is not bounded."""
    if step is quantize:
        _, least, most, shift, scale = np.array(numbers, np.float32)
        return float((least + shift) * scale), float((most + shift) * scale)
    return (numbers[0], numbers[1]) if step is clip else (-math.inf, math.inf)


def leaves_fp16(step: Step, numbers: tuple[float, ...]) -> bool:
    """Whether it adds, takes away or multiplies by a number that FP16 cannot hold, as of a mask's fill."""
    return step in (_add, _subtract, _subtract_from, multiply) and abs(numbers[0]) > FP16_MAX


def _add(values: Values, numbers: Values) -> Values:
    return np.asarray(values + numbers[0], np.float32)


def _subtract(values: Values, numbers: Values) -> Values:
    return np.asarray(values - numbers[0], np.float32)


def _subtract_from(values: Values, numbers: Values) -> Values:
    return np.asarray(numbers[0] - values, np.float32)


def _leak(values: Values, alphas: Values) -> Values:
    return np.asarray(np.where(values < 0, alphas[0] * values, values), np.float32)


def _find_concat(graph: Graph, node: Node) -> Iterator[Monotone]:
    yield Monotone(node.inputs, keep)


def _find_neg(graph: Graph, node: Node) -> Iterator[Monotone]:
    yield Monotone(node.inputs, negate)


def _find_relu(graph: Graph, node: Node) -> Iterator[Monotone]:
    yield Monotone(node.inputs, clip, (0.0, math.inf))


def _find_leaky_relu(graph: Graph, node: Node) -> Iterator[Monotone]:
    slope = node.attribute("alpha")
    alpha = np.float32(0.01 if slope is None else slope.f)
    if 0 <= alpha < math.inf:
        yield Monotone(node.inputs, _leak, (float(alpha),))


def _find_clip(graph: Graph, node: Node) -> Iterator[Monotone]:
    least = _read_bound(graph, node, 1, "min", -_LARGEST_FLOAT)
    most = _read_bound(graph, node, 2, "max", _LARGEST_FLOAT)
    if least is not None and most is not None and least <= most:
        yield Monotone(node.inputs[:1], clip, (least, most))


def _read_bound(graph: Graph, node: Node, slot: int, word: str, unbounded: float) -> float | None:
    """An attribute below opset 11 and an input since; None for one that shows in a run alone, or that FP16 cannot hold."""
    attribute = node.attribute(word)
    name = node.inputs[slot] if slot < len(node.inputs) else ""
    if attribute is None and not name:
        return unbounded
    bound = _read_number(graph, name) if attribute is None else attribute.f
    return bound if bound is not None and abs(bound) <= FP16_MAX else None


def _find_bound(graph: Graph, node: Node) -> Iterator[Monotone]:
    """Of Max or Min of a tensor and a number."""
    for i, other in enumerate(reversed(node.inputs)):
        bound = _read_number(graph, other) if len(node.inputs) == 2 else None
        if bound is not None and abs(bound) <= FP16_MAX:
            bounds = (bound, math.inf) if node.op_type == "Max" else (-math.inf, bound)
            yield Monotone((node.inputs[i],), clip, bounds)


def _find_arithmetic(graph: Graph, node: Node) -> Iterator[Monotone]:
    for i, step in enumerate(_ARITHMETIC[node.op_type]):
        number = _read_number(graph, node.inputs[1 - i])
        if number is not None and (step is not divide or number != 0):
            yield Monotone((node.inputs[i],), step, (number,))


def _find_quantization(graph: Graph, node: Node) -> Iterator[Monotone]:
    """Of what a QuantizeLinear wrote, both with one scale for all elements."""
    writer = graph.producers.get(node.inputs[0])
    limits = _INTEGERS.get(graph.dtypes.get(node.inputs[0], 0))
    if limits is None or writer is None or not _quantizes_float(graph, writer):
        return
    there = _read_scale(graph, writer)
    back = there if node.inputs[1:] == writer.inputs[1:] else _read_scale(graph, node)
    if there is not None and back is not None:
        (scale, zero), (scale_back, zero_back) = there, back
        farthest = max(abs(limits.min - zero_back), abs(limits.max - zero_back)) * scale_back
        if farthest <= FP16_MAX:
            numbers = (scale, limits.min - zero, limits.max - zero, zero - zero_back, scale_back)
            yield Monotone(writer.inputs[:1], quantize, numbers)


def _quantizes_float(graph: Graph, node: Node) -> bool:
    """Whether it is a QuantizeLinear that divides float32 by float32."""
    precision = node.attribute("precision")  # since opset 23
    return (
        node.standard_op == "QuantizeLinear"
        and graph.dtypes.get(node.inputs[0]) == TensorProto.FLOAT
        and (precision is None or precision.i in _OWN_PRECISION)
    )


def _read_scale(graph: Graph, node: Node) -> tuple[float, float] | None:
    """The positive scale and the zero point; None where they are not one for all, or show in a run alone."""
    scale = _read_number(graph, node.inputs[1])
    name = node.inputs[2] if len(node.inputs) > 2 else ""
    zero = _read_single(graph, name) if name else 0
    return None if scale is None or scale <= 0 or zero is None else (scale, zero)


def _read_number(graph: Graph, tensor: str) -> float | None:
    """The finite float that a constant holds; None for a tensor that is not one, or that may be fed."""
    proto = graph.constants.get(tensor)
    value = None if proto is None or proto.data_type != TensorProto.FLOAT else _read_single(graph, tensor)
    return value if value is not None and math.isfinite(value) else None


def _read_single(graph: Graph, tensor: str) -> float | None:
    """The element of a constant; None for a tensor that is not one, has more, or may be fed."""
    proto = graph.constants.get(tensor)
    if proto is None or math.prod(proto.dims) != 1 or tensor in graph.defaults:
        return None
    if len(proto.float_data) == 1:  # the library takes ten times as long, here and in the next line
        return proto.float_data[0]
    if proto.data_type == TensorProto.FLOAT and len(proto.raw_data) == _FLOAT.size:
        return float(_FLOAT.unpack(proto.raw_data)[0])
    return float(read_values(proto, graph.folder).item())


_ARITHMETIC: dict[str, tuple[Step, ...]] = {
    "Add": (_add, _add),
    "Sub": (_subtract, _subtract_from),
    "Mul": (multiply, multiply),
    "Div": (divide,),
}
"""By the operator, for each input that may be the tensor; the other is a number."""
_OPERATORS: dict[str, Callable[[Graph, Node], Iterator[Monotone]]] = {
    "Concat": _find_concat,
    "Neg": _find_neg,
    "Relu": _find_relu,
    "LeakyRelu": _find_leaky_relu,
    "Clip": _find_clip,
    "Max": _find_bound,
    "Min": _find_bound,
    "DequantizeLinear": _find_quantization,
    **dict.fromkeys(_ARITHMETIC, _find_arithmetic),
}
