"""Sum |a| |b| of a product by itself: its node on magnitudes, in a session of its own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner.products import Product, count_groups, multiply_magnitudes
from overflow_fixer.native import probe_array
from overflow_fixer.ranges.carried import Values
from overflow_fixer.ranges.readings import read_detailed
from overflow_fixer.ranges.summaries import Summaries, summarize
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions.session import open_session, run_session
from overflow_fixer.sessions.settings import has_native_probes

_MOST_TERMS = 256
"""Of a sum in FP32; so many leave it right to 1e-5."""


class ProductSessions:
    """The sessions of a graph's products; nodes that differ in nothing but what they read share one."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._sessions: dict[bytes, Any] = {}

    def run(self, node: Node, batch: Batch) -> Array:
        """The sums, where the batch feeds input_0, input_1, ... in the places of the node's inputs.

        Those of a convolution that have more than 256 terms are added up in float64 from such of fewer: ONNX Runtime adds term
        by term, and of 64 channels of 225 equal terms the sum in FP32 is 4e-5 too small.
        """
        weights = batch.feeds["input_1"] if node.op_type == "Conv" else None
        if weights is None or math.prod(weights.shape[1:]) <= _MOST_TERMS:
            return self._run(node, batch)
        return self._add_up(node, batch)

    def _add_up(self, node: Node, batch: Batch) -> Array:
        """The sums of a convolution, of so many terms at a time; the bias is added once."""
        feeds = batch.feeds
        bias = {"input_2": feeds["input_2"]} if "input_2" in feeds else {}
        sums = None
        for x, weights in _split(feeds["input_0"], feeds["input_1"], count_groups(node)):
            part = self._run(node, Batch(batch.name, {"input_0": x, "input_1": weights, **bias}))
            sums = part.astype(np.float64) if sums is None else np.add(sums, part, out=sums)
            bias = {name: np.zeros_like(value) for name, value in bias.items()}
        with np.errstate(over="ignore"):
            return np.asarray(sums, np.float32)

    def _run(self, node: Node, batch: Batch) -> Array:
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        for field in ("name", "doc_string", "metadata_props"):
            proto.ClearField(field)
        proto.output[:] = [""]
        proto.input[:] = [f"input_{slot}" if name else "" for slot, name in enumerate(proto.input)]
        key = proto.SerializeToString()
        if key not in self._sessions:
            self._sessions[key] = open_session(_make_model(self._graph, proto), self._graph.folder)
        (sums,) = run_session(self._sessions[key], None, batch)
        return np.asarray(sums)

    def measure(self, product: Product, batch: Batch, values: Values) -> Summaries:
        """The summary, of shape (), of a batch in which the tensors that no constant is have these values."""
        read = enumerate((*product.factors, product.bias))
        feeds = {f"input_{slot}": self._read(name, batch, values) for slot, name in read if name}
        sums = self.run(product.node, Batch(batch.name, feeds))
        if not has_native_probes():
            return summarize(sums)
        return np.asarray(read_detailed(probe_array(sums)[:, None])[0])

    def _read(self, name: str, batch: Batch, values: Mapping[str, Any]) -> Any:
        if name in values:
            return values[name]
        return batch.feeds[name] if name in batch.feeds else self._graph.read_constant(name)


def _split(x: Array, weights: Array, groups: int) -> Iterator[tuple[Array, Array]]:
    """Parts of the channels of each group, and of the places of a large kernel, with at most 256 terms."""
    places = math.prod(weights.shape[2:])
    step = max(_MOST_TERMS // places, 1)
    grouped = x.reshape(x.shape[0], groups, weights.shape[1], *x.shape[2:])
    for start in range(0, weights.shape[1], step):
        taken = weights[:, start : start + step]
        channels = grouped[:, :, start : start + step]
        channels = channels.reshape(x.shape[0], groups * taken.shape[1], *x.shape[2:])
        for first in range(0, places, _MOST_TERMS):
            yield channels, _keep_places(taken, first) if places > _MOST_TERMS else taken


def _keep_places(weights: Array, first: int) -> Array:
    """The weights at 256 places of the kernel from the first on, and zeros at the others."""
    kept = np.zeros((*weights.shape[:2], math.prod(weights.shape[2:])), weights.dtype)
    places = slice(first, first + _MOST_TERMS)
    kept[..., places] = weights.reshape(kept.shape)[..., places]
    return kept.reshape(weights.shape)


def _make_model(graph: Graph, proto: onnx.NodeProto) -> onnx.ModelProto:
    """One of the node on magnitudes alone."""
    nodes = multiply_magnitudes(Product(Node.of(0, "product", proto), ()), "magnitudes_")
    names = [*filter(None, proto.input), nodes[-1].output[0]]
    infos = [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    model = onnx.ModelProto(ir_version=graph.model.ir_version)
    model.opset_import.extend(graph.model.opset_import)
    model.graph.CopyFrom(onnx.helper.make_graph(nodes, "product", infos[:-1], infos[-1:]))
    return model
