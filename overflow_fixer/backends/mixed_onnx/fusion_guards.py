"""Scales of written-out LayerNorms that get a leading axis of 1, so that ONNX Runtime does not fuse those norms.

From opset 17 on, LayerNormFusionL1 takes a Cast in front of such a norm into a LayerNormalization of two types, which is refused
then (docs/typed-onnx.md). It takes scales of one axis alone. Broadcasting gives the same values with two.
"""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.backends.mixed_onnx.assignment import Assignment
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.layer_norm import match_layer_norms
from overflow_fixer.patterns.region import Region

_FIRST_OPSET = 17
_BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div"})


def find_guarded_scales(graph: Graph, assignment: Assignment) -> frozenset[str]:
    """The initializers that get that axis: of norms that read another type than they compute in, where each reader has more axes
    than one.
    """
    return frozenset(_find(graph, assignment)) if graph.opset >= _FIRST_OPSET else frozenset()


def _find(graph: Graph, assignment: Assignment) -> Iterator[str]:
    for norm in match_layer_norms(graph):
        if _has_own_cast(graph, assignment, norm.region):
            yield from (scale for scale in norm.scales if _can_have_axis(graph, scale))


def _has_own_cast(graph: Graph, assignment: Assignment, region: Region) -> bool:
    """Whether the region reads its source through a Cast, which nothing else does: only such a Cast is taken in."""
    computed = {assignment.compute[label] for label in region.nodes if label in assignment.compute}
    readers = graph.consumers.get(region.source, ())
    others = {assignment.compute.get(reader.label) for reader in readers if reader.label not in region.nodes}
    return computed != {_type_before(graph, assignment, region.source)} and computed.isdisjoint(others)


def _type_before(graph: Graph, assignment: Assignment, tensor: str) -> int | None:
    """The type in which the tensor is stored, before a Cast of the model if one makes it."""
    producer = graph.producers.get(tensor)
    if producer is not None and producer.standard_op == "Cast":
        tensor = producer.inputs[0]
    return assignment.stored.get(tensor, graph.dtypes.get(tensor))


def _can_have_axis(graph: Graph, scale: str) -> bool:
    initializer = graph.initializers.get(scale)
    if initializer is None or len(initializer.dims) != 1 or scale in graph.outputs:
        return False
    return all(_broadcasts(graph, reader) for reader in graph.consumers[scale])


def _broadcasts(graph: Graph, reader: Node) -> bool:
    """Whether what it writes stays the same with another axis of 1 in front of one of its inputs."""
    shape = graph.sure_shapes.get(reader.outputs[0])
    return reader.standard_op in _BROADCASTING and shape is not None and len(shape) > 1
