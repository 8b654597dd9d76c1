"""Which TensorRT layers each ONNX node became.

TensorRT's parser names only some layers after their node: the bias addition of a Gemm, the last
shuffle of a Softmax, in 8.6 the whole of a LayerNormalization are unnamed. Four signs are asked in
turn, the surest first: the output tensor, which keeps its ONNX name; the metadata; the layer's name;
and the place, since the layers of a node stand together and end with the one that writes its output.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from overflow_fixer.graph.model import Graph

_METADATA = re.compile(r"\[ONNX Layer: (.*?)(?: \| .*?)?\](?=\[ONNX Layer: |[\x1e\x1f]|$)", re.DOTALL)
_SUFFIX = re.compile(r"_\d+$")


@dataclass(frozen=True)
class LayerTensor:
    """An output of a layer: its element type by TensorRT's name, and what it is used as."""

    name: str
    dtype: str
    is_shape: bool
    is_execution: bool

    @property
    def is_float(self) -> bool:
        return self.dtype in ("FLOAT", "HALF", "BF16")


@dataclass(frozen=True)
class NetworkLayer:
    """A layer of a parsed network, as plain values."""

    index: int
    name: str
    kind: str
    metadata: str
    outputs: tuple[LayerTensor, ...]


def read_layers(network: Any) -> tuple[NetworkLayer, ...]:
    """Every layer of an INetworkDefinition, in order; read only once the network is whole."""
    return tuple(_read_layer(index, network.get_layer(index)) for index in range(network.num_layers))


def map_layers(layers: Sequence[NetworkLayer], graph: Graph) -> Mapping[str, tuple[NetworkLayer, ...]]:
    """The layers of each node that has any, by the node's label, in order.

    Constants that are initializers belong to all of their readers, and to none here.
    """
    found: dict[str, list[NetworkLayer]] = {}
    waiting: list[NetworkLayer] = []
    for layer in layers:
        if layer.kind == "CONSTANT" and layer.name in graph.constants:
            continue
        waiting.append(layer)
        label = _label(layer, graph)
        if label is not None:
            found.setdefault(label, []).extend(waiting)
            waiting = []
    return {label: tuple(mine) for label, mine in found.items()}


def _label(layer: NetworkLayer, graph: Graph) -> str | None:
    signs = (*_by_outputs(layer, graph), *_by_metadata(layer, graph), *_by_name(layer, graph))
    return next(iter(signs), None)


def _by_outputs(layer: NetworkLayer, graph: Graph) -> Iterator[str]:
    return (graph.producers[t.name].label for t in layer.outputs if t.name in graph.producers)


def _by_metadata(layer: NetworkLayer, graph: Graph) -> Iterator[str]:
    return (name for name in parse_metadata(layer.metadata) if name in graph.by_label)


def _by_name(layer: NetworkLayer, graph: Graph) -> Iterator[str]:
    return (name for name in (layer.name, _SUFFIX.sub("", layer.name)) if name in graph.by_label)


def parse_metadata(text: str) -> tuple[str, ...]:
    """The ONNX nodes that a layer's metadata names, each once."""
    return tuple(dict.fromkeys(_METADATA.findall(text)))


def _read_layer(index: int, layer: Any) -> NetworkLayer:
    outputs = tuple(_read_tensor(layer.get_output(slot)) for slot in range(layer.num_outputs))
    return NetworkLayer(index, layer.name, layer.type.name, getattr(layer, "metadata", ""), outputs)


def _read_tensor(tensor: Any) -> LayerTensor:
    if tensor is None:  # an output left out keeps its place
        return LayerTensor("", "", False, True)
    return LayerTensor(
        tensor.name, tensor.dtype.name, bool(tensor.is_shape_tensor), bool(tensor.is_execution_tensor)
    )
