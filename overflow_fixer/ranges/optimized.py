"""A model as ONNX Runtime's optimiser leaves it, with probes, so that a scan runs at the speed of inference.

ONNX Runtime lays convolutions out in blocks of channels (NCHWc) and puts a ReorderOutput in front of
whoever reads a plain tensor. A probe does not care for the order of elements: it reads the blocked
tensor itself, a native one also where the last block is padded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from operator import not_
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto

from overflow_fixer.graph import Graph, Node
from overflow_fixer.native import DOMAIN
from overflow_fixer.ranges.instrument import Probed, mark_tensors
from overflow_fixer.ranges.kept_weights import put_back, set_aside
from overflow_fixer.sessions import save_optimized

_BLOCKED = "com.microsoft.nchwc"
_SMALL_BLOCK, _LARGE_BLOCK = 8, 16
"""Channels are padded to whole blocks of 8 or 16, by the processor; only a multiple of both has no padding."""

_Behind = Mapping[str, Sequence[NodeProto]]


def has_faster_kernels(graph: Graph) -> bool:
    """Whether the optimiser finds other kernels for much of what is observed: those of convolutions of float32.

    It fuses nothing over a tensor that is observed, and has no others for products of matrices; where there are as many
    of those, opening the model twice is all that comes of it. In FP16 it would drop roundings.
    """
    is_narrow = {TensorProto.FLOAT16, TensorProto.BFLOAT16} & set(graph.dtypes.values())
    operators = Counter(node.standard_op for node in graph.nodes if _computes_float(graph, node))
    return not is_narrow and operators["Conv"] > operators["MatMul"] + operators["Gemm"]


def optimize_probed(probed: Probed, work: Path) -> tuple[onnx.ModelProto, Path]:
    """The optimised model with the probes, and the folder in which it finds its weights, some of them in files in `work`.

    Values differ by rounding alone. The model is to be run as it stands, with optimisation off. Raises ModelError when
    ONNX Runtime refuses it.
    """
    graph, behind = probed.graph, probed.added.behind
    marked, _ = mark_tensors(graph, list(behind))
    weights = set_aside(marked, graph)
    path = work / "optimized.onnx"
    save_optimized(marked, graph.folder, path)
    model: onnx.ModelProto = onnx.load(path, load_external_data=False)
    folder = put_back(model, weights, graph.folder, work)
    probed.declare(model)
    probed.set_outputs(model)
    kept = {info.name for info in model.graph.output}
    layouts = _lay_out(model.graph, probed.prefix)
    nodes = list(_interleave(list(model.graph.node), behind, kept, layouts))
    first = chain(probed.added.first, filter(None, layouts.values()))
    ordered = onnx.GraphProto(node=chain(first, nodes, probed.added.last))
    del model.graph.node[:]
    model.graph.node.extend(ordered.node)
    return model, folder


def find_block(graph: onnx.GraphProto, channels_of: Mapping[str, int]) -> int | None:
    """How many channels a block has, by the padded weights of a convolution; `channels_of` is by what it writes."""
    written = {tensor.name: tensor.dims[0] for tensor in graph.initializer if tensor.dims}
    for node in graph.node:
        if node.op_type == "Conv" and node.output[0] in channels_of and node.input[1] in written:
            padded = written[node.input[1]]
            if padded % _LARGE_BLOCK:
                return _SMALL_BLOCK
            if padded - channels_of[node.output[0]] >= _SMALL_BLOCK:
                return _LARGE_BLOCK
    return None


def _computes_float(graph: Graph, node: Node) -> bool:
    return any(graph.dtypes.get(name) == TensorProto.FLOAT for name in node.writes)


def _lay_out(graph: onnx.GraphProto, prefix: str) -> dict[int, NodeProto | None]:
    """For each number of channels whose blocks can be read: the constant that tells of their padding, None without any."""
    reorders = [node for node in graph.node if _is_reorder(node)]
    block = find_block(graph, {node.input[0]: _channels(node) for node in reorders})
    found: dict[int, NodeProto | None] = {}
    for channels in sorted(set(map(_channels, reorders))):
        if channels % (block or _LARGE_BLOCK) == 0:
            found[channels] = None
        elif block is not None:
            found[channels] = _layout(f"{prefix}layout_{channels}", channels, block)
    return found


def _layout(name: str, channels: int, block: int) -> NodeProto:
    value = onnx.numpy_helper.from_array(np.array([channels, block], np.int64))
    return onnx.helper.make_node("Constant", [], [name], value=value)


def _interleave(
    nodes: Sequence[NodeProto],
    behind: _Behind,
    kept: Iterable[str],
    layouts: Mapping[int, NodeProto | None],
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
                yield from _probe_blocked(reorder, behind, layouts)


def _probe_blocked(
    reorder: NodeProto, behind: _Behind, layouts: Mapping[int, NodeProto | None]
) -> Iterator[NodeProto]:
    """The probes of what the reorder writes, on the blocks where these can be read."""
    (tensor,), channels = reorder.output, _channels(reorder)
    layout = layouts.get(channels)
    if channels not in layouts or (layout is not None and not all(map(_is_native, behind[tensor]))):
        yield reorder
        yield from behind[tensor]
        return
    for node in behind[tensor]:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [reorder.input[0] if name == tensor else name for name in node.input]
        if layout is not None:
            copy.op_type = "BlockProbe"
            copy.input.append(layout.output[0])
        yield copy


def _is_native(node: NodeProto) -> bool:
    """Whether it is a probe of which there is one for padded blocks."""
    return node.domain == DOMAIN and node.op_type == "Probe"


def _is_reorder(node: NodeProto) -> bool:
    return node.domain == _BLOCKED and node.op_type == "ReorderOutput"


def _channels(reorder: NodeProto) -> int:
    return next(int(found.i) for found in reorder.attribute if found.name == "channels")
