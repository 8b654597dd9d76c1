"""How many floating-point operations each node costs, and what share of them runs in FP16."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx

from overflow_fixer.graph.copies import copy_shell
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.tensor_types import infer_shapes
from overflow_fixer.records import Artifact, Batch, Dim, Share
from overflow_fixer.sessions.marking import mark_outputs
from overflow_fixer.sessions.session import open_session, run_session

Shapes = Mapping[str, tuple[int, ...]]


def _convolution(node: Node, shapes: Shapes) -> int:
    weight = shapes[node.inputs[1]]
    return 2 * math.prod(shapes[node.outputs[0]]) * math.prod(weight[1:])


def _transposed_convolution(node: Node, shapes: Shapes) -> int:
    weight = shapes[node.inputs[1]]
    return 2 * math.prod(shapes[node.inputs[0]]) * math.prod(weight[1:])


def _matrix_product(node: Node, shapes: Shapes) -> int:
    return 2 * math.prod(shapes[node.outputs[0]]) * shapes[node.inputs[0]][-1]


def _gemm(node: Node, shapes: Shapes) -> int:
    inner = shapes[node.inputs[0]][0 if node.value_of("transA", 0) else 1]
    return 2 * math.prod(shapes[node.outputs[0]]) * inner


COUNTERS: dict[str, Callable[[Node, Shapes], int]] = {
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "MatMul": _matrix_product,
    "Gemm": _gemm,
}
"""Multiplications and additions of the operators that make up a network's cost; others count 0."""

_UNCOUNTED = frozenset(
    """Einsum Attention LinearAttention LSTM GRU RNN DeformConv CausalConvWithState DFT STFT If Loop Scan
    SequenceMap""".split()
)


def count_share(graph: Graph, artifact: Artifact, batch: Batch) -> Share:
    """The share of nodes and of FLOPs in FP16; nodes of which count_flops does not know are in `unknown_flops_nodes`."""
    in_fp16 = set(artifact.fp16_nodes)
    flops = count_flops(graph, batch)
    known = {label: count for label, count in flops.items() if count is not None}
    return Share(
        fp16_nodes=len(artifact.fp16_nodes),
        float_nodes=len(artifact.fp16_nodes) + len(artifact.fp32_nodes),
        fp16_flops=sum(count for label, count in known.items() if label in in_fp16),
        flops=sum(known.values()),
        unknown_flops_nodes=len(flops) - len(known),
    )


def count_flops(graph: Graph, batch: Batch) -> dict[str, int | None]:
    """The FLOPs of each node by its label, with the shapes that `batch` gives the model.

    FLOPs are 2 x multiply-adds of Conv, ConvTranspose, MatMul and Gemm; None of another costly operator, or of another
    domain. Shapes are inferred; where that fails (Reshape by computed shapes) the batch is run once and ONNX Runtime says
    them.
    """
    shapes = _shapes(graph, batch)
    return {node.label: _count(node, shapes) for node in graph.nodes}


def _count(node: Node, shapes: Shapes) -> int | None:
    """The node's FLOPs; None where they are not known."""
    if not node.is_standard or node.op_type in _UNCOUNTED:
        return None
    return COUNTERS[node.op_type](node, shapes) if node.op_type in COUNTERS else 0


def _shapes(graph: Graph, batch: Batch) -> Shapes:
    """The shape of every tensor that a counter reads."""
    fed = {name: array.shape for name, array in batch.feeds.items()}
    inferred = infer_shapes(graph.model, fed)
    shapes = {name: fixed for name, dims in inferred.items() if (fixed := _fixed(dims)) is not None}
    counted = [node for node in graph.nodes if node.op_type in COUNTERS]
    needed = dict.fromkeys(name for node in counted for name in (*node.inputs[:2], node.outputs[0]))
    return {**shapes, **_run_for_shapes(graph, [name for name in needed if name not in shapes], batch)}


def _fixed(dims: tuple[Dim, ...]) -> tuple[int, ...] | None:
    fixed = tuple(dim for dim in dims if isinstance(dim, int))
    return fixed if len(fixed) == len(dims) else None


def _run_for_shapes(graph: Graph, tensors: list[str], batch: Batch) -> Shapes:
    """Run the batch, with a Shape node on each of `tensors`, which so stay inside the session."""
    if not tensors:
        return {}
    model = copy_shell(graph)
    model.graph.node.extend(node.proto for node in graph.run_order)
    model.graph.output.extend(graph.model.graph.output)
    taken = {name for node in graph.nodes for name in (*node.reads, *node.writes)}
    asked = {}
    for name in tensors:
        output = f"{name}__shape"
        while output in taken:
            output += "_"
        asked[output] = name
        model.graph.node.append(onnx.helper.make_node("Shape", [name], [output]))
    mark_outputs(model, list(asked))
    found = run_session(open_session(model, graph.folder, by_priority=True), list(asked), batch)
    return {asked[output]: tuple(shape.tolist()) for output, shape in zip(asked, found, strict=True)}
