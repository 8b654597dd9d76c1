"""LayerNorms that an exporter wrote out, fused into LayerNormalization again, in a model that is proved equal.

TensorRT's weak typing computes a LayerNormalization in FP32 inside by itself; written out, each of its nodes is one that
may overflow.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from overflow_fixer.backends.mixed_onnx.rewrite import TypedModel
from overflow_fixer.backends.mixed_onnx.weights import write_model
from overflow_fixer.errors import CalibrationError, ModelError, OutputError
from overflow_fixer.files import find_replaced, name_data, replace_files
from overflow_fixer.graph.copies import copy_model
from overflow_fixer.graph.model import Graph, free_prefix
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.layer_norm import LayerNorm, match_layer_norms
from overflow_fixer.patterns.tracing import HAND_ON, origin
from overflow_fixer.records import Array, Batch, FusedModel
from overflow_fixer.sessions.session import SessionRunner, open_session
from overflow_fixer.verification.comparison import open_reference

OPSET = 17
"""The first with LayerNormalization."""
MAX_RELATIVE_ERROR = 1e-5
_IR_VERSION = 8
_PREFIX = "layer_norm_"
_PASSED_ON = HAND_ON | {"Constant"}
"""Operators that make a constant, or hand it on."""


@dataclass(frozen=True)
class _Parameter:
    """A constant of the model by its name, or, where that has another shape, its value."""

    name: str
    value: Array | None = None


@dataclass(frozen=True)
class _Fusion:
    """One LayerNorm as a node: its parameters have the shape of what is normalised."""

    norm: LayerNorm
    axis: int
    scale: _Parameter
    bias: _Parameter | None


def fuse_layernorms(graph: Graph, path: Path, batches: Iterable[Batch]) -> FusedModel:
    """Write the model to `path` with each LayerNorm that is written out as one LayerNormalization node.

    Fused is what is a LayerNorm to the letter: FP32, over the last axes, an epsilon added to a variance that is the mean
    of (x - mean)^2, a constant scale and bias at most (handed on by Identity or not), nothing inside read from outside.
    The opset is raised to 17 where it is lower. What was written is run against the original in FP32, optimisation off,
    on every batch: each output has NaN and infinities in the same places and differs elsewhere by at most 1e-5 of its
    largest magnitude; one that is no float is equal. Only then does it appear at `path`, its weights in `<name>.data` where the original's lie outside
    or are too large. Raises ModelError when nothing can be fused, the opset cannot be raised or an output differs,
    CalibrationError when there is no batch, OutputError when it cannot be written or is the model itself.
    """
    _check_target(graph, path)
    new = [folder for folder in path.parents if not os.path.exists(folder)]
    try:
        return _refuse(graph, path, batches)
    except BaseException:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()
        raise


def _refuse(graph: Graph, path: Path, batches: Iterable[Batch]) -> FusedModel:
    fusions, left = _choose(graph)
    if not fusions:
        raise ModelError(_nothing_to_fuse(graph, left))
    model = _raise_opset(copy_model(graph), graph)
    _fuse(model, graph, fusions)
    with replace_files(path) as staged:
        files = write_model(graph, TypedModel(model, {}, 0), {}, staged)
        error = _prove(graph, staged, batches)
    outputs = tuple(fusion.norm.region.output for fusion in fusions)
    written = tuple(path.with_name(file.name) for file in files)
    return FusedModel(graph.path, graph.sha256, written, outputs, left, error)


def _check_target(graph: Graph, path: Path) -> None:
    own = find_replaced(graph.files, (path, name_data(path)))
    if own is not None:
        raise OutputError(
            f"{own.resolve()} belongs to the model that is to be fused. Expected another file, since the original is "
            "what the fused model is held against. Name another one."
        )


def _choose(graph: Graph) -> tuple[list[_Fusion], dict[str, str]]:
    """What can be fused, and of the others the reason."""
    fusions: list[_Fusion] = []
    left: dict[str, str] = {}
    for found in match_layer_norms(graph):
        norm = _name_constants(graph, found)
        judged = _find_obstacle(graph, norm) or _shape_parameters(graph, norm)
        if isinstance(judged, str):
            left[norm.region.output] = judged
        else:
            fusions.append(judged)
    return fusions, left


def _name_constants(graph: Graph, norm: LayerNorm) -> LayerNorm:
    """The norm with its scales and biases by the constants that are handed on to it: exporters share equal ones through Identity."""
    scales, biases = (
        tuple(_find_constant(graph, name) for name in names) for names in (norm.scales, norm.biases)
    )
    return replace(norm, scales=scales, biases=biases)


def _find_constant(graph: Graph, tensor: str) -> str:
    """The constant of FP32 whose values a tensor of the same shape holds; the tensor itself where there is none."""
    found = origin(graph, tensor)
    constant = graph.constants.get(found)
    if constant is None or constant.data_type != TensorProto.FLOAT:
        return tensor
    return found if graph.sure_shapes.get(tensor) == tuple(constant.dims) else tensor


def _find_obstacle(graph: Graph, norm: LayerNorm) -> str | None:
    """Why the pattern is no LayerNormalization to the letter."""
    inside = [name for label in norm.region.nodes for name in graph.by_label[label].writes]
    if norm.spread:
        return "its variance is written E[x^2] - E[x]^2, a form that is not fused"
    if norm.epsilon is None:
        return "more than an epsilon is done to its variance"
    if len(norm.scales) > 1 or len(norm.biases) > 1:
        return "it has more than one scale or bias"
    if any(name not in graph.constants for name in (*norm.scales, *norm.biases)):
        return "its scale or bias is computed by the model"
    if any(graph.dtypes.get(name) != TensorProto.FLOAT for name in (norm.region.source, *inside)):
        return "it is not computed in FP32 throughout"
    leaking = next(_leaking(graph, norm, inside), None)
    return None if leaking is None else f"{leaking!r}, inside it, is read by something else"


def _leaking(graph: Graph, norm: LayerNorm, inside: Iterable[str]) -> Iterator[str]:
    """The tensors inside that something outside reads."""
    own = set(norm.region.nodes)
    for name in inside:
        readers = {node.label for node in graph.consumers.get(name, ())}
        if name != norm.region.output and (name in graph.outputs or not readers <= own):
            yield name


def _shape_parameters(graph: Graph, norm: LayerNorm) -> _Fusion | str:
    """The axis, and scale and bias in the shape of what is normalised; the reason where that cannot be told."""
    shape = graph.sure_shapes.get(norm.region.source)
    axis = _find_first_axis(norm.axes, None if shape is None else len(shape))
    if axis is None:
        return "its axes are not the last ones, or not known"
    dims = _find_dims(graph, norm, shape, axis)
    if dims is None:
        return "the size of what it normalises is not known"
    scale = _read_parameter(graph, norm.scales, dims)
    bias = _read_parameter(graph, norm.biases, dims)
    if (norm.scales and scale is None) or (norm.biases and bias is None):
        return "its scale or bias has another shape than what it normalises"
    return _Fusion(norm, axis, scale or _Parameter("", np.ones(dims, np.float32)), bias)


def _find_first_axis(axes: tuple[int, ...] | None, rank: int | None) -> int | None:
    """The first of the last axes, counted from the end; None where they are others, or not known."""
    if axes is None or (rank is None and (not axes or axes[0] >= 0)):
        return None
    counted = sorted(axis - (rank or 0) if axis >= 0 else axis for axis in axes or range(rank or 0))
    return counted[0] if counted and counted == list(range(-len(counted), 0)) else None


def _find_dims(
    graph: Graph, norm: LayerNorm, shape: Sequence[int | str | None] | None, axis: int
) -> tuple[int, ...] | None:
    """The dimensions that are normalised: as inferred, or else as the scale has them."""
    dims = tuple(dim for dim in (shape or ())[axis:] if isinstance(dim, int))
    if len(dims) == -axis:
        return dims
    scale = tuple(graph.constants[norm.scales[0]].dims) if norm.scales else ()
    return scale if len(scale) == -axis and 1 not in scale else None


def _read_parameter(graph: Graph, names: tuple[str, ...], dims: tuple[int, ...]) -> _Parameter | None:
    """The constant in this shape; None where there is none, or it does not fit."""
    if not names or tuple(graph.constants[names[0]].dims) == dims:
        return _Parameter(names[0]) if names else None
    value = graph.read_constant(names[0])
    assert value is not None
    extra = max(value.ndim - len(dims), 0)
    if math.prod(value.shape[:extra]) != 1:
        return None
    try:
        return _Parameter("", np.array(np.broadcast_to(value.reshape(value.shape[extra:]), dims)))
    except ValueError:
        return None


def _nothing_to_fuse(graph: Graph, left: Mapping[str, str]) -> str:
    found = "no LayerNorm that is written out as several nodes"
    if left:
        output, reason = next(iter(left.items()))
        found = f"LayerNorms that are written out ({len(left)}), but none that can be fused: of {output!r}, {reason}"
    return f"{graph.path} has {found}. Expected at least one to fuse into LayerNormalization. Leave --refuse-layernorm out."


def _raise_opset(model: onnx.ModelProto, graph: Graph) -> onnx.ModelProto:
    """The model in an opset with LayerNormalization; as it is where it has one."""
    model.ir_version = max(model.ir_version, _IR_VERSION)
    if graph.opset >= OPSET:
        return model
    try:
        raised: onnx.ModelProto = onnx.version_converter.convert_version(model, OPSET)
    except Exception as error:  # the converter raises bare RuntimeErrors
        raise ModelError(
            f"{graph.path} uses ONNX opset {graph.opset}, and onnx.version_converter cannot raise it: "
            f"{str(error).strip().splitlines()[0]}. Expected opset {OPSET} or newer, the first with LayerNormalization. "
            f"Export it with opset {OPSET}, or leave --refuse-layernorm out."
        ) from error
    del raised.graph.value_info[:]
    return raised


def _fuse(model: onnx.ModelProto, graph: Graph, fusions: Iterable[_Fusion]) -> None:
    """Put one node in the place of each pattern's last, in place; constants that nothing reads any more go too."""
    prefix = free_prefix(graph, _PREFIX)
    fusion_of = {fusion.norm.region.output: fusion for fusion in fusions}
    labels = {label for fusion in fusion_of.values() for label in fusion.norm.region.nodes}
    gone = {name for label in labels for name in graph.by_label[label].writes}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    for node in nodes:
        output = node.output[0] if node.output else ""
        if output in fusion_of:
            model.graph.node.append(_make_node(model, fusion_of[output], node.name, prefix))
        elif output not in gone:
            model.graph.node.append(node)
    _keep(model.graph.value_info, lambda info: info.name not in gone)
    _drop_unread(model.graph, {name for label in labels for name in graph.by_label[label].inputs})


def _make_node(model: onnx.ModelProto, fusion: _Fusion, name: str, prefix: str) -> onnx.NodeProto:
    region = fusion.norm.region
    inputs = [region.source]
    for kind, parameter in (("scale", fusion.scale), ("bias", fusion.bias)):
        if parameter is not None and parameter.value is not None:
            inputs.append(f"{prefix}{kind}_of_{region.output}")
            model.graph.initializer.append(numpy_helper.from_array(parameter.value, inputs[-1]))
        elif parameter is not None:
            inputs.append(parameter.name)
    return onnx.helper.make_node(
        "LayerNormalization", inputs, [region.output], name, axis=fusion.axis, epsilon=fusion.norm.epsilon
    )


def _drop_unread(graph: onnx.GraphProto, candidates: set[str]) -> None:
    """Remove the constants among `candidates`, and what hands them on, that nothing reads, in place."""
    kept = {info.name for info in (*graph.input, *graph.output)}
    left: list[onnx.NodeProto] = []
    for node in reversed(graph.node):  # what reads comes before what is read
        seen = Node.of(0, "", node)
        if seen.standard_op in _PASSED_ON and candidates.difference(kept).issuperset(node.output):
            candidates = candidates.union(node.input)
        else:
            left.append(node)
            kept.update(seen.reads)
    del graph.node[:]
    graph.node.extend(reversed(left))
    _keep(graph.initializer, lambda tensor: tensor.name not in candidates - kept)


def _keep(entries: Any, wanted: Callable[[Any], bool]) -> None:
    """Leave those of a protobuf list that are wanted, in place."""
    kept = [entry for entry in entries if wanted(entry)]
    del entries[:]
    entries.extend(kept)


def _prove(graph: Graph, path: Path, batches: Iterable[Batch]) -> float:
    """The largest relative error of the model at `path`. Raises ModelError where it is not equal."""
    reference, candidate = open_reference(graph), SessionRunner(open_session(path, path.parent))
    worst: float | None = None
    for batch in batches:
        expected, found = reference.run(batch), candidate.run(batch)
        errors = {name: _relative_error(expected[name], found[name]) for name in reference.output_names}
        wrong = next((name for name, error in errors.items() if not error <= MAX_RELATIVE_ERROR), None)
        if wrong is not None:
            raise ModelError(_not_equal(graph, wrong, batch, errors[wrong]))
        worst = max(worst or 0.0, *errors.values())
    if worst is None:
        raise CalibrationError(
            "There was no batch to prove the fused model on. Expected at least one: without data nothing is proved. "
            "Check the calibration data."
        )
    return worst


def _not_equal(graph: Graph, name: str, batch: Batch, error: float) -> str:
    what = (
        f"differs by {error:.3g} of its largest magnitude"
        if math.isfinite(error)
        else "has another shape or type, NaN or infinities in other places, or other integers"
    )
    return (
        f"{graph.path} with its LayerNorms fused is not equal to itself: output {name!r} {what} in {batch.name}. Expected "
        f"at most {MAX_RELATIVE_ERROR:g}, NaN and infinities in the same places. Nothing was written; leave "
        "--refuse-layernorm out."
    )


def _relative_error(expected: Any, found: Any) -> float:
    """max |difference| / max |expected| over what is finite; inf where the outputs cannot be compared.

    NaN and infinities are equal where the other side has the same. Values that are not floats are equal or not.
    """
    if isinstance(expected, list):
        pairs = zip(expected, found, strict=False)
        return (
            max((_relative_error(*pair) for pair in pairs), default=0.0)
            if len(expected) == len(found)
            else math.inf
        )
    if expected.shape != found.shape or expected.dtype != found.dtype:
        return math.inf
    if expected.dtype.kind != "f":
        return 0.0 if np.array_equal(expected, found) else math.inf
    finite = np.isfinite(expected)
    if not np.array_equal(finite, np.isfinite(found)):
        return math.inf
    if not np.array_equal(expected[~finite], found[~finite], equal_nan=True):
        return math.inf
    reference, candidate = expected[finite].astype(np.float64), found[finite].astype(np.float64)
    largest = float(np.abs(reference).max(initial=0.0))
    difference = float(np.abs(reference - candidate).max(initial=0.0))
    return difference / largest if largest else (math.inf if difference else 0.0)
