"""Sigmoids that a model gives out, written out: ONNX Runtime's own is off by as much as 2^-22.

Its kernel adds a half at the end, so of a score of 1e-6 two or three digits of FP32's seven are its own noise. Beside larger
scores that is nothing; where all are as small, FP16 would be judged by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx
from onnx import TensorProto
from onnx.helper import make_node, make_tensor

from overflow_fixer.graph.model import Graph

_PASSES_ON = frozenset(
    """Cast Clip Concat Expand Flatten Gather GatherElements GatherND Identity If Max Min Reshape Slice Split Squeeze
    Transpose Unsqueeze Where""".split()
)
"""Operators that write elements of what they read, as they are; an If may hand on what its branches read."""


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
    """The same of those of a copy of the graph's model, in place."""
    given = find_given_sigmoids(graph)
    targets = {node.outputs[0] for node in graph.nodes if node.label in given}
    if not targets:
        return
    nodes = [*model.graph.node]
    del model.graph.node[:]
    for node in nodes:
        is_given = node.op_type == "Sigmoid" and node.output[0] in targets
        model.graph.node.extend(write_out(node) if is_given else (node,))


def write_out(sigmoid: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """1 / (1 + e^-x) of what the Sigmoid reads, under the name that it writes.

    In FP32 right to 2^-22 of itself from x = -88 on, and 0 below; 0 and 1 of -inf and inf, NaN of NaN.
    """
    (source,), (target,) = sigmoid.input, sigmoid.output
    turned, power, one, divisor = (f"{target}__{part}" for part in ("turned", "power", "one", "divisor"))
    yield make_node("Neg", [source], [turned])
    yield make_node("Exp", [turned], [power])
    yield make_node("Constant", [], [one], value=make_tensor(one, TensorProto.FLOAT, [], [1.0]))
    yield make_node("Add", [power, one], [divisor])
    yield make_node("Reciprocal", [divisor], [target])
