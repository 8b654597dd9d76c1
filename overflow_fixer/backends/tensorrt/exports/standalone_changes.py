"""A model changed for TensorRT by code that stands alone: its text is part of exported loader scripts.

So it imports nothing of this package and keeps to Python 3.8. It makes some of `changes`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

# ---------------------------------------------------------------- exported from here


def change_model(
    trt: Any,
    path: str,
    clamps: Mapping[str, float],
    axes: Mapping[str, Sequence[int]],
    partial_shapes: Mapping[str, str],
    grid_modes: Mapping[str, bytes],
    sigmoids: Mapping[str, str],
) -> bytes | None:
    """The model with functions inlined, constants clamped, Sigmoids written out, and what TensorRT's parser overlooks told
    in another way.

    That is axes as attributes, a part of a shape as a slice, and a mode of GridSample by its older name. External data stays
    where it is. None where nothing is to be changed.
    """
    model = onnx.load(path, load_external_data=False)
    if hasattr(trt.OnnxParser, "get_layer_output_tensor"):
        axes, partial_shapes = {}, {}
    if not (model.functions or clamps or axes or partial_shapes or grid_modes or sigmoids):
        return None
    if model.functions:
        from onnx.inliner import inline_local_functions

        model = inline_local_functions(model)
    missing = clamp_constants(model, os.path.dirname(path), clamps)
    if missing:
        raise RuntimeError(f"{path} has no constants {missing}, which the plan clamps.")
    tell_overlooked(model.graph, axes, partial_shapes, grid_modes)
    write_out_sigmoids(model.graph, sigmoids)
    return bytes(model.SerializeToString())


def tell_overlooked(
    graph: Any,
    axes: Mapping[str, Sequence[int]],
    partial_shapes: Mapping[str, str],
    grid_modes: Mapping[str, bytes],
) -> None:
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        written = node.output[0] if node.output else ""
        if written in axes:
            tell_axes(node, axes[written])
        if written in grid_modes:
            next(one for one in node.attribute if one.name == "mode").s = grid_modes[written]
        prefix = partial_shapes.get(written)
        graph.node.extend([node] if prefix is None else slice_shape(node, prefix))


def write_out_sigmoids(graph: Any, sigmoids: Mapping[str, str]) -> None:
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        written = node.output[0] if node.output else ""
        graph.node.extend(write_out(node, sigmoids[written]) if written in sigmoids else [node])


def write_out(sigmoid: Any, prefix: str) -> Iterator[Any]:
    """1 / (1 + e^-x)."""
    (source,), (target,) = sigmoid.input, sigmoid.output
    parts = ("turned", "power", "one", "divisor")
    turned, power, one, divisor = (f"{prefix}{target}__{part}" for part in parts)
    value = onnx.helper.make_tensor(one, onnx.TensorProto.FLOAT, [], [1.0])
    yield onnx.helper.make_node("Neg", [source], [turned], name=turned)
    yield onnx.helper.make_node("Exp", [turned], [power], name=power)
    yield onnx.helper.make_node("Constant", [], [one], name=one, value=value)
    yield onnx.helper.make_node("Add", [power, one], [divisor], name=divisor)
    yield onnx.helper.make_node("Reciprocal", [divisor], [target], name=sigmoid.name)


def clamp_constants(model: Any, folder: str, clamps: Mapping[str, float]) -> Sequence[str]:
    """Clamp the constants; returns those that the model does not have."""
    left = dict(clamps)
    for tensor in model.graph.initializer:
        if tensor.name in left:
            value = onnx.numpy_helper.to_array(tensor, folder)
            tensor.CopyFrom(clamp_tensor(value, tensor.name, left.pop(tensor.name)))
    for node in model.graph.node:
        if node.op_type in ("Constant", "ConstantOfShape") and node.output[0] in left:
            name = node.output[0]
            tensor = clamp_tensor(read_constant(node, folder), name, left.pop(name))
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("value", tensor))
    return sorted(left)


def tell_axes(node: Any, axes: Sequence[int]) -> None:
    """Have a reduction hold its axes as up to opset 17; without any, it reduces all."""
    del node.input[1:]
    if axes:
        node.attribute.append(onnx.helper.make_attribute("axes", axes))


def slice_shape(shape: Any, prefix: str) -> Iterator[Any]:
    """A Shape of a part as one of the whole, and the Slice of it which writes the part; `prefix` is of the names between."""
    ends = {attribute.name: attribute.i for attribute in shape.attribute}
    yield onnx.helper.make_node("Shape", shape.input, [f"{prefix}sizes"], name=f"{prefix}sizes")
    for word, default in (("start", 0), ("end", 2**31 - 1)):
        value = onnx.helper.make_tensor("", onnx.TensorProto.INT64, [1], [ends.get(word, default)])
        yield onnx.helper.make_node("Constant", [], [prefix + word], name=prefix + word, value=value)
    names = [prefix + word for word in ("sizes", "start", "end")]
    yield onnx.helper.make_node("Slice", names, shape.output, name=shape.name)


def read_constant(node: Any, folder: str) -> Any:
    """The value of a Constant node, whichever attribute holds it."""
    attribute = node.attribute[0]
    value = onnx.helper.get_attribute_value(attribute)
    is_tensor = attribute.name == "value"
    return onnx.numpy_helper.to_array(value, folder) if is_tensor else np.asarray(value, np.float32)


def clamp_tensor(value: Any, name: str, magnitude: float) -> Any:
    """The tensor with elements beyond +-`magnitude` replaced by it; NaN stays."""
    clipped = np.clip(value, -magnitude, magnitude).astype(value.dtype)
    return onnx.numpy_helper.from_array(clipped, name)
