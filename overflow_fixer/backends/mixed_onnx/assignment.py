"""Which type every float tensor is stored in, and which type every node reads it in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from onnx import TensorProto

from overflow_fixer.backends.mixed_onnx import operators
from overflow_fixer.backends.mixed_onnx.derivation import find_shape_nodes, find_whole_constants
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Kept

FLOAT = int(TensorProto.FLOAT)
FLOAT16 = int(TensorProto.FLOAT16)
IoTypes = Literal["keep", "fp16"]


@dataclass(frozen=True)
class Assignment:
    """`io_type` is the type of the model's float inputs and outputs.

    `stored` maps each tensor that is FP32 in the model, constants aside, to its type in the artifact.

    `compute` maps the label of each node that touches FP32 tensors to the type it runs in; a node
    whose outputs are no floats (comparisons, Shape, casts to integers) reads what is there.
    """

    io_type: int
    stored: Mapping[str, int]
    compute: Mapping[str, int]
    kept: tuple[Kept, ...]

    def nodes_in(self, graph: Graph, elem_type: int) -> tuple[str, ...]:
        """Labels of the nodes with a float output that run in `elem_type`, in order."""
        return tuple(
            node.label
            for node in graph.nodes
            if self.compute.get(node.label) == elem_type and writes_float(graph, node)
        )


def assign_types(graph: Graph, pinned: Collection[str], io_types: IoTypes = "keep") -> Assignment:
    """Give FP16 to every node that is not pinned and can take it.

    Each tensor is stored in its producer's type; graph inputs stay FP32 unless `io_types` is "fp16".
    Tensors that are not FP32 in the model (integers, float64, BF16, FP16) are left as they are.
    """
    given = FLOAT16 if io_types == "fp16" else FLOAT
    reasons = _reasons_to_keep(graph, pinned)
    stored = {spec.name: given for spec in graph.inputs if spec.elem_type == FLOAT}
    compute: dict[str, int] = {}
    kept: list[Kept] = []
    for node in graph.nodes:
        if is_constant(graph, node) or not touches_float(graph, node):
            continue
        reason = reasons.get(node.label)
        if reason and node.label not in pinned and writes_float(graph, node):
            kept.append(Kept(node.label, node.op_type, reason))
        compute[node.label] = _compute_type(graph, node, stored, bool(reason) or node.label in pinned)
        stored.update(_output_types(graph, node, compute[node.label]))
    return Assignment(given, stored, compute, tuple(kept))


def is_constant(graph: Graph, node: Node) -> bool:
    """Whether the node is a Constant that holds a tensor, which is typed by its readers."""
    return node.op_type == "Constant" and node.outputs[0] in graph.constants


def touches_float(graph: Graph, node: Node) -> bool:
    return any(graph.dtypes.get(name) == FLOAT for name in (*node.reads, *node.writes))


def writes_float(graph: Graph, node: Node) -> bool:
    return any(graph.dtypes.get(name) == FLOAT for name in node.writes)


def computes_float(graph: Graph, node: Node) -> bool:
    """Whether a node writes FP32 values that are no constants: one that runs in FP16 or in FP32."""
    return writes_float(graph, node) and not is_constant(graph, node)


def read_type(graph: Graph, node: Node, slot: int, compute: int) -> int | None:
    """The type in which a node that runs in `compute` reads an FP32 input; None: whatever it is stored in."""
    if node.op_type == "Cast" and node.is_standard:
        return None
    return compute if compute == FLOAT or operators.input_follows(node, graph.opset, slot) else FLOAT


def _reasons_to_keep(graph: Graph, pinned: Collection[str]) -> dict[str, str]:
    """For each node that stays in FP32 whatever the plan says: why."""
    own = {node.label: reason for node in graph.nodes if (reason := _reason_to_keep(graph, node))}
    sized = dict.fromkeys(
        find_shape_nodes(graph), "it computes with sizes, which FP16 cannot count beyond 2048"
    )
    fp32 = {*pinned, *own, *sized}
    whole = find_whole_constants(graph, lambda reader: reader.label in fp32)
    return {
        **sized,
        **dict.fromkeys(whole, "it is made of constants alone, which are read whole"),
        **own,
    }


def _reason_to_keep(graph: Graph, node: Node) -> str | None:
    if any(name not in graph.dtypes for name in (*node.reads, *node.writes)):
        return "it reads or writes something that is not a plain tensor"
    reason = operators.reason_to_keep(node, graph.opset)
    if reason:
        return reason
    inputs = [i for i, name in enumerate(node.inputs) if graph.dtypes.get(name) == FLOAT]
    outputs = [i for i, name in enumerate(node.outputs) if graph.dtypes.get(name) == FLOAT]
    follows = [operators.input_follows(node, graph.opset, slot) for slot in inputs]
    follows += [operators.output_follows(node, graph.opset, slot) for slot in outputs]
    return None if any(follows) else f"ONNX opset {graph.opset} has no FP16 {node.op_type}"


def _compute_type(graph: Graph, node: Node, stored: Mapping[str, int], in_fp32: bool) -> int:
    if in_fp32:
        return FLOAT
    if writes_float(graph, node):
        return FLOAT16
    types = {stored[name] for name in node.inputs if name in stored}
    return FLOAT if FLOAT in types or not types else FLOAT16


def _output_types(graph: Graph, node: Node, compute: int) -> dict[str, int]:
    floats = [(slot, name) for slot, name in enumerate(node.outputs) if graph.dtypes.get(name) == FLOAT]
    return {
        name: compute if compute == FLOAT or operators.output_follows(node, graph.opset, slot) else FLOAT
        for slot, name in floats
    }
