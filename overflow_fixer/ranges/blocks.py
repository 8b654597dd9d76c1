"""Tensors in ONNX Runtime's blocked layout, and how they are probed.

ONNX Runtime lays convolutions out in blocks of channels (NCHWc) and puts a ReorderOutput in front of
whoever reads a plain tensor. A probe does not care for the order of elements: it reads the blocked
tensor itself, a native one also where the last block is padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import NodeProto

from overflow_fixer.native import DOMAIN

_BLOCKED = "com.microsoft.nchwc"
_SMALL_BLOCK, _LARGE_BLOCK = 8, 16
"""Channels are padded to whole blocks of 8 or 16, by the processor; a multiple of the larger has no padding on any."""

Layouts = Mapping[int, NodeProto | None]
"""By a number of channels whose blocks can be read: the constant that tells of their padding, None without any."""


def lay_out(graph: onnx.GraphProto, prefix: str) -> Layouts:
    """How the blocks of an optimised graph lie; names of the constants begin with `prefix`."""
    reorders = [node for node in graph.node if is_reorder(node)]
    block = find_block(graph, {node.input[0]: _channels(node) for node in reorders})
    found: dict[int, NodeProto | None] = {}
    for channels in sorted(set(map(_channels, reorders))):
        if channels % (block or _LARGE_BLOCK) == 0:
            found[channels] = None
        elif block is not None:
            found[channels] = _layout(f"{prefix}layout_{channels}", channels, block)
    return found


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


def probe_blocks(reorder: NodeProto, probes: Sequence[NodeProto], layouts: Layouts) -> Iterator[NodeProto]:
    """The probes of what the reorder writes, on the blocks where these can be read."""
    (tensor,), channels = reorder.output, _channels(reorder)
    layout = layouts.get(channels)
    if channels not in layouts or (layout is not None and not all(map(_is_native, probes))):
        yield reorder
        yield from probes
        return
    for node in probes:
        copy = NodeProto()
        copy.CopyFrom(node)
        copy.input[:] = [reorder.input[0] if name == tensor else name for name in node.input]
        if layout is not None:
            copy.op_type = "BlockProbe"
            copy.input.append(layout.output[0])
        yield copy


def is_reorder(node: NodeProto) -> bool:
    return node.domain == _BLOCKED and node.op_type == "ReorderOutput"


def _layout(name: str, channels: int, block: int) -> NodeProto:
    value = onnx.numpy_helper.from_array(np.array([channels, block], np.int64))
    return onnx.helper.make_node("Constant", [], [name], value=value)


def _is_native(node: NodeProto) -> bool:
    """Whether it is a probe of which there is one for padded blocks."""
    return node.domain == DOMAIN and node.op_type == "Probe"


def _channels(reorder: NodeProto) -> int:
    return next(int(found.i) for found in reorder.attribute if found.name == "channels")
