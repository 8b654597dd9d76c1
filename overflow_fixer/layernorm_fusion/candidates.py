"""Which LayerNorms that are written out are one to the letter, and what a node for each would read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.patterns.layer_norm import LayerNorm, match_layer_norms
from overflow_fixer.patterns.tracing import origin
from overflow_fixer.records import Array


@dataclass(frozen=True)
class Parameter:
    """A constant of the model by its name, or, where that has another shape, its value."""

    name: str
    value: Array | None = None


@dataclass(frozen=True)
class Fusion:
    """One LayerNorm as a node: its parameters have the shape of what is normalised."""

    norm: LayerNorm
    axis: int
    scale: Parameter
    bias: Parameter | None


def choose_fusions(graph: Graph) -> tuple[list[Fusion], dict[str, str]]:
    """What can be fused, and of the others the reason."""
    fusions: list[Fusion] = []
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


def _shape_parameters(graph: Graph, norm: LayerNorm) -> Fusion | str:
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
    return Fusion(norm, axis, scale or Parameter("", np.ones(dims, np.float32)), bias)


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


def _read_parameter(graph: Graph, names: tuple[str, ...], dims: tuple[int, ...]) -> Parameter | None:
    """The constant in this shape; None where there is none, or it does not fit."""
    if not names or tuple(graph.constants[names[0]].dims) == dims:
        return Parameter(names[0]) if names else None
    value = graph.read_constant(names[0])
    extra = max(value.ndim - len(dims), 0)
    if math.prod(value.shape[:extra]) != 1:
        return None
    try:
        return Parameter("", np.array(np.broadcast_to(value.reshape(value.shape[extra:]), dims)))
    except ValueError:
        return None
