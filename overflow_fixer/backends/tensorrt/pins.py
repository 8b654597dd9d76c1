"""Pins set on the layers of a parsed network, for weak typing."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from overflow_fixer.backends.mixed_onnx.assignment import IoTypes, computes_float
from overflow_fixer.backends.tensorrt.mapping import NetworkLayer
from overflow_fixer.errors import PlanError
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Kept

MOVEMENT = frozenset(
    {"SHUFFLE", "SLICE", "GATHER", "CONCATENATION", "SQUEEZE", "UNSQUEEZE", "SCATTER", "SELECT", "PADDING"}
)
_NEVER = frozenset(
    """CONSTANT SHAPE CAST IDENTITY FILL QUANTIZE DEQUANTIZE DYNAMIC_QUANTIZE NON_ZERO NMS ASSERTION TRIP_LIMIT
    RECURRENCE ITERATOR LOOP_OUTPUT CONDITION CONDITIONAL_INPUT CONDITIONAL_OUTPUT PLUGIN PLUGIN_V2
    PLUGIN_V3""".split()
)
_FOLDED = frozenset({"Identity", "Dropout", "Cast", "CastLike", "Reshape", "Flatten", "Squeeze", "Unsqueeze"})


@dataclass(frozen=True)
class Pinning:
    """The layers to pin, each with the label of its node, and those of pinned nodes that are not, with why."""

    layers: tuple[tuple[str, NetworkLayer], ...]
    skipped: tuple[Kept, ...]

    @property
    def has_movement(self) -> bool:
        return any(layer.kind in MOVEMENT for _, layer in self.layers)

    def without_movement(self) -> Pinning:
        """The same without the layers that only move values: the first to give up when a build fails."""
        left = tuple((label, layer) for label, layer in self.layers if layer.kind not in MOVEMENT)
        return replace(self, layers=left)


def choose_layers(
    graph: Graph, layers: Mapping[str, Sequence[NetworkLayer]], pinned: Sequence[str]
) -> Pinning:
    """Every layer of the pinned nodes that computes or moves floats.

    Raises PlanError for a pinned node that became no layer, unless TensorRT folds such a node away: one
    that reads constants alone, or hands its input on.
    """
    chosen: list[tuple[str, NetworkLayer]] = []
    skipped: list[Kept] = []
    for label in pinned:
        node = graph.by_label[label]
        if label not in layers:
            skipped.append(Kept(label, node.op_type, _why_absent(graph, node)))
        for layer in layers.get(label, ()):
            reason = why_not(layer)
            if reason is None:
                chosen.append((label, layer))
            else:
                skipped.append(Kept(label, layer.kind, f"layer {layer.name!r}: {reason}"))
    return Pinning(tuple(chosen), tuple(skipped))


def leaves_fp16(graph: Graph, pinned: Collection[str], io_types: IoTypes) -> bool:
    """Whether FP16 has a place beside the pins: in a node that computes floats and has none, or in inputs and outputs.

    Where it has not, it is not to be allowed: no pin can be set on what carries the state of a Loop, say.
    """
    free = (node for node in graph.nodes if computes_float(graph, node) and node.label not in pinned)
    return io_types == "fp16" or next(free, None) is not None


def why_not(layer: NetworkLayer) -> str | None:
    """Why a layer must not be pinned; None for one that may be."""
    if layer.kind in _NEVER:
        return f"a {layer.kind} layer takes no precision"
    if any(tensor.is_shape or not tensor.is_execution for tensor in layer.outputs):
        return "it computes with shapes"
    if not any(tensor.is_float for tensor in layer.outputs):
        return "it has no float output"
    return None


def set_pins(trt: Any, network: Any, pinning: Pinning) -> None:
    """Set the precision and every float output type of the layers to FP32; nothing is set to FP16."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for _, chosen in pinning.layers:
            layer = network.get_layer(chosen.index)
            layer.precision = trt.float32
            for slot, tensor in enumerate(chosen.outputs):
                if tensor.is_float:
                    layer.set_output_type(slot, trt.float32)


def clear_pins(network: Any, pinning: Pinning) -> None:
    """Undo `set_pins`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for _, chosen in pinning.layers:
            layer = network.get_layer(chosen.index)
            layer.reset_precision()
            for slot in range(len(chosen.outputs)):
                layer.reset_output_type(slot)


def _why_absent(graph: Graph, node: Node) -> str:
    if all(name in graph.constants for name in node.reads):
        return "TensorRT computes it while it parses: it reads constants alone"
    if node.op_type in _FOLDED:
        return "TensorRT has no layer for it: it hands its input on"
    raise PlanError(
        f"The pin on {node.label!r} ({node.op_type}) matches no layer of the network that TensorRT parsed. Expected "
        "at least one. Exclude the node with --exclude-nodes if TensorRT folds it away; else please report this "
        "with the model's operators."
    )
