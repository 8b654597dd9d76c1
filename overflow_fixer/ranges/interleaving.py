"""The nodes of a graph with others among them: behind what they look at, or in the place of the graph's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import NodeProto, TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node

Behind = Mapping[str, Sequence[NodeProto]]
"""The nodes that stand directly behind a tensor's producer."""
Instead = Mapping[str, NodeProto]
"""Nodes that stand for those of the graph, by the labels of these."""

_NARROW = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
_ORT_CAST = "InsertedPrecisionFreeCast_"


def interleave(graph: Graph, behind: Behind, instead: Instead) -> list[NodeProto]:
    """The graph's nodes, or those instead, each followed by the nodes that stand behind its outputs; inputs first."""
    found = [node for spec in graph.inputs for node in behind.get(spec.name, ())]
    for node in graph.run_order:
        proto = _read_rounded(graph, node, behind) if node.op_type == "Cast" else node.proto
        found.append(instead.get(node.label, proto))
        for name in node.writes:
            if name in behind:
                found += behind[name]
    return found


def _read_rounded(graph: Graph, node: Node, behind: Behind) -> NodeProto:
    """The Cast; one of an FP16 tensor to float reads the Identity of the tensor's probe instead.

    ONNX Runtime drops a Cast to float behind its own Cast to FP16, so the values were never rounded,
    except where the tensors are outputs. Behind one of the model's own Casts it drops nothing.
    """
    if not _is_widening(graph, node) or not behind.get(node.inputs[0]):
        return node.proto
    producer = graph.producers.get(node.inputs[0])
    if producer is None or (_is_plain_cast(producer) and _is_plain_cast(node)):
        return node.proto
    copy = NodeProto()
    copy.CopyFrom(node.proto)
    copy.input[0] = behind[node.inputs[0]][0].output[0]
    return copy


def _is_widening(graph: Graph, node: Node) -> bool:
    to = node.attribute("to")
    return to is not None and to.i == TensorProto.FLOAT and graph.dtypes.get(node.inputs[0]) in _NARROW


def _is_plain_cast(node: Node) -> bool:
    """Whether it is a Cast, and not one that ONNX Runtime, by its name, takes for its own."""
    return node.op_type == "Cast" and not node.proto.name.startswith(_ORT_CAST)
