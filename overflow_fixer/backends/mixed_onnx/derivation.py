"""Nodes whose values derive from shapes alone, or from constants alone: FP16 would cost them, and gain nothing."""

from __future__ import annotations

from collections.abc import Callable

from overflow_fixer.graph import Graph
from overflow_fixer.nodes import Node

_SHAPE_SOURCES = frozenset({"Shape", "Size"})
_SHAPE_ENDS = frozenset({"ConstantOfShape", "EyeLike"})


def find_shape_nodes(graph: Graph) -> frozenset[str]:
    """Labels of the nodes that compute with sizes: everything they read comes from Shape or Size.

    A size of 2049 is not an FP16 number, and a Resize or Slice by it would be off. What fills a tensor of
    a computed size (ConstantOfShape) computes with it no more.
    """
    derived: set[str] = set()
    labels: set[str] = set()
    for node in graph.nodes:
        reads = [name for name in node.reads if name not in graph.constants]
        if node.op_type in _SHAPE_SOURCES:
            derived.update(node.writes)
        elif node.op_type not in _SHAPE_ENDS and reads and derived.issuperset(reads):
            derived.update(node.writes)
            labels.add(node.label)
    return frozenset(labels)


def find_whole_constants(graph: Graph, is_fp32: Callable[[Node], bool]) -> frozenset[str]:
    """Labels of the nodes made of constants alone that a node in FP32 reads, through others like them.

    An Identity that shares a weight, a Transpose of one, a ConstantOfShape: in FP16 it would round the
    weights that an FP32 node is there to read whole. An FP16 reader rounds the FP32 value to the same bits.
    """
    known = set(graph.constants)
    made: list[Node] = []
    for node in graph.nodes:
        if node.outputs[0] not in graph.constants and known.issuperset(node.reads):
            made.append(node)
            known.update(node.writes)
    whole: set[str] = set()
    for node in reversed(made):
        readers = [reader for name in node.writes for reader in graph.consumers.get(name, ())]
        if any(reader.label in whole or is_fp32(reader) for reader in readers):
            whole.add(node.label)
    return frozenset(whole)
