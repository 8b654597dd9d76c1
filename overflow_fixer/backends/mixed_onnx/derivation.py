"""Nodes whose values derive from shapes alone, or from constants alone: FP16 would cost them, and gain nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection

from onnx import TensorProto

from overflow_fixer.backends.mixed_onnx.operators import input_follows, schema_of
from overflow_fixer.graph.model import FLOAT_TYPES, Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.model_file.subgraphs import CONTROL_FLOW

_SHAPE_SOURCES = frozenset({"Shape", "Size"})
_COUNTERS = frozenset({"NonZero", "CumSum"})
"""Operators that make positions of what sizes only fill."""
_NO_SIZES = frozenset("Sin Cos Tan Exp Sigmoid Tanh Erf Softmax LogSoftmax MatMul Gemm Einsum Conv".split())
"""Operators that make of sizes what is none: a position's sine, or its features."""
_BRANCHES = CONTROL_FLOW | {"Compress"}
"""Operators that do something else, or give another shape, by a boolean."""
_NO_INTEGERS = FLOAT_TYPES | {TensorProto.BOOL}


def find_shape_nodes(graph: Graph) -> frozenset[str]:
    """Labels of the nodes that compute with sizes, or make of sizes alone what decides an integer, a shape or a branch.

    A size of 2049 is not an FP16 number, and a Resize or Slice by it would be off. What sizes only choose or shape
    (the rows of a table, a tensor that is filled) is none, nor is a comparison of them, until one is made of it.
    """
    made, counting = _follow_sizes(graph)
    return frozenset(counting | _find_deciding(graph, made))


def _follow_sizes(graph: Graph) -> tuple[set[str], set[str]]:
    """Labels of the nodes that read sizes and constants, no constants alone, and of those whose values come from sizes."""
    derived, sizes = set[str](), set[str]()
    made, counting = set[str](), set[str]()
    fixed = set(graph.constants)
    for node in graph.nodes:
        is_source = node.standard_op in _SHAPE_SOURCES
        reads = set(node.reads) - fixed
        if node.reads and not reads and not is_source:
            fixed.update(node.writes)
            continue
        values = reads.intersection(_values_read(graph, node))
        is_made = not is_source and bool(reads) and derived >= reads
        if is_made:
            made.add(node.label)
        if sizes & values and (is_made or sizes >= values):
            counting.add(node.label)
        if is_made or is_source:
            derived.update(node.writes)
        gives_sizes = node.label in counting and node.standard_op not in _NO_SIZES
        if gives_sizes or is_source or (is_made and node.standard_op in _COUNTERS):
            sizes.update(node.writes)
    return made, counting


def _values_read(graph: Graph, node: Node) -> tuple[str, ...]:
    """What the output's values come from: the inputs that its schema gives the same type, not indices and shapes.

    Of Pow, control flow and sequences that is all that they read, but for booleans.
    """
    if node.standard_op in ("Cast", "CastLike"):
        return node.inputs[:1]
    schema = schema_of(node.op_type, graph.opset) if node.is_standard else None
    if schema is None or not schema.inputs:
        return ()
    is_mixed = node.standard_op in ("Pow", *CONTROL_FLOW)
    if is_mixed or not graph.dtypes.keys() >= {*node.reads, *node.writes}:
        return tuple(name for name in node.reads if graph.dtypes.get(name) != TensorProto.BOOL)
    kinds = [kind.type_str for kind in schema.inputs]
    kinds += kinds[-1:] * (len(node.inputs) - len(kinds))
    made = schema.outputs[0].type_str
    return tuple(name for name, kind in zip(node.inputs, kinds, strict=False) if name and kind == made)


def _find_deciding(graph: Graph, made: set[str]) -> set[str]:
    """Labels of those among `made` whose values go, through others of them, into an integer, a shape or a branch."""
    deciding: set[str] = set()
    labels: set[str] = set()
    for node in reversed(graph.nodes):
        if node.label in made and not deciding.isdisjoint(node.writes):
            labels.add(node.label)
            deciding.update(node.reads)
        deciding.update(_decided_by(graph, node))
    return labels


def _decided_by(graph: Graph, node: Node) -> Collection[str]:
    """What the node makes an integer of, takes a branch by, or reads as a parameter; all of it where the node is unknown."""
    if node.standard_op in _SHAPE_SOURCES:
        return ()
    makes_integers = any(graph.dtypes.get(name, TensorProto.BOOL) not in _NO_INTEGERS for name in node.writes)
    if makes_integers or not node.is_standard or node.standard_op in _BRANCHES:
        return node.reads
    floats = [slot for slot, name in enumerate(node.inputs) if graph.dtypes.get(name) == TensorProto.FLOAT]
    return [node.inputs[slot] for slot in floats if not input_follows(node, graph.opset, slot)]


def find_whole_constants(graph: Graph, is_fp32: Callable[[Node], bool]) -> frozenset[str]:
    """Labels of the nodes made of constants alone that a node in FP32, or what decides a shape, reads, through others like them.

    An Identity that shares a weight, a Transpose of one, a ConstantOfShape: in FP16 it would round the
    weights that an FP32 node is there to read whole. An FP16 reader rounds the FP32 value to the same bits.
    What decides an integer, a shape or a branch is as for find_shape_nodes.
    """
    known = set(graph.constants)
    made: list[Node] = []
    for node in graph.nodes:
        if node.outputs[0] not in graph.constants and known.issuperset(node.reads):
            known.update(node.writes)
            if node.standard_op not in _SHAPE_SOURCES:
                made.append(node)
    whole: set[str] = set()
    for node in reversed(made):
        if any(
            reader.label in whole or is_fp32(reader) or name in _decided_by(graph, reader)
            for name in node.writes
            for reader in graph.consumers.get(name, ())
        ):
            whole.add(node.label)
    return frozenset(whole)
