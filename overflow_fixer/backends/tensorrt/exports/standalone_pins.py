"""Pins set on a parsed network by code that stands alone: its text is part of the exported scripts.

So it imports nothing of this package and keeps to Python 3.8. It finds the layers that `mapping` finds
and leaves out those that `pins` leaves out.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

# ---------------------------------------------------------------- exported from here

FLOATS = ("FLOAT", "HALF", "BF16")
NEVER_PINNED = frozenset(
    """CONSTANT SHAPE CAST IDENTITY FILL QUANTIZE DEQUANTIZE DYNAMIC_QUANTIZE NON_ZERO NMS ASSERTION TRIP_LIMIT
    RECURRENCE ITERATOR LOOP_OUTPUT CONDITION CONDITIONAL_INPUT CONDITIONAL_OUTPUT PLUGIN PLUGIN_V2
    PLUGIN_V3""".split()
)
METADATA = re.compile(r"\[ONNX Layer: (.*?)(?: \| .*?)?\](?=\[ONNX Layer: |[\x1e\x1f]|$)", re.DOTALL)


def pin_layers(
    trt: Any,
    network: Any,
    pins: Mapping[str, str | None],
    nodes: Mapping[str, Sequence[str]],
    constants: Collection[str],
    free: Collection[str] = (),
) -> None:
    """Keep the layers of the pinned nodes in FP32; nothing is set to FP16.

    `pins` maps each node to why TensorRT may have no layer for it, None where it must have one; layers of the
    kinds in `free` are left alone.
    """
    check_weak_typing(trt, network)
    layers = find_layers(network, nodes, constants)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for node, excuse in pins.items():
            if node not in layers and excuse is None:
                raise RuntimeError(
                    f"The pin on {node!r} matches no layer of this network: it is not the model that the plan was "
                    "made for, or it was changed before TensorRT parsed it."
                )
            for layer in filter(can_be_pinned, layers.get(node, ())):
                if layer.type.name not in free:
                    pin_layer(layer, trt.float32)


def check_weak_typing(trt: Any, network: Any) -> None:
    """Raise RuntimeError where a layer's precision cannot be set."""
    strong = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    if not hasattr(trt.ILayer, "precision") or (strong is not None and network.get_flag(strong)):
        raise RuntimeError(
            f"TensorRT {trt.__version__} takes the types of this strongly typed network from the model, so no layer "
            "can be pinned: build the typed model that `fix-fp16 --backend onnx` writes instead."
        )


def find_layers(
    network: Any, nodes: Mapping[str, Sequence[str]], constants: Collection[str]
) -> dict[str, list[Any]]:
    """The layers of each node: those that one of the signs gives to it, and the nameless ones before them."""
    producers = {tensor: node for node, outputs in nodes.items() for tensor in outputs}
    found: dict[str, list[Any]] = {}
    waiting: list[Any] = []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type.name == "CONSTANT" and layer.name in constants:
            continue
        waiting.append(layer)
        node = find_node(layer, nodes, producers)
        if node is not None:
            found.setdefault(node, []).extend(waiting)
            waiting = []
    return found


def find_node(layer: Any, nodes: Mapping[str, Sequence[str]], producers: Mapping[str, str]) -> str | None:
    """The node of a layer by its output tensors, else its metadata, else its name; None without a sign."""
    written = [producers[tensor.name] for _, tensor in list_outputs(layer) if tensor.name in producers]
    metadata = METADATA.findall(getattr(layer, "metadata", ""))
    names = [*metadata, layer.name, re.sub(r"_\d+$", "", layer.name)]
    return next(iter([*written, *(name for name in names if name in nodes)]), None)


def list_outputs(layer: Any) -> list[tuple[int, Any]]:
    """The slot and tensor of each output that the layer has."""
    outputs = [(slot, layer.get_output(slot)) for slot in range(layer.num_outputs)]
    return [(slot, tensor) for slot, tensor in outputs if tensor is not None]


def can_be_pinned(layer: Any) -> bool:
    """Whether the layer computes or moves floats, and no shapes."""
    tensors = [tensor for _, tensor in list_outputs(layer)]
    return (
        layer.type.name not in NEVER_PINNED
        and not any(tensor.is_shape_tensor or not tensor.is_execution_tensor for tensor in tensors)
        and any(tensor.dtype.name in FLOATS for tensor in tensors)
    )


def pin_layer(layer: Any, float32: Any) -> None:
    """Set the precision and every float output type of one layer."""
    layer.precision = float32
    for slot, tensor in list_outputs(layer):
        if tensor.dtype.name in FLOATS:
            layer.set_output_type(slot, float32)
