"""A graph with the bodies of its control flow in place of their nodes, to follow values that run into a body or out of it.

For rules alone, and never run: of an If both branches stand there, and their outputs are joined; of a Loop or Scan one
iteration, which is not fed by the one before it; list_carried tells what would be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from onnx import ModelProto, NodeProto, TensorProto

from overflow_fixer.evidence.body_ranges import has_run, look_into
from overflow_fixer.graph.body_graphs import Body, find_bodies
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node, number_nodes
from overflow_fixer.graph.operator_types import BODY_OUTPUTS
from overflow_fixer.model_file.subgraphs import bodies
from overflow_fixer.records import RangeTable

_FIRST_INPUT = {"If": 0, "Loop": 2, "Scan": 0}
"""The first input of the node that is handed to a body, as its input of the same number."""
_HANDS_ON = "hands on"
"""What nodes that are none of the model's say of themselves."""
_OUT_OF = "out of "


def inline_bodies(graph: Graph, ranges: RangeTable, *, unseen: bool = False) -> Graph:
    """The graph so, its nodes by their labels, and those of bodies, and their tensors, by the names that ranges have for them.

    A body that is not read stays closed, and so does one that never ran. Not so where what is `unseen` is wanted too: then a Loop may
    also give what it begins with. What hands values in and out is an Identity, or a Concat where there are several that it may
    be; no name in the ranges begins as its label does.
    """
    parts = _flatten(graph, ranges, unseen)
    source = graph.model
    model = ModelProto(ir_version=source.ir_version, opset_import=source.opset_import)
    model.graph.input.extend(source.graph.input)
    model.graph.initializer.extend(parts.constants)
    model.graph.node.extend(parts.nodes)
    model.graph.output.extend(source.graph.output)
    nodes = number_nodes(model.graph)
    return replace(graph, model=model, nodes=nodes, dtypes=parts.dtypes, ranks={})


def can_inline(graph: Graph) -> bool:
    """Whether all bodies are read, at any depth."""
    found = find_bodies(graph)
    return not found.unread and all(can_inline(body.graph) for body in found.read)


def leaves_body(node: Node) -> bool:
    """Whether a node of a graph with its bodies inlined hands on what a body gives, in which that may not have run."""
    proto = node.proto  # by its own name: labels are made unique
    return proto.doc_string == _HANDS_ON and proto.name.startswith(_OUT_OF)


def list_carried(graph: Graph, prefix: str = "") -> Iterator[tuple[str, str]]:
    """What each run of a Loop's or Scan's body writes for the next, and what that reads it as, by their names in the inlined graph."""
    for body in find_bodies(graph).read:
        own = prefix + body.prefix
        if body.node.op_type != "If":
            yield from ((own + written, own + read) for written, read in _list_states(body))
        yield from list_carried(body.graph, own)


def _list_states(body: Body) -> Iterator[tuple[str, str]]:
    """The outputs and inputs of a body that are states: not what a Scan cuts, nor what is put together of all runs."""
    end, op_type = len(body.inputs) - body.node.value_of("num_scan_inputs", 0), body.node.op_type
    return zip(
        body.outputs[BODY_OUTPUTS[op_type][1] :], body.inputs[_FIRST_INPUT[op_type] : end], strict=False
    )


@dataclass
class _Parts:
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    dtypes: dict[str, int] = field(default_factory=dict)


def _flatten(graph: Graph, ranges: RangeTable, unseen: bool) -> _Parts:
    inside: dict[str, list[tuple[Body, RangeTable]]] = {}
    read = find_bodies(graph).read
    for body, view in zip(read, look_into(read, ranges), strict=True):
        if unseen or has_run(body, view):
            inside.setdefault(body.node.label, []).append((body, view))
    found = _Parts(constants=list(graph.initializers.values()), dtypes=dict(graph.dtypes))
    for node in graph.nodes:
        within = inside.get(node.label)
        if within is None:
            found.nodes.append(_rename(node.proto, {}, node.label))
            continue
        for body, view in within:
            _add_body(found, node, body, _flatten(body.graph, view, unseen))
        begins = node.inputs[_FIRST_INPUT["Loop"] :] if unseen and node.op_type == "Loop" else ()
        found.nodes += _join_outputs(node, [body for body, _ in within], begins)
    return found


def _add_body(found: _Parts, node: Node, body: Body, inner: _Parts) -> None:
    own = {tensor.name for tensor in inner.constants} - body.captured_constants
    written = {name for proto in inner.nodes for name in proto.output}
    given = {spec.name for spec in body.graph.inputs}
    names = {name: body.prefix + name for name in (*own, *written, *given) if name}
    found.nodes += _hand_in(node, body, names)
    for proto in inner.nodes:
        label = proto.name if proto.doc_string == _HANDS_ON else body.prefix + proto.name
        found.nodes.append(_rename(proto, names, label))
    found.constants += [_rename_constant(one, names) for one in inner.constants if one.name in own]
    found.dtypes |= {names[name]: dtype for name, dtype in inner.dtypes.items() if name in names}


def _hand_in(node: Node, body: Body, names: Mapping[str, str]) -> Iterator[NodeProto]:
    """Of what a body reads of the outer graph, and of what its node hands to its own inputs."""
    first = _FIRST_INPUT[node.op_type]
    handed = dict(zip(body.inputs[first:], node.inputs[first:], strict=False))
    outer = {name: name for name in body.captured if name in names} | handed
    for name, source in outer.items():
        if source and name in names:
            yield _hand_on(f"into {names[name]}", [source], names[name])


def _join_outputs(node: Node, within: Sequence[Body], begins: Sequence[str]) -> Iterator[NodeProto]:
    """`begins` are what may come out without a run, as the outputs of the same number."""
    for slot, output in enumerate(node.outputs):
        place = slot + BODY_OUTPUTS[node.op_type][1]
        sources = [_name_outside(body, body.outputs[place]) for body in within if place < len(body.outputs)]
        sources += filter(None, begins[slot : slot + 1])
        if output and sources:
            yield _hand_on(f"{_OUT_OF}{node.label}, {slot}", sources, output)


def _hand_on(label: str, sources: Sequence[str], output: str) -> NodeProto:
    op_type = "Identity" if len(sources) == 1 else "Concat"
    return NodeProto(op_type=op_type, name=label, input=sources, output=[output], doc_string=_HANDS_ON)


def _name_outside(body: Body, name: str) -> str:
    return name if name in body.captured_constants else body.prefix + name


def _rename(proto: NodeProto, names: Mapping[str, str], label: str) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(proto)
    copy.name = label
    copy.input[:] = [names.get(name, name) for name in proto.input]
    copy.output[:] = [names.get(name, name) for name in proto.output]
    if bodies(copy):  # closed: what they read is named as it was
        del copy.attribute[:]
    return copy


def _rename_constant(tensor: TensorProto, names: Mapping[str, str]) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    copy.name = names[tensor.name]
    return copy
