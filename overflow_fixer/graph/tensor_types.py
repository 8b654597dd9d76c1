"""The types of a model's tensors as recorded, as inferred, as ONNX Runtime tells them, and their shapes as inferred."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto

from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operator_types import tell_outputs
from overflow_fixer.model_file.subgraphs import STANDARD_DOMAINS, captured_by, separate_names
from overflow_fixer.records import Dim
from overflow_fixer.sessions.marking import infer_types

Shapes = Mapping[str, tuple[Dim, ...]]
_STRIPPED_ELEMENTS = 1024
_DEFAULTS_SINCE_IR = 4
"""Below that version every initializer is an input too, and hardly any is fed."""
_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_OTHER_KINDS = ("sequence_type", "optional_type")


class LateShapes(Mapping[str, tuple[Dim, ...]]):
    """Shapes that are inferred when the first is asked for."""

    def __init__(self, infer: Callable[[], Mapping[str, tuple[Dim, ...]]]) -> None:
        self._infer = infer

    @cached_property
    def _found(self) -> Mapping[str, tuple[Dim, ...]]:
        return self._infer()

    def __getitem__(self, name: str) -> tuple[Dim, ...]:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Types(NamedTuple):
    """What Graph.dtypes, other_types, ranks and, where they come with those, sure_shapes hold."""

    dtypes: dict[str, int]
    others: dict[str, onnx.TypeProto]
    ranks: dict[str, int]
    sure_shapes: Shapes | None


def tell_types(
    model: onnx.ModelProto, folder: Path, nodes: Sequence[Node], constants: Mapping[str, TensorProto]
) -> Types:
    """The types of the main graph's tensors; `nodes` are its own, `constants` what find_constants gives.

    By the table of common operators, and shapes once they are asked for; where that does not do, inferred with the
    shapes. Raises ModelError when ONNX Runtime, asked for a type, refuses the model.
    """
    dtypes = {name: tensor.data_type for name, tensor in constants.items()}
    fixed = {name: constants[name] for name in constants.keys() - find_loose(model)}
    ranks = {name: len(tensor.dims) for name, tensor in fixed.items()}
    _tell_given(model.graph, dtypes, ranks)
    if tell_outputs(nodes, fixed, dtypes, ranks):
        shapes = LateShapes(lambda: {**_shapes_of(_infer_once(model)), **_shapes_of_initializers(model)})
        return Types(dtypes, {}, ranks, _tell_sure_shapes(model, shapes))
    types = _infer_once(model)
    others = {name: info for name, info in types.items() if info.WhichOneof("value") in _OTHER_KINDS}
    dtypes = {name: one.tensor_type.elem_type for name, one in types.items() if one.HasField("tensor_type")}
    dtypes.update((tensor.name, tensor.data_type) for tensor in model.graph.initializer)
    written = (name for node in nodes for name in node.writes)
    unknown = [name for name in written if name not in types or not is_typed(types[name])]
    if unknown:
        dtypes.update(infer_types(model, folder, unknown))
    inferred = {**_shapes_of(types), **_shapes_of_initializers(model)}
    return Types(dtypes, others, {}, _tell_sure_shapes(model, inferred))


def infer_shapes(model: onnx.ModelProto, fed: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[Dim, ...]]:
    """The shapes that the main graph's tensors take when inputs of the shapes `fed` are given.

    A dimension that cannot be told without running the model stays symbolic or None; what the model records of inner
    shapes is not relied on, nor the default of an input, in whose place another value may be fed.
    """
    skeleton = _skeleton(model, find_defaults(model))
    _forget_shapes(skeleton)
    for info in skeleton.graph.input:
        if info.name in fed:
            elem_type = info.type.tensor_type.elem_type
            info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, elem_type, fed[info.name]))
    loose = find_loose(model)
    held = {name: dims for name, dims in _shapes_of_initializers(model).items() if name not in loose}
    return {**_keep_sure(model.graph, _shapes_of(_infer(skeleton))), **held}


def find_defaults(model: onnx.ModelProto) -> frozenset[str]:
    """The initializers that are inputs too, so that a batch may feed other values; before IR version 4 it cannot."""
    graph = model.graph
    if model.ir_version < _DEFAULTS_SINCE_IR:
        return frozenset()
    return frozenset(info.name for info in graph.input).intersection(one.name for one in graph.initializer)


def find_loose(model: onnx.ModelProto) -> frozenset[str]:
    """Those of them of which it may feed another shape as well."""
    defaults = find_defaults(model)
    told = {info.name: dims_of(info.type) for info in model.graph.input if info.name in defaults}
    dims = {one.name: tuple(one.dims) for one in model.graph.initializer if one.name in defaults}
    return frozenset(name for name in defaults if told[name] != dims[name])


def is_typed(info: onnx.TypeProto) -> bool:
    """Whether the type says what it is a type of; that of a tensor its element type too."""
    kind = info.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or info.tensor_type.elem_type != TensorProto.UNDEFINED)


def dims_of(info: onnx.TypeProto) -> tuple[Dim, ...] | None:
    """The dimensions of a tensor: a number, a name or None each; None where not even their number is told."""
    if not info.HasField("tensor_type") or not info.tensor_type.HasField("shape"):
        return None
    dims = info.tensor_type.shape.dim
    return tuple(
        [dim.dim_value or (0 if dim.HasField("dim_value") else dim.dim_param or None) for dim in dims]
    )


def constant_tensor(proto: onnx.NodeProto) -> TensorProto | None:
    """The tensor of a Constant node, whichever attribute holds it; None for value_string and value_strings."""
    for attribute in proto.attribute:
        if attribute.name == "value":
            tensor: TensorProto = attribute.t
            return tensor
        if attribute.name in ("value_float", "value_floats"):
            values = attribute.floats if attribute.name == "value_floats" else attribute.f
            return onnx.numpy_helper.from_array(np.asarray(values, np.float32))
        if attribute.name in ("value_int", "value_ints"):
            ints = attribute.ints if attribute.name == "value_ints" else attribute.i
            return onnx.numpy_helper.from_array(np.asarray(ints, np.int64))
    return None


def find_constants(graph: onnx.GraphProto, nodes: Iterable[Node]) -> dict[str, TensorProto]:
    """Initializers, and the outputs of Constant nodes that hold a tensor."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in nodes:
        if node.standard_op == "Constant" and node.outputs:
            tensor = constant_tensor(node.proto)
            if tensor is not None:
                found[node.outputs[0]] = tensor
    return found


def _tell_given(graph: onnx.GraphProto, dtypes: dict[str, int], ranks: dict[str, int]) -> None:
    """Add the types and, as far as they are declared, ranks of the inputs, in place."""
    for info in graph.input:
        if info.type.HasField("tensor_type") and is_typed(info.type):
            dtypes[info.name] = info.type.tensor_type.elem_type
            dims = dims_of(info.type)
            if dims is not None:
                ranks[info.name] = len(dims)


def _tell_sure_shapes(model: onnx.ModelProto, inferred: Shapes) -> Shapes | None:
    """Of a model that records nothing inside, and no defaults, what is inferred can be relied on."""
    if model.graph.value_info or find_defaults(model):
        return None
    return LateShapes(lambda: _keep_sure(model.graph, inferred))


def _keep_sure(graph: onnx.GraphProto, shapes: Shapes) -> Shapes:
    """The shapes without those that a node decides of which ONNX Runtime makes another than ONNX infers."""
    doubtful: set[str] = set()
    for node in graph.node:
        if _is_doubtful(node) or (doubtful and not doubtful.isdisjoint((*node.input, *captured_by(node)))):
            doubtful.update(filter(None, node.output))
    return {name: dims for name, dims in shapes.items() if name not in doubtful} if doubtful else shapes


def _is_doubtful(node: onnx.NodeProto) -> bool:
    """Whether it is a pool that rounds up, where ONNX counts windows behind the edge as well, or pads dilated windows by itself.

    Or an Attention that gives its scores out, of which ONNX infers as many columns as there are new keys, without the past.
    """
    if node.op_type == "Attention":
        return len(node.output) > 3 and len(node.input) > 4 and bool(node.input[4])
    if node.op_type not in _POOLS:
        return False
    told = {attribute.name: attribute for attribute in node.attribute}
    is_dilated = "dilations" in told and any(step != 1 for step in told["dilations"].ints)
    pads_itself = "auto_pad" in told and told["auto_pad"].s.startswith(b"SAME")
    return ("ceil_mode" in told and told["ceil_mode"].i != 0) or (is_dilated and pads_itself)


def _shapes_of(types: Mapping[str, onnx.TypeProto]) -> dict[str, tuple[Dim, ...]]:
    return {name: dims for name, info in types.items() if (dims := dims_of(info)) is not None}


def _shapes_of_initializers(model: onnx.ModelProto) -> dict[str, tuple[Dim, ...]]:
    return {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}


def _forget_shapes(skeleton: onnx.ModelProto) -> None:
    """Drop what the model records of shapes, but those of its inputs, in place."""
    del skeleton.graph.value_info[:]
    for info in skeleton.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")


def _infer_once(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """What _infer gives of a model; one that records no type inside is inferred without what it records of its outputs."""
    skeleton = _skeleton(model)
    if not model.graph.value_info:
        _forget_shapes(skeleton)
    return _infer(skeleton)


def _infer(skeleton: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The type of every tensor of the main graph, as recorded or inferred, but of large weights.

    Where a body has a name of the graph around it, ONNX's inference takes the one tensor for the other.
    """
    graph = skeleton.graph
    separate_names(graph)
    for data_prop in (True, False):
        try:
            graph = onnx.shape_inference.infer_shapes(skeleton, data_prop=data_prop).graph
            break
        except Exception:  # inference stumbles over valid models; ONNX Runtime is asked instead
            continue
    held = {
        one.name: onnx.helper.make_tensor_type_proto(one.data_type, one.dims) for one in graph.initializer
    }
    return {**held, **{info.name: info.type for info in (*graph.value_info, *graph.output, *graph.input)}}


def _skeleton(model: onnx.ModelProto, defaults: Collection[str] = ()) -> onnx.ModelProto:
    """The model without its large weights and those `defaults`, which become inputs: small enough for shape inference."""
    graph = model.graph
    skeleton = onnx.ModelProto(ir_version=max(model.ir_version, 4), opset_import=model.opset_import)
    skeleton.graph.name = graph.name or "graph"
    skeleton.graph.input.extend(graph.input)
    _declare_vectors(skeleton.graph, defaults, graph.initializer)
    skeleton.graph.output.extend(graph.output)
    skeleton.graph.value_info.extend(graph.value_info)
    given = {info.name for info in graph.input}
    for tensor in graph.initializer:
        if _is_small(tensor) and tensor.name not in defaults:
            skeleton.graph.initializer.append(tensor)
        elif tensor.name not in given:
            skeleton.graph.input.append(_value_info(tensor.name, tensor))
    kept = []
    for node in graph.node:
        value = constant_tensor(node) if node.op_type == "Constant" else None
        if value is None or _is_small(value):
            kept.append(node)
        else:
            skeleton.graph.input.append(_value_info(node.output[0], value))
    skeleton.graph.node.extend(_replace_copies(skeleton.graph, kept))
    return skeleton


def _declare_vectors(
    skeleton: onnx.GraphProto, defaults: Collection[str], initializers: Iterable[TensorProto]
) -> None:
    """Say of axes and the like that they are a vector, in place: of a Slice by axes without a shape, inference takes others."""
    vectors = {one.name for one in initializers if one.data_type == TensorProto.INT64 and len(one.dims) == 1}
    for info in skeleton.input:
        if info.name in defaults and info.name in vectors and dims_of(info.type) is None:
            info.type.tensor_type.shape.dim.add()


def _replace_copies(skeleton: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """The nodes but for an Identity of an initializer, which becomes another: inference does not see values through it.

    One whose output the graph gives stays: behind an output that is an initializer nothing would be inferred.
    """
    given = {info.name for info in (*skeleton.input, *skeleton.output)}
    held = {tensor.name: tensor for tensor in skeleton.initializer if tensor.name not in given}
    for node in nodes:
        found = held.get(node.input[0]) if node.op_type == "Identity" else None
        if found is None or node.domain not in STANDARD_DOMAINS or node.output[0] in given:
            yield node
        else:
            copy = held[node.output[0]] = skeleton.initializer.add()
            copy.CopyFrom(found)
            copy.name = node.output[0]


def _is_small(tensor: TensorProto) -> bool:
    return math.prod(tensor.dims) <= _STRIPPED_ELEMENTS and tensor.data_location != TensorProto.EXTERNAL


def _value_info(name: str, tensor: TensorProto) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
