"""The model that TensorRT is given: the file itself, or what the plan changed in it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
from overflow_fixer.records import Array, Clamp, ShapeRange, Typing

_REDUCTIONS = frozenset(
    f"Reduce{name}" for name in "L1 L2 LogSum LogSumExp Max Mean Min Prod SumSquare".split()
)
"""Those that have axes as an input from opset 18 on. ReduceSum has had them since 13, and every parser here reads them."""
_OLD_OPSET = 17
"""The newest that parsers before TensorRT 10 say they know (onnx-tensorrt, docs/operators.md of 8.5 and 8.6)."""
Shapes = Mapping[str, ShapeRange]


def parse_graph(
    trt: Any, found: Capabilities, graph: Graph, clamps: Sequence[Clamp], typing: Typing, shapes: Shapes
) -> ParsedNetwork:
    """The network of the model with its constants clamped. Raises BackendError as find_source and parse_model do."""
    source = find_source(graph, clamps, found, shapes)
    return parse_model(trt, found, source, graph.path, typing, doubt_opset(graph, found))


def doubt_opset(graph: Graph, found: Capabilities) -> str:
    """A sentence where the parser was made before the model's opset; empty where it was not."""
    if found.axes_inputs or graph.opset <= _OLD_OPSET:
        return ""
    return (
        f"The model is of opset {graph.opset}, and the parser of TensorRT {found.version} was made for {_OLD_OPSET} and older: "
        f"what operators were given since may be refused or overlooked. An export with opset {_OLD_OPSET} is safer."
    )


def find_source(graph: Graph, clamps: Sequence[Clamp], found: Capabilities, shapes: Shapes) -> Path | bytes:
    """The model's file, or its bytes where something is changed for TensorRT, which is to be built for these shapes.

    That is where functions were inlined, constants are clamped, a Clip has an infinite bound or dimensions of one name need
    not be equal, which TensorRT refuses, or reductions are told their constant axes by an attribute, since the parser
    overlooks the input. External data stays where it is, beside the file. Raises BackendError where the bytes would not fit
    one message.
    """
    axes = {} if found.axes_inputs else read_axes(graph)
    unbounded, unequal = find_infinite_bounds(graph), find_unequal_dimensions(graph, shapes)
    if not (clamps or axes or unbounded or unequal or graph.is_inlined):
        return graph.path
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    embed_weights(model, graph)
    _clamp(model, graph, {clamp.tensor: clamp for clamp in clamps})
    for node in model.graph.node:
        written = node.output[0] if node.output else ""
        if written in axes:
            _tell_axes(node, axes[written])
        for slot in unbounded.get(written, ()):
            node.input[slot] = ""
    _rename_dimensions(model.graph, unequal)
    return _serialize(model, graph, clamps, found)


def _serialize(model: onnx.ModelProto, graph: Graph, clamps: Sequence[Clamp], found: Capabilities) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except Exception as error:
        pinned = ", or plan with --masks pin" if clamps else ""
        raise BackendError(
            f"{graph.path}, changed for TensorRT {found.version}, does not fit one message: {error}. Expected under 2 GB "
            f"outside external data. Save the model with its weights in external data{pinned}."
        ) from error


def _rename_dimensions(graph: onnx.GraphProto, places: Collection[tuple[str, int]]) -> None:
    """Give each of these dimensions of inputs a name of its own."""
    for info in graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if (info.name, axis) in places:
                dim.dim_param = f"{dim.dim_param}.{info.name}.{axis}"


def read_axes(graph: Graph) -> dict[str, list[int]]:
    """The constant axes of each reduction that takes them as an input, by what it writes; without those that reduce nothing."""
    reductions = (node for node in graph.nodes if node.standard_op in _REDUCTIONS and any(node.inputs[1:]))
    read = ((node, _read_fixed(graph, node.inputs[1])) for node in reductions)
    return {
        node.outputs[0]: axes.reshape(-1).tolist()
        for node, axes in read
        if axes is not None and not _is_noop(node, axes)
    }


def find_unequal_dimensions(graph: Graph, shapes: Shapes) -> frozenset[tuple[str, int]]:
    """The dimensions of inputs, each as (input, axis), that share a name with others and need not be equal in these shapes.

    Some exporters name every open dimension "?". TensorRT refuses to build for ranges that differ among dimensions of one
    name, and to run on sizes that do; of one input even ranges that are alike may hold sizes that differ.
    """
    told = [(spec.name, spec.dims, shapes[spec.name]) for spec in graph.inputs if spec.name in shapes]
    named: dict[str, list[tuple[str, int, tuple[int, int, int]]]] = {}
    for name, dims, wanted in told:
        sizes = zip(wanted.min, wanted.opt, wanted.max, strict=True)
        for axis, (dim, size) in enumerate(zip(dims or (), sizes, strict=False)):
            if isinstance(dim, str):
                named.setdefault(dim, []).append((name, axis, size))
    unequal = [
        places
        for places in named.values()
        if len({size for _, _, size in places}) > 1 or len({name for name, _, _ in places}) < len(places)
    ]
    return frozenset((name, axis) for places in unequal for name, axis, _ in places)


def find_infinite_bounds(graph: Graph) -> dict[str, list[int]]:
    """By what a Clip writes, its inputs that are a constant bound of -inf below or inf above, which changes no finite number.

    Without it the bound is the largest finite number (ONNX, Clip), which is what infinity becomes.
    """
    found = {
        node.outputs[0]: [
            slot
            for slot, bound in ((1, -np.inf), (2, np.inf))
            if slot < len(node.inputs) and _is_always(graph, node.inputs[slot], bound)
        ]
        for node in graph.nodes
        if node.standard_op == "Clip"
    }
    return {written: slots for written, slots in found.items() if slots}


def _is_always(graph: Graph, name: str, value: float) -> bool:
    held = _read_fixed(graph, name)
    return held is not None and held.size > 0 and bool((held == value).all())


def _read_fixed(graph: Graph, name: str) -> Array | None:
    """The value of a constant, or of what copies one; None for another tensor."""
    return graph.read_fixed(graph.copied_constants.get(name, name))


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
