"""The model with a LayerNormalization in the place of each pattern."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import onnx
from onnx import numpy_helper

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.free_names import free_prefix
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.layernorm_fusion.candidates import Fusion
from overflow_fixer.patterns.tracing import HAND_ON

OPSET = 17
"""The first with LayerNormalization."""
_IR_VERSION = 8
_PREFIX = "layer_norm_"
_PASSED_ON = HAND_ON | {"Constant"}
"""Operators that make a constant, or hand it on."""


def raise_opset(model: onnx.ModelProto, graph: Graph) -> onnx.ModelProto:
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


def write_fusions(model: onnx.ModelProto, graph: Graph, fusions: Iterable[Fusion]) -> None:
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


def _make_node(model: onnx.ModelProto, fusion: Fusion, name: str, prefix: str) -> onnx.NodeProto:
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
