"""The shape that a node writes, where the model computes it from shapes: Shape, Slice or Gather, Concat, casts between."""

from __future__ import annotations

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Dim

_MOST_STEPS = 8
_SAME_ELEMENTS = frozenset({"Cast", "Identity", "Squeeze", "Unsqueeze"})

Dims = tuple[Dim, ...]


def output_shape(graph: Graph, node: Node) -> Dims | None:
    """As the second input of a Reshape says, and otherwise as inferred; None where not even the rank is known.

    ONNX infers no shape from computed ones below opset 14. What is fed never matters: see Graph.sure_shapes.
    """
    inferred = graph.sure_shapes.get(node.outputs[0])
    elements = read_elements(graph, node.inputs[1]) if node.standard_op == "Reshape" else None
    if elements is None:
        return inferred
    told = [_as_dim(element) for element in elements]
    others = inferred if inferred is not None and len(inferred) == len(told) else (None,) * len(told)
    return tuple(other if dim is None else dim for dim, other in zip(told, others, strict=True))


def _as_dim(element: Dim) -> Dim:
    """A dimension that Reshape copies (0) or works out (-1) is not known."""
    return None if isinstance(element, int) and element <= 0 else element


def read_elements(graph: Graph, tensor: str, left: int = _MOST_STEPS) -> Dims | None:
    """A tensor of integers, flat: numbers, and the names of dimensions; None for one that is not known."""
    value, node = graph.read_fixed(tensor), graph.producers.get(tensor)
    if value is not None:
        return tuple(int(element) for element in value.reshape(-1))
    if node is None or not left:
        return None
    op = node.standard_op
    if op in _SAME_ELEMENTS:
        return read_elements(graph, node.inputs[0], left - 1)
    if op == "Concat":
        parts = [read_elements(graph, name, left - 1) for name in node.inputs]
        return None if None in parts else tuple(dim for part in parts for dim in part or ())
    if op == "Shape" and not node.proto.attribute:
        return graph.sure_shapes.get(node.inputs[0])
    return _pick(graph, node, left - 1) if op in ("Gather", "Slice") else None


def _pick(graph: Graph, node: Node, left: int) -> Dims | None:
    """The elements that a Gather or Slice with constant places takes from a vector."""
    elements = read_elements(graph, node.inputs[0], left)
    places = [graph.read_fixed(name) for name in node.inputs[1:]]
    if elements is None or not places or any(place is None for place in places):
        return None
    numbers = [place.reshape(-1).tolist() for place in places if place is not None]
    if node.standard_op == "Gather":
        return tuple(elements[at] for at in numbers[0]) if _are_within(numbers[0], len(elements)) else None
    starts, ends, *others = numbers
    is_plain = len(starts) == 1 and others in ([], [[0]], [[0], [1]])
    return elements[starts[0] : ends[0]] if is_plain else None


def _are_within(places: list[int], count: int) -> bool:
    return all(-count <= place < count for place in places)
