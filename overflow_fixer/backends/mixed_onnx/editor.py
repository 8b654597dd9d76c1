"""A model's wiring, opened in onnx-graphsurgeon and closed again with nothing lost.

GraphSurgeon gets nodes, names and wires alone. What it cannot carry (optional types, type
attributes, empty lists, metadata) or copies into every body (initializers) stays in the original
messages and is put back on the way out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import onnx
import onnx_graphsurgeon as gs
from google.protobuf.message import Message
from onnx_graphsurgeon.logger import G_LOGGER
from onnx_graphsurgeon.logger.logger import LoggerSuppress

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.model_file.subgraphs import bodies, own_names

_ORIGIN = "overflow_fixer_origin"


class Editor:
    """`nodes` are GraphSurgeon's, in the order of the graph's own; `tensors` are its tensors by name.

    A node's inputs are all that it reads: first its own, then what its bodies capture. Every tensor
    is a Variable, initializers too. An attribute set on a node wins over the original's of that name. A node whose
    outputs were renamed has its label for a name, since one without a name is known by its first output.
    """

    def __init__(self, graph: Graph) -> None:
        self._source = graph
        with LoggerSuppress(G_LOGGER, G_LOGGER.CRITICAL):
            self._surgeon = gs.import_onnx(_wiring(graph))
            self.tensors: Mapping[str, gs.Variable] = self._surgeon.tensors()
        self.nodes: tuple[gs.Node, ...] = tuple(self._surgeon.nodes)

    def close(self, nodes: Iterable[gs.Node], initializers: Iterable[onnx.TensorProto]) -> onnx.ModelProto:
        """The model with these nodes and dense initializers; value_info is left empty.

        An initializer is a constant: none stands among the inputs, where it could be overridden.
        """
        self._surgeon.nodes = list(nodes)
        with LoggerSuppress(G_LOGGER, G_LOGGER.CRITICAL):
            edited = gs.export_onnx(self._surgeon, do_type_check=False).graph
        original = self._source.model
        model = onnx.ModelProto()
        _copy_fields(model, original, leave_out=("graph", "functions", "training_info"))
        _copy_fields(model.graph, original.graph, leave_out=("node", "input", "initializer", "value_info"))
        model.graph.name = original.graph.name or "graph"
        given = {spec.name for spec in self._source.inputs}
        model.graph.input.extend(info for info in original.graph.input if info.name in given)
        model.graph.initializer.extend(initializers)
        model.graph.node.extend(self._restored(node) for node in edited.node)
        return model

    def _restored(self, edited: onnx.NodeProto) -> onnx.NodeProto:
        origin = next((found.i for found in edited.attribute if found.name == _ORIGIN), None)
        if origin is None:
            return edited
        node = self._source.nodes[origin]
        own = len(node.inputs)
        renamed = dict(zip(node.captured, edited.input[own:], strict=True))
        restored = onnx.NodeProto()
        restored.CopyFrom(node.proto)
        restored.input[:] = edited.input[:own]
        restored.output[:] = edited.output
        if restored.output[:] != list(node.outputs):
            restored.name = node.label
        for body in bodies(restored):
            _rename_captured(body, renamed)
        changed = {found.name: found for found in edited.attribute if found.name != _ORIGIN}
        kept = [found for found in restored.attribute if found.name not in changed]
        del restored.attribute[:]
        restored.attribute.extend([*kept, *changed.values()])
        return restored


def _wiring(graph: Graph) -> onnx.ModelProto:
    source = graph.model
    wiring = onnx.ModelProto(ir_version=source.ir_version, opset_import=source.opset_import)
    wiring.graph.name = "wiring"
    wiring.graph.node.extend(_wires(node) for node in graph.nodes)
    given = dict.fromkeys((*(spec.name for spec in graph.inputs), *graph.initializers))
    wiring.graph.input.extend(onnx.ValueInfoProto(name=name) for name in given)
    wiring.graph.output.extend(onnx.ValueInfoProto(name=name) for name in graph.outputs)
    return wiring


def _wires(node: Node) -> onnx.NodeProto:
    wires = onnx.helper.make_node(node.op_type, (*node.inputs, *node.captured), node.outputs)
    wires.attribute.append(onnx.helper.make_attribute(_ORIGIN, node.index))
    return wires


def _rename_captured(body: onnx.GraphProto, renamed: Mapping[str, str]) -> None:
    """Give the outer tensors that a body reads, at any depth, their new names."""
    own = own_names(body)
    visible = {name: new for name, new in renamed.items() if name not in own and name != new}
    if not visible:
        return
    for node in body.node:
        node.input[:] = [visible.get(name, name) for name in node.input]
        for inner in bodies(node):
            _rename_captured(inner, visible)


def _copy_fields(target: Message, source: Message, leave_out: Collection[str]) -> None:
    for field, value in source.ListFields():
        if field.name in leave_out:
            continue
        if isinstance(value, (int, str)):
            setattr(target, field.name, value)
        else:
            getattr(target, field.name).extend(value)
