"""A model's graphs at any depth: the bodies of its nodes, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

import onnx
from onnx import TensorProto

STANDARD_DOMAINS = ("", "ai.onnx")
CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Standard operators that hold graphs."""
_NOTHING: Mapping[str, str] = MappingProxyType({})
_HOLDS_NO_TENSOR = frozenset(
    getattr(onnx.AttributeProto, kind)
    for kind in "FLOAT INT STRING FLOATS INTS STRINGS TYPE_PROTO TYPE_PROTOS".split()
)


def may_have_bodies(op_type: str, domain: str) -> bool:
    """Whether nodes of an operator can hold subgraphs."""
    return op_type in CONTROL_FLOW or domain not in STANDARD_DOMAINS


def bodies(proto: onnx.NodeProto) -> Sequence[onnx.GraphProto]:
    """The subgraphs of a control-flow node, one level deep."""
    if not may_have_bodies(proto.op_type, proto.domain):
        return ()
    found: list[onnx.GraphProto] = []
    for attribute in proto.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            found.append(attribute.g)
        elif attribute.type == onnx.AttributeProto.GRAPHS:
            found.extend(attribute.graphs)
    return found


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph or a function and of their bodies, at any depth."""
    for node in graph.node:
        yield node
        for body in bodies(node):
            yield from all_nodes(body)


def own_names(graph: onnx.GraphProto) -> set[str]:
    """The tensors of a graph itself, of its bodies none; "" where a node leaves an output out."""
    own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    return own | {name for node in graph.node for name in node.output}


def separate_names(
    graph: onnx.GraphProto, around: frozenset[str] = frozenset(), renamed: Mapping[str, str] = _NOTHING
) -> None:
    """Give a tensor of a body, in place, another name where a graph around it has one of that.

    `around` are the names of the graphs around, `renamed` those of them that have another.
    """
    inner = [body for node in graph.node for body in bodies(node)]
    if not inner and not around:
        return
    own = own_names(graph)
    fresh = {name: f"{name}_in_{graph.name}_{len(around)}" for name in own & around if name}
    renamed = {name: other for name, other in renamed.items() if name not in own} | fresh
    for body in inner:
        separate_names(body, around | own, renamed)
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for info in (*graph.input, *graph.output, *graph.value_info):
        info.name = renamed.get(info.name, info.name)
    for tensor in graph.initializer:
        tensor.name = renamed.get(tensor.name, tensor.name)


def captures(body: onnx.GraphProto) -> list[str]:
    """Tensors of the outer graph that the body, or one inside it, reads; each once."""
    own = own_names(body)
    reads = [name for node in body.node for name in (*node.input, *captured_by(node))]
    reads += [info.name for info in body.output]
    return list(dict.fromkeys(name for name in reads if name and name not in own))


def captured_by(proto: onnx.NodeProto) -> list[str]:
    """Tensors of the outer graph that the node's bodies read."""
    found = [name for body in bodies(proto) for name in captures(body)]
    return list(dict.fromkeys(found)) if found else found


def all_names(graph: onnx.GraphProto) -> Iterator[str]:
    """Every name in use in a graph and its bodies: tensors and nodes, repeats and "" kept."""
    yield from (info.name for info in (*graph.input, *graph.output, *graph.value_info))
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from (node.name, *node.input, *node.output)
        for body in bodies(node):
            yield from all_names(body)


def all_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Every tensor that the model holds, at any depth, local functions included."""
    yield from graph_tensors(model.graph)
    for function in model.functions:
        yield from _held_by(function.node)


def graph_tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Every tensor that the graph holds, at any depth."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _held_by(graph.node)


def _held_by(nodes: Iterable[onnx.NodeProto]) -> Iterator[TensorProto]:
    for attribute in [one for node in nodes for one in node.attribute if one.type not in _HOLDS_NO_TENSOR]:
        if attribute.HasField("t"):
            yield attribute.t
        yield from attribute.tensors
        if attribute.HasField("sparse_tensor"):
            yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
        if attribute.HasField("g"):
            yield from graph_tensors(attribute.g)
        for body in attribute.graphs:
            yield from graph_tensors(body)
