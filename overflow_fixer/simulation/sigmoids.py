"""Sigmoids that a model gives out, written out: ONNX Runtime's own is off by as much as 2^-22.

Its kernel adds a half at the end, so of a score of 1e-6 two or three digits of FP32's seven are its own noise. Beside larger
scores that is nothing; where all are as small, FP16 would be judged by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx
from onnx import TensorProto
from onnx.helper import make_node, make_tensor

from overflow_fixer.graph.free_names import free_prefix
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node

_PASSES_ON = frozenset(
    """Cast Clip Concat Expand Flatten Gather GatherElements GatherND Identity If Max Min Reshape Slice Split Squeeze
    Transpose Unsqueeze Where""".split()
)
"""Operators that write elements of what they read, as they are; an If may hand on what its branches read."""


class GivenSigmoids:
    """Those of a graph, by `labels`, and what computes its nodes, with these written out under names that nothing in it has."""

    def __init__(self, graph: Graph, types: Collection[int] = (TensorProto.FLOAT,)) -> None:
        self.labels = find_given_sigmoids(graph, types)
        self._prefix = free_prefix(graph, "sigmoid_of_") if self.labels else ""

    def compute(self, node: Node, proto: onnx.NodeProto) -> Iterable[onnx.NodeProto]:
        """The proto of the node, which may read and write other names; of such a Sigmoid what it is written out as."""
        return write_out(proto, self._prefix) if node.label in self.labels else (proto,)


def find_given_sigmoids(graph: Graph, types: Collection[int] = (TensorProto.FLOAT,)) -> frozenset[str]:
    """The labels of the Sigmoids, of these types, of which the model gives out elements, moved or chosen perhaps."""
    given, found = set(graph.outputs), set[str]()
    for node in reversed(graph.nodes):
        if given.isdisjoint(node.writes):
            continue
        if node.standard_op in _PASSES_ON:
            given.update(node.reads)
        elif node.standard_op == "Sigmoid" and graph.dtypes.get(node.outputs[0]) in types:
            found.add(node.label)
    return frozenset(found)


def write_out_given(model: onnx.ModelProto, graph: Graph) -> None:
    """Write out those of a copy of the graph's model, in place."""
    given = GivenSigmoids(graph)
    written = {node.outputs[0]: node for node in graph.nodes if node.label in given.labels}
    if not written:
        return
    nodes = [*model.graph.node]
    del model.graph.node[:]
    for node in nodes:
        sigmoid = written.get(node.output[0]) if node.op_type == "Sigmoid" else None
        model.graph.node.extend((node,) if sigmoid is None else given.compute(sigmoid, node))


def write_out(sigmoid: onnx.NodeProto, prefix: str) -> Iterator[onnx.NodeProto]:
    """1 / (1 + e^-x) of what the Sigmoid reads, under the name that it writes; what is between begins with `prefix`.

    In FP32 right to 2^-22 of itself from x = -88 on, and 0 below; 0 and 1 of -inf and inf, NaN of NaN.
    """
    (source,), (target,) = sigmoid.input, sigmoid.output
    turned, power, one, divisor = (
        f"{prefix}{target}__{part}" for part in ("turned", "power", "one", "divisor")
    )
    yield make_node("Neg", [source], [turned])
    yield make_node("Exp", [turned], [power])
    yield make_node("Constant", [], [one], value=make_tensor(one, TensorProto.FLOAT, [], [1.0]))
    yield make_node("Add", [power, one], [divisor])
    yield make_node("Reciprocal", [divisor], [target])
