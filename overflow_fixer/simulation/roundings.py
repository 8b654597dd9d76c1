"""Where an artifact rounds: what its nodes in FP16 read, and what they write."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from overflow_fixer.formats import round_to_fp16
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operator_types import PARAMETERS
from overflow_fixer.graph.repeatability import is_repeatable_node
from overflow_fixer.model_file.subgraphs import all_names, bodies
from overflow_fixer.simulation.typed_model import is_small_constant

_NOT_COMPUTED = frozenset({"Constant", "Dropout"})


@dataclass(eq=False)
class Roundings:
    """Those of an artifact of `graph` in which the nodes of these labels are in FP16.

    A tensor is stored in its writer's type, and cast where its reader's is another. The tensors `exact` (clamped masks) are
    not rounded.
    """

    graph: Graph
    fp16_nodes: frozenset[str]
    exact: frozenset[str]

    def __post_init__(self) -> None:
        self._taken = set(all_names(self.graph.model.graph))

    def is_rounded(self, node: Node, slot: int) -> bool:
        """Whether the node reads that input rounded: because it is in FP16 itself, or what writes it."""
        writer = self.graph.producers.get(node.inputs[slot])
        is_half = writer is not None and writer.label in self.fp16_nodes
        reads_half = node.label in self.fp16_nodes and self.can_be_rounded(node, slot)
        return reads_half or (is_half and self._is_float(node.inputs[slot]))

    def can_be_rounded(self, node: Node, slot: int) -> bool:
        """Whether the node would read that input rounded, were it in FP16."""
        return self._is_float(node.inputs[slot]) and slot not in PARAMETERS.get(node.op_type, ())

    def is_stored_rounded(self, writer: Node, name: str) -> bool:
        return writer.label in self.fp16_nodes and name not in self.exact

    def add_view(self, graph: onnx.GraphProto, name: str) -> str:
        """Append what gives the tensor rounded, in FP32, and return its name; that of a small constant is one."""
        half, view = self.name(name, "half"), self.name(name, "view")
        if is_small_constant(self.graph, name):
            graph.initializer.append(self._round_constant(name, view))
            return view
        graph.node.append(onnx.helper.make_node("Cast", [name], [half], to=TensorProto.FLOAT16))
        graph.node.append(onnx.helper.make_node("Cast", [half], [view], to=TensorProto.FLOAT))
        return view

    def name(self, tensor: str, role: str) -> str:
        """One for a tensor beside this one, which no other has."""
        name = f"{tensor}__loss_{role}"
        while name in self._taken:
            name += "_"
        return name

    def _is_float(self, name: str) -> bool:
        return self.graph.dtypes.get(name) == TensorProto.FLOAT and name not in self.exact

    def _round_constant(self, name: str, view: str) -> TensorProto:
        value = self.graph.read_constant(name)
        return onnx.numpy_helper.from_array(round_to_fp16(value).astype(np.float32), view)


def computes_plainly(graph: Graph, node: Node) -> bool:
    """Whether the node computes, once and for all, from plain tensors: one that draws random numbers would draw others."""
    is_plain = all(name in graph.dtypes for name in (*node.reads, *node.writes)) and not bodies(node.proto)
    return is_plain and node.op_type not in _NOT_COMPUTED and is_repeatable_node(graph, node)


def list_floats(graph: Graph, node: Node) -> Iterator[str]:
    """The FP32 tensors that it writes."""
    return (name for name in node.writes if graph.dtypes.get(name) == TensorProto.FLOAT)
