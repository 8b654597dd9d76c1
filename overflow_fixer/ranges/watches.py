"""Nodes behind sums of products that call a function where a sum may be over FP16's limit (see overflow_fixer.native)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx
from onnx import NodeProto, TensorProto

from overflow_fixer.graph import Graph
from overflow_fixer.native import DOMAIN
from overflow_fixer.ranges.probes import DETAILED


@dataclass(frozen=True)
class Watch:
    """Behind the node that writes `output`: of one or two `factors`, each with the axis along which it is summed, in `groups`.

    It calls a `function` with a `number`, where an `allowance` does not keep it from that. Both are addresses.
    """

    output: str
    factors: tuple[tuple[str, int], ...]
    groups: int
    function: int
    number: int
    allowance: int

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors of which it wants to know how far they reach."""
        return (self.output, *(name for name, _ in self.factors))

    def make_node(self, prefix: str, told: Mapping[str, str], unknown: str) -> NodeProto:
        """`told` has the statistics of tensors by a native probe; `unknown` are those of others."""
        inputs = [told.get(self.output, unknown)]
        for name, _ in self.factors:
            inputs += [told.get(name, unknown), name]
        return onnx.helper.make_node(
            "WatchPair" if len(self.factors) == 2 else "Watch",
            inputs,
            [prefix + "nothing"],
            domain=DOMAIN,
            function=self.function,
            number=self.number,
            allowance=self.allowance,
            axis=self.factors[0][1],
            groups=self.groups,
            axis_y=self.factors[-1][1],
        )


def make_unknown(name: str) -> NodeProto:
    """The statistics of a tensor of which nothing is known."""
    numbers = [math.nan] * len(DETAILED)
    tensor = onnx.helper.make_tensor(name, TensorProto.DOUBLE, [len(numbers)], numbers)
    return onnx.helper.make_node("Constant", [], [name], value=tensor)


def find_told(graph: Graph, sources: Mapping[str, str], probed: Mapping[str, str], tensor: str) -> str | None:
    """The statistics of a tensor, or of one that reaches as high and of which no magnitude is smaller.

    `probed` are those of tensors with a native probe, `sources` those of sources.find_sources.
    """
    name: str | None = tensor
    while name is not None:
        name = sources.get(name, name)
        if name in probed:
            return probed[name]
        node = graph.producers.get(name)
        name = node.inputs[0] if node is not None and node.is_standard and node.op_type == "Relu" else None
    return None
