"""Which tensors of a graph a scan observes, and why it leaves the others out."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from overflow_fixer.graph.body_graphs import find_bodies
from overflow_fixer.graph.model import Graph

_NOT_DENSE = {
    "sequence_type": "it is a sequence, not a tensor",
    "optional_type": "it is an optional, not a tensor",
    "map_type": "it is a map, not a tensor",
    "sparse_tensor_type": "it is a sparse tensor",
}
_WITHOUT_RANGE = frozenset(
    elem_type
    for name, elem_type in TensorProto.DataType.items()
    if name == "BOOL" or name.removeprefix("U").startswith("INT")
)


def observed_tensors(graph: Graph) -> tuple[str, ...]:
    """Every dense tensor of the graph, bodies aside, of a type in graph.FLOAT_TYPES, in the graph's order."""
    return tuple(name for name in graph.tensors if graph.is_float(name))


def not_observed(graph: Graph) -> dict[str, str]:
    """What is neither observed nor integer or boolean, with the reason; in bodies, and bodies themselves, too."""
    found, bodies = _not_observed_here(graph), find_bodies(graph)
    for body in bodies.read:
        inner = not_observed(body.graph)
        found |= {body.prefix + name: inner[name] for name in inner if name not in body.captured}
    return found | dict(bodies.unread)


def _not_observed_here(graph: Graph) -> dict[str, str]:
    left = [name for name in graph.tensors if not graph.is_float(name)]
    known = {name for name in left if graph.dtypes.get(name) in _WITHOUT_RANGE}
    recorded = _recorded_kinds(graph.model.graph)
    return {name: _reason(graph, name, recorded) for name in left if name not in known}


def _reason(graph: Graph, tensor: str, recorded: dict[str, str]) -> str:
    elem_type = graph.dtypes.get(tensor, TensorProto.UNDEFINED)
    if elem_type == TensorProto.STRING:
        return "it holds strings"
    if elem_type != TensorProto.UNDEFINED:
        return f"its element type {TensorProto.DataType.Name(elem_type)} is not handled"
    if tensor in recorded:
        return _NOT_DENSE[recorded[tensor]]
    node = graph.producers.get(tensor)
    origin = "the model" if node is None else f"the {node.op_type} that writes it"
    return f"{origin} does not tell that it is a dense tensor"


def _recorded_kinds(graph: onnx.GraphProto) -> dict[str, str]:
    """What the model says is not a dense tensor, with its kind of type."""
    infos = (*graph.input, *graph.value_info, *graph.output)
    kinds = {info.name: info.type.WhichOneof("value") for info in infos}
    return {name: kind for name, kind in kinds.items() if kind in _NOT_DENSE}
