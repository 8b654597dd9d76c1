"""What nodes compare with one number: zero or a constant so small that FP16 holds it badly or not at all, or any other."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from overflow_fixer.formats import round_to_fp16
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node

_COMPARES: Mapping[str, Callable[[float, float], bool]] = {
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Equal": operator.eq,
}
_ASKED = _COMPARES.keys() | {"Sign", "Cast"}
_LARGEST = 2.0**-18
"""From here on FP16 holds a number with 64 steps and more."""
_MOST_ELEMENTS = 4096


class Comparison(NamedTuple):
    """A node that compares a computed tensor, which it reads in a slot, with one number."""

    node: Node
    slot: int
    number: float

    @property
    def tensor(self) -> str:
        return self.node.inputs[self.slot]

    def is_otherwise_in_fp16(self, value: float) -> bool:
        """Whether the node decides otherwise of `value` where that and the number are rounded to FP16."""
        rounded = round_to_fp16(np.asarray([value, self.number])).astype(np.float64)
        return self._decide(value, self.number) != self._decide(float(rounded[0]), float(rounded[1]))

    def _decide(self, value: float, number: float) -> float:
        decide = _COMPARES.get(self.node.op_type)
        if decide is None:  # a Sign, or a conversion to a truth value
            return float(np.sign(value))
        return decide(*((value, number) if self.slot == 0 else (number, value)))


def find_tiny_comparisons(graph: Graph) -> Iterator[Comparison]:
    """Every comparison of a computed FP32 tensor with one number of less than 2^-18; a Sign and a truth value are of zero."""
    return (found for found in _find_comparisons(graph) if abs(found.number) < _LARGEST)


def find_number_comparisons(graph: Graph) -> Iterator[Comparison]:
    """Every comparison of a computed FP32 tensor with one number of 2^-18 or more that is finite."""
    return (found for found in _find_comparisons(graph) if _LARGEST <= abs(found.number) < math.inf)


def _find_comparisons(graph: Graph) -> Iterator[Comparison]:
    for node in (one for one in graph.nodes if one.op_type in _ASKED):
        for found in _find_at(graph, node):
            if graph.dtypes.get(found.tensor) == TensorProto.FLOAT and found.tensor not in graph.constants:
                yield found


def _find_at(graph: Graph, node: Node) -> Iterator[Comparison]:
    op = node.standard_op
    if op == "Sign" or (op == "Cast" and node.value_of("to", 0) == TensorProto.BOOL):
        yield Comparison(node, 0, 0.0)
    for slot in (0, 1) if op in _COMPARES else ():
        yield Comparison(node, slot, _read_number(graph, node.inputs[1 - slot]))


def _read_number(graph: Graph, tensor: str) -> float:
    """The number that a constant is throughout; NaN of another tensor."""
    proto = graph.constants.get(tensor)
    value = None if proto is None or math.prod(proto.dims) > _MOST_ELEMENTS else graph.find_constant(tensor)
    if value is None or not value.size or value.dtype != np.float32 or value.min() != value.max():
        return math.nan
    return float(value.reshape(-1)[0])
