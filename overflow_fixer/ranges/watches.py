"""Nodes behind sums of products that call a function where a sum may be over FP16's limit (see overflow_fixer.native)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import NodeProto, TensorProto

from overflow_fixer.graph import Graph
from overflow_fixer.native import DOMAIN
from overflow_fixer.ranges.probes import DETAILED


@dataclass(frozen=True)
class Watch:
    """Behind the node that writes `output`: of one or two `factors`, each with the axis along which it is summed.

    `call` are the addresses of the function and of the allowance, with the node's number between them.
    """

    output: str
    factors: tuple[tuple[str, int], ...]
    groups: int
    call: tuple[int, int, int]

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors of which it wants to know how far they reach."""
        return (self.output, *(name for name, _ in self.factors))

    def nodes(self, prefix: str, told: Mapping[str, str]) -> Iterator[NodeProto]:
        """`told` has the statistics of tensors by a native probe; of others nothing is known."""
        axes = [axis for _, axis in self.factors]
        numbers = [*self.call, axes[0], self.groups, *axes[1:]]
        yield _constant(prefix + "watch", TensorProto.INT64, numbers)
        if any(name not in told for name in self.reads):
            yield _constant(prefix + "unknown", TensorProto.DOUBLE, [math.nan] * len(DETAILED))
        inputs = [prefix + "watch", told.get(self.output, prefix + "unknown")]
        for name, _ in self.factors:
            inputs += [told.get(name, prefix + "unknown"), name]
        op_type = "WatchPair" if len(self.factors) == 2 else "Watch"
        yield NodeProto(op_type=op_type, domain=DOMAIN, input=inputs, output=[prefix + "nothing"])


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


def _constant(name: str, elem_type: int, numbers: Sequence[float]) -> NodeProto:
    return onnx.helper.make_node(
        "Constant", [], [name], value=onnx.helper.make_tensor(name, elem_type, [len(numbers)], numbers)
    )
