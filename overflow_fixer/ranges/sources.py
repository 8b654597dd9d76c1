"""Which tensors only hold another's values, in another shape or order: they have its range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import REARRANGES

_REARRANGES = REARRANGES | {"DepthToSpace", "SpaceToDepth"}
_WIDE = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})


def find_sources(graph: Graph, tensors: Sequence[str]) -> Mapping[str, str]:
    """For each of `tensors`, in graph order, the one of them that holds the very same values.

    That is the tensor itself where its node computes. FP16 and BF16 tensors stand for themselves: ONNX
    Runtime may keep them unrounded between nodes.
    """
    known = set(tensors)
    found: dict[str, str] = {}
    for name in tensors:
        node = graph.producers.get(name)
        given = node.inputs[0] if node is not None and _rearranges(graph, node) else name
        found[name] = found.get(given, given) if given in known else name
    return found


def _rearranges(graph: Graph, node: Node) -> bool:
    is_plain = node.op_type in _REARRANGES and node.is_standard
    return is_plain and all(graph.dtypes.get(name) in _WIDE for name in (node.inputs[0], node.outputs[0]))
