"""The model that TensorRT is given: the file itself, or what the plan changed in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.backends.tensorrt.capabilities import Capabilities
from overflow_fixer.backends.tensorrt.network import ParsedNetwork, parse_model
from overflow_fixer.errors import BackendError
from overflow_fixer.graph.constant_shapes import clip_fill
from overflow_fixer.graph.copies import embed_weights
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array, Clamp, Typing

_REDUCTIONS = frozenset(
    f"Reduce{name}" for name in "L1 L2 LogSum LogSumExp Max Mean Min Prod SumSquare".split()
)
"""Those that have axes as an input from opset 18 on. ReduceSum has had them since 13, and every parser here reads them."""


_OLD_OPSET = 17
"""The newest that parsers before TensorRT 10 say they know (onnx-tensorrt, docs/operators.md of 8.5 and 8.6)."""


def parse_graph(
    trt: Any, found: Capabilities, graph: Graph, clamps: Sequence[Clamp], typing: Typing
) -> ParsedNetwork:
    """The network of the model with its constants clamped. Raises BackendError as find_source and parse_model do."""
    source = find_source(graph, clamps, found)
    return parse_model(trt, found, source, graph.path, typing, doubt_opset(graph, found))


def doubt_opset(graph: Graph, found: Capabilities) -> str:
    """A sentence where the parser was made before the model's opset; empty where it was not."""
    if found.axes_inputs or graph.opset <= _OLD_OPSET:
        return ""
    return (
        f"The model is of opset {graph.opset}, and the parser of TensorRT {found.version} was made for {_OLD_OPSET} and older: "
        f"what operators were given since may be refused or overlooked. An export with opset {_OLD_OPSET} is safer."
    )


def find_source(graph: Graph, clamps: Sequence[Clamp], found: Capabilities) -> Path | bytes:
    """The model's file, or its bytes where something is changed for TensorRT.

    That is where functions were inlined, constants are clamped, or reductions are told their constant axes by an attribute,
    since the parser overlooks the input. External data stays where it is, beside the file. Raises BackendError where the bytes
    would not fit one message.
    """
    axes = {} if found.axes_inputs else read_axes(graph)
    if not (clamps or axes or graph.is_inlined):
        return graph.path
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    embed_weights(model, graph)
    _clamp(model, graph, {clamp.tensor: clamp for clamp in clamps})
    for node in model.graph.node:
        if node.output and node.output[0] in axes:
            _tell_axes(node, axes[node.output[0]])
    try:
        return bytes(model.SerializeToString())
    except Exception as error:
        pinned = ", or plan with --masks pin" if clamps else ""
        raise BackendError(
            f"{graph.path}, changed for TensorRT {found.version}, does not fit one message: {error}. Expected under 2 GB "
            f"outside external data. Save the model with its weights in external data{pinned}."
        ) from error


def read_axes(graph: Graph) -> dict[str, list[int]]:
    """The constant axes of each reduction that takes them as an input, by what it writes; without those that reduce nothing."""
    reductions = (node for node in graph.nodes if node.standard_op in _REDUCTIONS and any(node.inputs[1:]))
    names = ((node, graph.copied_constants.get(node.inputs[1], node.inputs[1])) for node in reductions)
    read = ((node, graph.read_fixed(name)) for node, name in names)
    return {
        node.outputs[0]: axes.reshape(-1).tolist()
        for node, axes in read
        if axes is not None and not _is_noop(node, axes)
    }


def _is_noop(node: Node, axes: Array) -> bool:
    return axes.size == 0 and bool(node.value_of("noop_with_empty_axes", 0))


def _tell_axes(node: onnx.NodeProto, axes: list[int]) -> None:
    """Have a reduction hold its axes as up to opset 17; without any, it reduces all."""
    del node.input[1:]
    if axes:
        node.attribute.append(helper.make_attribute("axes", axes))


def _clamp(model: onnx.ModelProto, graph: Graph, clamps: Mapping[str, Clamp]) -> None:
    for tensor in model.graph.initializer:
        if tensor.name in clamps:
            tensor.CopyFrom(_clamped(graph, clamps[tensor.name]))
    for node in model.graph.node:
        if node.op_type == "Constant" and node.output[0] in clamps:
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("value", _clamped(graph, clamps[node.output[0]])))
        elif node.op_type == "ConstantOfShape" and node.output[0] in clamps:
            clip_fill(node, clamps[node.output[0]].magnitude)


def _clamped(graph: Graph, clamp: Clamp) -> TensorProto:
    value = graph.read_constant(clamp.tensor)
    clipped = np.clip(value, -clamp.magnitude, clamp.magnitude).astype(value.dtype)
    return numpy_helper.from_array(clipped, clamp.tensor)
