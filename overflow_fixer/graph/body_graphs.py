"""The bodies of If, Loop and Scan as graphs of their own.

A body becomes a model whose inputs are those of the body and the tensors that it captures, so that whatever serves
a model serves a body: it is run, observed and judged like one. Shapes are left out, since those of carried values
may change from run to run. Constants that a body captures are constants of its graph too; large ones stay on disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, TensorProto, TypeProto, ValueInfoProto

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import Graph, derive_graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operator_types import BODY_OUTPUTS
from overflow_fixer.graph.tensor_types import is_typed
from overflow_fixer.model_file.subgraphs import bodies, captures


@dataclass(frozen=True, eq=False)
class Body:
    """One body of `node`, an If, Loop or Scan.

    `attribute` is "then_branch", "else_branch" or "body". `prefix` is "NODE/ATTRIBUTE/", with underscores in front
    where a name of the outer graph, or another body's prefix, begins like that. `inputs` and
    `outputs` are the body's own, in order, `captured` what it reads of the outer graph, constants too.
    """

    node: Node
    attribute: str
    prefix: str
    proto: GraphProto
    captured: tuple[str, ...]
    graph: Graph

    @property
    def name(self) -> str:
        return self.prefix.removesuffix("/")

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(info.name for info in self.proto.input)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(info.name for info in self.proto.output)

    @property
    def captured_constants(self) -> frozenset[str]:
        """The captured tensors that are constants of the outer graph."""
        return frozenset(name for name in self.captured if name in self.graph.initializers)


@dataclass(frozen=True)
class Bodies:
    """Those of all nodes of a graph, in order; `unread` are those that no graph was made of, with the reason."""

    read: tuple[Body, ...]
    unread: Mapping[str, str]


_known: WeakKeyDictionary[Graph, Bodies] = WeakKeyDictionary()


def find_bodies(graph: Graph) -> Bodies:
    """The bodies of the graph's nodes, one level deep. Made once a graph."""
    if graph not in _known:
        _known[graph] = _find(graph)
    return _known[graph]


def _find(graph: Graph) -> Bodies:
    nodes = [node for node in graph.nodes if bodies(node.proto)]
    names = sorted((*graph.tensors, *graph.by_label)) if nodes else []
    prefixes: list[str] = []
    read, unread = [], {}
    for node in nodes:
        for attribute in node.proto.attribute:
            if attribute.type not in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                continue
            prefixes.append(_choose_prefix(f"{node.label}/{attribute.name}/", names, prefixes))
            try:
                read.append(_read(graph, node, attribute, prefixes[-1]))
            except ModelError as error:
                unread[prefixes[-1].removesuffix("/")] = str(error).rstrip(".")
    return Bodies(tuple(read), unread)


def _choose_prefix(wanted: str, names: list[str], prefixes: list[str]) -> str:
    """One that no name begins with (they are sorted), and that begins no other prefix, nor the other way round."""
    while _begins_one(wanted, names) or any(p.startswith(wanted) or wanted.startswith(p) for p in prefixes):
        wanted = "_" + wanted
    return wanted


def _begins_one(prefix: str, names: list[str]) -> bool:
    place = bisect_left(names, prefix)
    return place < len(names) and names[place].startswith(prefix)


def _read(graph: Graph, node: Node, attribute: AttributeProto, prefix: str) -> Body:
    """Raises ModelError, in words that say of a body why it is not read."""
    if node.standard_op not in BODY_OUTPUTS:
        raise ModelError(f"what runs inside {node.op_type} is not looked into")
    proto = attribute.g
    captured = tuple(captures(proto))
    try:
        inner = derive_graph(graph, _make_model(graph, node, proto, captured), prefix)
    except ModelError as error:
        raise ModelError(f"the body cannot stand alone: {error}") from error
    return Body(node, attribute.name, prefix, proto, captured, inner)


def _make_model(graph: Graph, node: Node, proto: GraphProto, captured: tuple[str, ...]) -> ModelProto:
    source = graph.model
    model = ModelProto(ir_version=max(source.ir_version, 4), opset_import=source.opset_import)
    model.graph.name = proto.name or "body"
    declared = {info.name: info.type for info in source.graph.input if info.name in graph.defaults}
    live = [name for name in captured if name not in graph.constants or name in declared]
    model.graph.input.extend(_type_inputs(graph, node, proto))
    model.graph.input.extend(
        ValueInfoProto(name=name, type=declared.get(name) or _type_of(graph, name)) for name in live
    )
    model.graph.initializer.extend(proto.initializer)
    model.graph.initializer.extend(
        _copy_constant(graph, name) for name in captured if name in graph.constants
    )
    model.graph.node.extend(proto.node)
    model.graph.value_info.extend(map(_without_shape, proto.value_info))
    model.graph.output.extend({info.name: _without_shape(info) for info in proto.output}.values())
    return model


def _type_inputs(graph: Graph, node: Node, proto: GraphProto) -> Iterator[ValueInfoProto]:
    """The body's inputs, with the types that they declare, or else those of what the node hands them."""
    given = ["", "", *node.inputs[2:]] if node.op_type == "Loop" else node.inputs
    for name, info in zip(given, proto.input, strict=False):
        yield (
            _without_shape(info)
            if is_typed(info.type)
            else ValueInfoProto(name=info.name, type=_type_of(graph, name))
        )


def _type_of(graph: Graph, name: str) -> TypeProto:
    """The type of a tensor of the graph, without its shape. Raises ModelError where nobody can tell."""
    if name in graph.other_types:
        return graph.other_types[name]
    if graph.dtypes.get(name, TensorProto.UNDEFINED) == TensorProto.UNDEFINED:
        raise ModelError(f"the type of {name!r}, which it reads, is not known")
    return onnx.helper.make_tensor_type_proto(graph.dtypes[name], None)


def _copy_constant(graph: Graph, name: str) -> TensorProto:
    tensor = TensorProto()
    tensor.CopyFrom(graph.constants[name])
    tensor.name = name
    return tensor


def _without_shape(info: ValueInfoProto) -> ValueInfoProto:
    copy = ValueInfoProto()
    copy.CopyFrom(info)
    if copy.type.HasField("tensor_type"):
        copy.type.tensor_type.ClearField("shape")
    return copy
