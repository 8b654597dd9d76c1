"""A model as ONNX Runtime's optimiser leaves it, with probes, so that a scan runs at the speed of inference.

ONNX Runtime lays convolutions out in blocks of channels (NCHWc) and puts a ReorderOutput in front of
whoever reads a plain tensor. A probe does not care for the order of elements: it reads the blocked
tensor itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from operator import not_
from pathlib import Path

import onnx
from onnx import NodeProto, TensorProto

from overflow_fixer.graph import Graph, Node
from overflow_fixer.ranges.instrument import Probed, mark_tensors
from overflow_fixer.sessions import save_optimized

_BLOCKED = "com.microsoft.nchwc"
_LARGEST_BLOCK = 16
"""Channels are padded to whole blocks of 8 or 16, by the processor; only a multiple of both has no padding."""


def has_faster_kernels(graph: Graph) -> bool:
    """Whether the optimiser finds other kernels for much of what is observed: those of convolutions of float32.

    It fuses nothing over a tensor that is observed, and has no others for products of matrices; where there are as many
    of those, opening the model twice is all that comes of it. In FP16 it would drop roundings.
    """
    is_narrow = {TensorProto.FLOAT16, TensorProto.BFLOAT16} & set(graph.dtypes.values())
    operators = Counter(node.standard_op for node in graph.nodes if _computes_float(graph, node))
    return not is_narrow and operators["Conv"] > operators["MatMul"] + operators["Gemm"]


def optimize_probed(probed: Probed, work: Path) -> onnx.ModelProto:
    """The optimised model with the probes, and its weights in files in `work`; values differ by rounding alone.

    The model is to be run as it stands, with optimisation off. Raises ModelError when ONNX Runtime refuses it.
    """
    behind = probed.added.behind
    marked, _ = mark_tensors(probed.graph, list(behind))
    path = work / "optimized.onnx"
    save_optimized(marked, probed.graph.folder, path)
    model: onnx.ModelProto = onnx.load(path, load_external_data=False)
    probed.declare(model)
    probed.set_outputs(model)
    kept = {info.name for info in model.graph.output}
    nodes = list(_interleave(list(model.graph.node), behind, kept))
    ordered = onnx.GraphProto(node=chain(probed.added.first, nodes, probed.added.last))
    del model.graph.node[:]
    model.graph.node.extend(ordered.node)
    return model


def _computes_float(graph: Graph, node: Node) -> bool:
    return any(graph.dtypes.get(name) == TensorProto.FLOAT for name in node.writes)


def _interleave(
    nodes: Sequence[NodeProto], behind: Mapping[str, Sequence[NodeProto]], kept: Iterable[str]
) -> Iterator[NodeProto]:
    """The nodes, each followed by the probes of what it writes; the probes of what no node writes come first.

    A reorder that only probes need stands directly behind what it reorders, or is left out.
    """
    read = {name for node in nodes for name in node.input}.union(kept)
    is_leaf = [_is_reorder(node) and node.output[0] not in read for node in nodes]
    reorders: dict[str, list[NodeProto]] = {}
    for node in compress(nodes, is_leaf):
        reorders.setdefault(node.input[0], []).append(node)
    written = {name for node in nodes for name in node.output}
    yield from chain.from_iterable(probes for tensor, probes in behind.items() if tensor not in written)
    for node in compress(nodes, map(not_, is_leaf)):
        yield node
        for name in node.output:
            yield from behind.get(name, ())
            for reorder in reorders.get(name, ()):
                yield from _probe_blocked(reorder, behind)


def _probe_blocked(reorder: NodeProto, behind: Mapping[str, Sequence[NodeProto]]) -> Iterator[NodeProto]:
    """The probes of what the reorder writes, on the blocks where these hold nothing but elements of the tensor."""
    (tensor,), (blocks, *_) = reorder.output, reorder.input
    channels = next(found.i for found in reorder.attribute if found.name == "channels")
    if channels % _LARGEST_BLOCK:
        yield reorder
        yield from behind[tensor]
        return
    for node in behind[tensor]:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [blocks if name == tensor else name for name in node.input]
        yield copy


def _is_reorder(node: NodeProto) -> bool:
    return node.domain == _BLOCKED and node.op_type == "ReorderOutput"
