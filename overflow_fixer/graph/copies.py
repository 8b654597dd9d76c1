"""Copies of a model that may be changed freely and share its weights: those stay where they lie on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import onnx

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.model_file.external_data import external_tensors
from overflow_fixer.model_file.weights import bring_in

_COPIED_FIELDS = ("input", "quantization_annotation", "initializer")


def copy_model(graph: Graph) -> onnx.ModelProto:
    """The model as it runs. Raises ModelError when its file changed since it was loaded."""
    return _copy_fields(graph, (*_COPIED_FIELDS, "node", "value_info", "output"))


def copy_shell(graph: Graph) -> onnx.ModelProto:
    """The same for a session: without nodes, outputs, and what the model records of tensors whose types follow anyway."""
    model, source = _copy_fields(graph, _COPIED_FIELDS), graph.model
    foreign = {name for node in graph.nodes if not node.is_standard for name in node.writes}
    if foreign:
        model.graph.value_info.extend(info for info in source.graph.value_info if info.name in foreign)
    return model


def _copy_fields(graph: Graph, fields: Sequence[str]) -> onnx.ModelProto:
    graph.check_unchanged()
    source = graph.model
    model = onnx.ModelProto(ir_version=source.ir_version, opset_import=source.opset_import)
    model.graph.name = source.graph.name or "graph"
    for field in fields:
        getattr(model.graph, field).extend(getattr(source.graph, field))
    return model


def add_nodes(model: onnx.ModelProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Copies of these, without what exporters note about them, which is often more than the nodes."""
    behind = len(model.graph.node)
    model.graph.node.extend(nodes)
    for node in model.graph.node[behind:]:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")


def insert_nodes(
    graph: Graph, behind: Mapping[str, Sequence[onnx.NodeProto]], dtypes: Mapping[str, int]
) -> Graph:
    """The graph with more nodes, each group directly behind the node of that label.

    `dtypes` are the types of what they write, by names that are free. The files, and so the hash, stay `graph`'s.
    """
    model = copy_shell(graph)
    model.graph.output.extend(graph.model.graph.output)
    model.graph.ClearField("value_info")
    model.graph.value_info.extend(graph.model.graph.value_info)
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(node.at(len(nodes)))
        for proto in behind.get(node.label, ()):
            nodes.append(Node.of(len(nodes), proto.output[0], proto))
    add_nodes(model, (node.proto for node in nodes))
    return replace(graph, model=model, nodes=tuple(nodes), dtypes={**graph.dtypes, **dtypes})


def embed_weights(model: onnx.ModelProto, graph: Graph) -> None:
    """Put what lies in the graph's own file back into the message, in place. Raises ModelError as copy_model does."""
    graph.check_unchanged()
    for tensor in external_tensors(model):
        if graph.holds(tensor):
            bring_in(tensor, graph.folder)
