"""What is changed in a model for TensorRT: what its parser refuses or overlooks of what exporters write, and what the plan clamps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.backends.tensorrt.capabilities import Capabilities
from overflow_fixer.graph.constant_shapes import clip_fill
from overflow_fixer.graph.copies import embed_weights
from overflow_fixer.graph.free_names import free_prefix
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array, Clamp, PrecisionPlan, ShapeRange
from overflow_fixer.simulation.sigmoids import find_given_sigmoids, write_out

_REDUCTIONS = frozenset(
    f"Reduce{name}" for name in "L1 L2 LogSum LogSumExp Max Mean Min Prod SumSquare".split()
)
"""Those that have axes as an input from opset 18 on. ReduceSum has had them since 13, and every parser here reads them."""
_BEHIND = 2**31 - 1
"""Behind the last dimension: TensorRT's integers have 32 bits."""
_GRID_MODES = {b"linear": b"bilinear", b"cubic": b"bicubic"}
"""Those of GridSample by their names since opset 20, and before it, which alone the parser knows (onnx-tensorrt 10.6, onnxOpImporters.cpp)."""
Shapes = Mapping[str, ShapeRange]
Sizes = Mapping[tuple[str, int], int]
"""Of dimensions of inputs, each told by the input and the axis."""


@dataclass(frozen=True)
class Changes:
    """In nodes, each told by its first output, in constants, and in dimensions of inputs; nothing where the model needs none.

    `clamps` are the plan's, and `sigmoids` what those write that are to be written out, with prefixes of free names. `axes` are
    those that reductions have as constant inputs, `partial_shapes` what Shape nodes write that give a part, with such prefixes:
    both are overlooked before TensorRT 10. `grid_modes` are those of GridSample, of which other names would be taken for the
    nearest element. `unbounded` are inputs of a Clip that are infinite, `unequal` dimensions that share a name with others and
    need not be equal, `sizes` those that open dimensions get: all three are refused as they are.
    """

    clamps: Mapping[str, Clamp]
    sigmoids: Mapping[str, str]
    axes: Mapping[str, Sequence[int]]
    partial_shapes: Mapping[str, str]
    grid_modes: Mapping[str, bytes]
    unbounded: Mapping[str, Sequence[int]]
    unequal: Collection[tuple[str, int]]
    sizes: Sizes

    @property
    def is_any(self) -> bool:
        overlooked = self.axes or self.partial_shapes or self.grid_modes
        refused = self.unbounded or self.unequal or self.sizes
        return bool(self.clamps or self.sigmoids or overlooked or refused)


def find_changes(
    graph: Graph, plan: PrecisionPlan | None, found: Capabilities, shapes: Shapes, sizes: Sizes
) -> Changes:
    """Those of a model that is to be built for these shapes."""
    return Changes(
        clamps={} if plan is None else {clamp.tensor: clamp for clamp in plan.clamps},
        sigmoids={} if plan is None else find_pinned_sigmoids(graph, plan),
        axes={} if found.axes_inputs else read_axes(graph),
        partial_shapes={} if found.axes_inputs else find_partial_shapes(graph),
        grid_modes=find_grid_modes(graph),
        unbounded=find_infinite_bounds(graph),
        unequal=find_unequal_dimensions(graph, shapes),
        sizes=sizes,
    )


def make_changes(graph: Graph, changes: Changes) -> onnx.ModelProto:
    """The model so changed, weights of its own file in it; external data stays where it is, beside the file."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    embed_weights(model, graph)
    _clamp(model, graph, changes.clamps)
    _change_nodes(model.graph, changes)
    _rename_dimensions(model.graph, changes.unequal)
    _fix_dimensions(model.graph, changes.sizes)
    return model


def _change_nodes(graph: onnx.GraphProto, changes: Changes) -> None:
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        written = node.output[0] if node.output else ""
        if written in changes.axes:
            _tell_axes(node, changes.axes[written])
        if written in changes.grid_modes:
            next(one for one in node.attribute if one.name == "mode").s = changes.grid_modes[written]
        for slot in changes.unbounded.get(written, ()):
            node.input[slot] = ""
        graph.node.extend(_write(node, written, changes))


def _write(node: onnx.NodeProto, written: str, changes: Changes) -> Iterable[onnx.NodeProto]:
    """What is written in the node's place."""
    if written in changes.partial_shapes:
        return _slice_shape(node, changes.partial_shapes[written])
    if written in changes.sigmoids:
        return _write_out(node, changes.sigmoids[written])
    return (node,)


def _write_out(sigmoid: onnx.NodeProto, prefix: str) -> Iterator[onnx.NodeProto]:
    """A Sigmoid as sigmoids.write_out has it, each node with a name, so that its layers have one."""
    *between, last = write_out(sigmoid, prefix)
    for node in between:
        node.name = node.output[0]
    if sigmoid.name:
        last.name = sigmoid.name
    yield from (*between, last)


def _slice_shape(shape: onnx.NodeProto, prefix: str) -> Iterator[onnx.NodeProto]:
    """A Shape of a part as one of the whole, and the Slice of it which writes the part; `prefix` is of the names between."""
    ends = {attribute.name: attribute.i for attribute in shape.attribute}
    yield helper.make_node("Shape", shape.input, [f"{prefix}sizes"], name=f"{prefix}sizes")
    for word, default in (("start", 0), ("end", _BEHIND)):
        value = helper.make_tensor("", TensorProto.INT64, [1], [ends.get(word, default)])
        yield helper.make_node("Constant", [], [prefix + word], name=prefix + word, value=value)
    names = [prefix + word for word in ("sizes", "start", "end")]
    yield helper.make_node("Slice", names, shape.output, name=shape.name)


def _rename_dimensions(graph: onnx.GraphProto, places: Collection[tuple[str, int]]) -> None:
    """Give each of these dimensions of inputs a name of its own."""
    for info in graph.input:
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if (info.name, axis) in places:
                dim.dim_param = f"{dim.dim_param}.{info.name}.{axis}"


def _fix_dimensions(graph: onnx.GraphProto, sizes: Sizes) -> None:
    infos = {info.name: info for info in graph.input}
    for (name, axis), size in sizes.items():
        infos[name].type.tensor_type.shape.dim[axis].dim_value = size


def find_pinned_sigmoids(graph: Graph, plan: PrecisionPlan) -> dict[str, str]:
    """What Sigmoids write that the plan pins and the model gives out, with a prefix of free names.

    TensorRT 8.6's own, pinned where FP16 is allowed, is in steps of 2^-24 and more: 0 of a score of 4e-8.
    """
    given = find_given_sigmoids(graph)
    found = [node.outputs[0] for node in graph.nodes if node.label in given and node.label in plan.pinned]
    prefix = free_prefix(graph, "sigmoid_of_") if found else ""
    return dict.fromkeys(found, prefix)


def read_axes(graph: Graph) -> dict[str, list[int]]:
    """The constant axes of each reduction that takes them as an input, by what it writes; without those that reduce nothing."""
    reductions = (node for node in graph.nodes if node.standard_op in _REDUCTIONS and any(node.inputs[1:]))
    read = ((node, _read_fixed(graph, node.inputs[1])) for node in reductions)
    return {
        node.outputs[0]: axes.reshape(-1).tolist()
        for node, axes in read
        if axes is not None and not _is_noop(node, axes)
    }


def find_partial_shapes(graph: Graph) -> dict[str, str]:
    """By what it writes each Shape that gives a part, as it can from opset 15 on, with a prefix that no name begins with.

    Parsers before TensorRT 10 overlook its `start` and `end`, and give the whole.
    """
    shapes = (node for node in graph.nodes if node.standard_op == "Shape")
    parts = [one for one in shapes if one.value_of("start", 0) or one.value_of("end", None) is not None]
    prefix = free_prefix(graph, "whole_shape_") if parts else ""
    return {node.outputs[0]: f"{prefix}{number}_" for number, node in enumerate(parts)}


def find_grid_modes(graph: Graph) -> dict[str, bytes]:
    """By what it writes each GridSample whose mode has a name that it was given with opset 20, with the one before it.

    TensorRT's parser takes a name that it does not know for the nearest element, without a word.
    """
    samples = (node for node in graph.nodes if node.standard_op == "GridSample")
    modes = ((node, node.value_of("mode", b"")) for node in samples)
    return {node.outputs[0]: _GRID_MODES[mode] for node, mode in modes if mode in _GRID_MODES}


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


def find_fixed_sizes(graph: Graph, shapes: Shapes) -> dict[tuple[str, int], int]:
    """The sizes of open dimensions of inputs of which an engine for these shapes takes but one."""
    told = [(spec.name, spec.dims, shapes[spec.name]) for spec in graph.inputs if spec.name in shapes]
    return {
        (name, axis): least
        for name, dims, wanted in told
        for axis, (dim, least, most) in enumerate(zip(dims or (), wanted.min, wanted.max, strict=False))
        if not isinstance(dim, int) and least == most
    }


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


def _tell_axes(node: onnx.NodeProto, axes: Sequence[int]) -> None:
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
