"""Nodes behind sums of products that call a function where a sum may be over FP16's limit (see overflow_fixer.native)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from overflow_fixer.graph import Graph
from overflow_fixer.native import DOMAIN
from overflow_fixer.nodes import Node
from overflow_fixer.ranges.derivations import find_factor
from overflow_fixer.ranges.probes import DETAILED

_MOST_SCALE = 2.0**30
"""What numbers near the least lose to rounding stays small beside FP16's limit when it is multiplied by that."""


class Told(NamedTuple):
    """The `statistics` of a tensor, or of one whose values times `scale` reach as high and are no smaller in magnitude."""

    statistics: str
    scale: float


@dataclass(frozen=True)
class Watch:
    """Behind the node that writes `output`: of one or two `factors`, each with the axis along which it is summed, in `groups`.

    The second may be a convolution's weights (`has_kernel`); one factor alone may have a `constant` shown with it. It calls
    a `function` with a `number`, where an `allowance` does not keep it from that. Both are addresses.
    """

    output: str
    factors: tuple[tuple[str, int], ...]
    groups: int
    function: int
    number: int
    allowance: int
    has_kernel: bool = False
    constant: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors of which it wants to know how far they reach."""
        return (self.output, *(name for name, _ in self.factors))

    def make_node(self, prefix: str, told: Mapping[str, Told], unknown: str) -> NodeProto:
        """`told` has the statistics of tensors by a native probe; `unknown` are those of others."""
        of_unknown = Told(unknown, 1.0)
        inputs = [told.get(self.output, of_unknown).statistics]
        for name, _ in self.factors:
            inputs += [told.get(name, of_unknown).statistics, name]
        inputs += [self.constant] if self.constant else []
        numbers = [self.function, self.number, self.allowance]
        of_factors = [(axis, _bits_of(told.get(name, of_unknown).scale)) for name, axis in self.factors]
        numbers += [of_factors[0][0], self.groups, of_factors[0][1], *of_factors[-1], int(self.has_kernel)]
        return NodeProto(
            op_type="WatchPair" if len(self.factors) == 2 else "Watch",
            domain=DOMAIN,
            input=inputs,
            output=[prefix + "nothing"],
            attribute=[AttributeProto(name="numbers", type=AttributeProto.INTS, ints=numbers)],
        )


def _bits_of(number: float) -> int:
    """As an attribute: ONNX has no doubles."""
    return int(struct.unpack("=q", struct.pack("=d", number))[0])


def make_unknown(name: str) -> NodeProto:
    """The statistics of a tensor of which nothing is known."""
    numbers = [math.nan] * len(DETAILED)
    tensor = onnx.helper.make_tensor(name, TensorProto.DOUBLE, [len(numbers)], numbers)
    return onnx.helper.make_node("Constant", [], [name], value=tensor)


def find_told(
    graph: Graph, sources: Mapping[str, str], probed: Mapping[str, str], tensor: str
) -> Told | None:
    """What native probes tell of a tensor. `probed` are the statistics of those with one, `sources` those of sources.find_sources."""
    scale = 1.0
    name = sources.get(tensor, tensor)
    while name not in probed:
        node = graph.producers.get(name)
        read = None if node is None else _find_larger(graph, node)
        if read is None or not 1 / _MOST_SCALE <= scale * read[1] <= _MOST_SCALE:
            return None
        name, scale = sources.get(read[0], read[0]), scale * read[1]
    return Told(probed[name], scale)


def _find_larger(graph: Graph, node: Node) -> tuple[str, float] | None:
    """A tensor of which the node's is a part, in magnitude, when multiplied by that number."""
    if node.standard_op == "Relu":
        return node.inputs[0], 1.0
    return find_factor(graph, node)
