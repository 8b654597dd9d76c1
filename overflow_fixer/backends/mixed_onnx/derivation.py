"""Nodes whose values derive from shapes alone, or from constants alone: FP16 would cost them, and gain nothing."""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto

from overflow_fixer.backends.mixed_onnx.operators import schema_of
from overflow_fixer.graph import Graph
from overflow_fixer.nodes import Node
from overflow_fixer.subgraphs import CONTROL_FLOW

_SHAPE_SOURCES = frozenset({"Shape", "Size"})
_NO_SIZES = frozenset("Sin Cos Tan Exp Sigmoid Tanh Erf Softmax LogSoftmax MatMul Gemm Einsum Conv".split())
"""Operators that make of sizes what is none: a position's sine, or its features."""


def find_shape_nodes(graph: Graph) -> frozenset[str]:
    """Labels of the nodes that compute with sizes: every value they read comes from Shape or Size.

    A size of 2049 is not an FP16 number, and a Resize or Slice by it would be off. What sizes only choose or shape
    (the rows of a table, a tensor that is filled) is none, nor is a comparison of them.
    """
    derived: set[str] = set()
    labels: set[str] = set()
    for node in graph.nodes:
        values = {name for name in _values_read(graph, node) if name not in graph.constants}
        is_made_of_sizes = bool(values) and derived.issuperset(values)
        if is_made_of_sizes:
            labels.add(node.label)
        gives_sizes = is_made_of_sizes and node.standard_op not in _NO_SIZES
        if gives_sizes or node.standard_op in _SHAPE_SOURCES:
            derived.update(name for name in node.writes if graph.dtypes.get(name) != TensorProto.BOOL)
    return frozenset(labels)


def _values_read(graph: Graph, node: Node) -> tuple[str, ...]:
    """What the output's values come from: the inputs that its schema gives the same type, not indices and shapes."""
    if node.standard_op in CONTROL_FLOW:
        return node.reads
    if node.standard_op in ("Cast", "CastLike"):
        return node.inputs[:1]
    schema = schema_of(node.op_type, graph.opset) if node.is_standard else None
    if schema is None or not schema.inputs:
        return ()
    kinds = [kind.type_str for kind in schema.inputs]
    kinds += kinds[-1:] * (len(node.inputs) - len(kinds))
    made = schema.outputs[0].type_str
    return tuple(name for name, kind in zip(node.inputs, kinds, strict=False) if name and kind == made)


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
