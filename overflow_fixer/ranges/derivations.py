"""Tensors whose extremes follow exactly from those of another, so that they need no probe.

An operator that is monotone and correctly rounded takes the extremes of its input to those of its
output. Sigmoid, Tanh, Erf and Exp are approximations and not monotone to the last bit; a Slice or
Gather keeps a part only; neither is here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.graph import Graph, Node

Values = npt.NDArray[np.float32]
Step = Callable[[Values], Values]


@dataclass(frozen=True)
class Derivation:
    """`tensor` holds what `step` makes of each element of its `sources`, or NaN.

    `step` takes the extremes [2, source] and gives values among which are those of the tensor. `element_count` is None
    where it is the sum of those of the sources.
    """

    tensor: str
    sources: tuple[str, ...]
    step: Step
    element_count: int | None = None


def find_derivations(graph: Graph, sources: Mapping[str, str]) -> Iterator[Derivation]:
    """The derivations among the tensors that hold values of their own, in graph order.

    `sources` maps each observed tensor to the one whose values it holds (see sources.find_sources).
    """
    given = {info.name for info in graph.model.graph.input}
    for name, source in sources.items():
        node = graph.producers.get(name)
        if name != source or node is None or not _is_plain(graph, node):
            continue
        for read, step in _find_steps(graph, node, given):
            if all(tensor in sources for tensor in read):
                yield Derivation(name, tuple(sources[tensor] for tensor in read), step)
                break


def derive_from_rows(tensor: str, rows: tuple[str, str, str], element_count: int) -> Derivation:
    """From tensors that hold, of each row, the largest and the smallest, which hide a NaN, and one that shows it."""
    return Derivation(tensor, rows, _take_extremes, element_count)


def _is_plain(graph: Graph, node: Node) -> bool:
    """Whether it is a standard operator that computes float32 from float32."""
    return node.is_standard and graph.dtypes.get(node.outputs[0]) == TensorProto.FLOAT


def _find_steps(graph: Graph, node: Node, given: Iterable[str]) -> Iterator[tuple[tuple[str, ...], Step]]:
    """What the node may be told from: the tensors, and what it does to their values."""
    if node.op_type == "Concat":
        yield node.inputs, _keep
    elif node.op_type == "Relu":
        yield node.inputs, _rectify
    elif node.op_type == "LeakyRelu":
        slope = node.attribute("alpha")
        alpha = np.float32(0.01 if slope is None else slope.f)
        if 0 <= alpha < math.inf:
            yield node.inputs, partial(_leak, alpha)
    elif node.op_type == "Neg":
        yield node.inputs, np.negative
    elif node.op_type in _ARITHMETIC:
        for slot, (read, other) in enumerate((node.inputs, node.inputs[::-1])):
            number = _read_number(graph, other, given)
            if number is not None and (node.op_type != "Div" or (slot == 0 and number != 0)):
                yield (read,), partial(_ARITHMETIC[node.op_type], number, slot)


def _read_number(graph: Graph, tensor: str, given: Iterable[str]) -> np.float32 | None:
    """The finite number that a constant holds; None for a tensor that is not one, or that may be fed."""
    proto = graph.constants.get(tensor)
    if proto is None or tensor in given or proto.data_type != TensorProto.FLOAT or math.prod(proto.dims) != 1:
        return None
    value = graph.read_constant(tensor)
    assert value is not None
    number = np.float32(value.reshape(-1)[0])
    return number if np.isfinite(number) else None


def _keep(values: Values) -> Values:
    return values


def _take_extremes(values: Values) -> Values:
    return values[:, :2]


def _rectify(values: Values) -> Values:
    return np.asarray(np.maximum(values, np.float32(0)), np.float32)


def _leak(alpha: np.float32, values: Values) -> Values:
    return np.asarray(np.where(values < 0, alpha * values, values), np.float32)


def _subtract(number: np.float32, slot: int, values: Values) -> Values:
    return values - number if slot == 0 else number - values


_ARITHMETIC: dict[str, Callable[[np.float32, int, Values], Values]] = {
    "Add": lambda number, slot, values: values + number,
    "Sub": _subtract,
    "Mul": lambda number, slot, values: values * number,
    "Div": lambda number, slot, values: np.divide(values, number, dtype=np.float32),
}
"""From the constant, the place of the tensor among the inputs, and its values."""


def derive(
    derivations: Iterable[tuple[int, list[int], Step]], ends: Values, is_plain: npt.NDArray[np.bool_]
) -> None:
    """Fill in the extremes of derived tensors, in place.

    `derivations` are (row, rows of the sources, step), sources first. `ends` [2, tensor] are the least
    and the largest value, NaN of an empty tensor. `is_plain` [tensor] says that all values are finite and
    within FP16's range; a derived tensor is plain when its sources are and its own extremes are.
    """
    with np.errstate(all="ignore"):
        for row, sources, step in derivations:
            reached = step(ends[:, sources])
            least, most = np.fmin.reduce(reached, axis=None), np.fmax.reduce(reached, axis=None)
            ends[:, row] = least, most
            is_beyond = least <= -FP16_OVERFLOW or most >= FP16_OVERFLOW
            is_lost = bool(np.isnan(reached).any() and not np.isnan(ends[:, sources]).any())
            is_plain[row] = bool(is_plain[sources].all()) and not is_beyond and not is_lost
