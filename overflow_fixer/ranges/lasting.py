"""Tensors that are computed from constants alone: the same in each run, so that one look is enough."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from onnx import AttributeProto, NodeProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.repeatability import is_repeatable_node
from overflow_fixer.native import DOMAIN, LOOKS_AT_ALL


def find_lasting(graph: Graph, given: Collection[str] = ()) -> frozenset[str]:
    """Those that standard and native operators compute, of constants that no batch can replace, and of what is `given`."""
    held = (graph.constants.keys() - graph.defaults).union(given)
    fixed = set(held)
    for node in graph.nodes:
        if not fixed.issuperset(node.reads):
            continue
        if node.domain == DOMAIN or (node.is_standard and is_repeatable_node(graph, node)):
            fixed.update(node.writes)
    return frozenset(fixed - held)


def copy_native(graph: Graph, lasting: Mapping[str, int]) -> Iterator[tuple[str, NodeProto]]:
    """By its label a copy of each native node of the graph; one that writes `lasting` tensors computes them once.

    They stay the same as long as the number at that address does: see probing.Probing.
    """
    for node in graph.nodes:
        if node.domain == DOMAIN:
            copy = NodeProto()
            copy.CopyFrom(node.proto)
            address = lasting.get(node.outputs[0])
            if address is not None:
                copy.attribute.add(name="address", type=AttributeProto.INT, i=address)
            yield node.label, copy


def leave_unread(nodes: Iterable[NodeProto], read: Collection[str]) -> None:
    """Have native nodes that read rows write no more numbers of them than are `read`, in place.

    Of short rows they are as many as the elements.
    """
    for node in nodes:
        if node.op_type in LOOKS_AT_ALL:
            node.output[:-1] = [name if name in read else "" for name in node.output[:-1]]
