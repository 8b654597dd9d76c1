"""What TensorRT will fuse with a pinned node: a fused layer runs in one precision, so the pin reaches over it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node

_ANCHORS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_ACTIVATIONS = frozenset(
    {
        "Relu",
        "LeakyRelu",
        "Sigmoid",
        "Tanh",
        "Clip",
        "Elu",
        "Selu",
        "HardSigmoid",
        "Softplus",
        "ThresholdedRelu",
    }
)


def say_fused(anchor: str) -> str:
    """Why a node is pinned that TensorRT is known to fuse with a pinned one."""
    return f"TensorRT fuses it with {anchor}, which is pinned"


def say_fused_in_fp16(anchor: str) -> str:
    """Why a node is pinned that an engine showed fused with a pinned one."""
    return f"TensorRT fused it with {anchor} and ran both in FP16"


def extend_over_fusions(graph: Graph, pinned: Collection[str]) -> dict[str, str]:
    """Nodes to pin besides `pinned`, each with the pinned node that it will be fused with.

    Behind a convolution or matrix product: a BatchNormalization, an addition of a constant, an
    activation, one after the other, as long as each is the only reader of the one before and what
    they hand on is no output of the model. (TensorRT 8.6 ran a pinned Conv in FP16 since the Relu fused
    with it was free to.)
    """
    found: dict[str, str] = {}
    for label in pinned:
        node = graph.by_label[label]
        if node.op_type in _ANCHORS:
            found.update((follower.label, label) for follower in _followers(graph, node))
    return {label: anchor for label, anchor in found.items() if label not in pinned}


def _followers(graph: Graph, node: Node) -> Iterator[Node]:
    for wanted in (_is_normalization, _adds_constant, _is_activation):
        follower = _only_reader(graph, node)
        if follower is not None and wanted(graph, follower):
            yield follower
            node = follower


def _only_reader(graph: Graph, node: Node) -> Node | None:
    tensor = node.outputs[0]
    readers = graph.consumers.get(tensor, ())
    return readers[0] if len(readers) == 1 and tensor not in graph.outputs else None


def _is_normalization(graph: Graph, node: Node) -> bool:
    return node.op_type == "BatchNormalization"


def _adds_constant(graph: Graph, node: Node) -> bool:
    return node.op_type == "Add" and any(name in graph.constants for name in node.inputs)


def _is_activation(graph: Graph, node: Node) -> bool:
    return node.op_type in _ACTIVATIONS
