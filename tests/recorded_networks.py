"""The networks that TensorRT 8.6.0 parsed from the samples, as it named their layers and tensors.

What each layer reads was left out.
"""

import json
from pathlib import Path
from typing import Any

from fake_tensorrt import LayerSpec, Script, TensorSpec

from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import Finding, Pin, PrecisionPlan

_ROOT = Path(__file__).parent
_RECORDED = json.loads((_ROOT / "backends/data/networks.json").read_text(encoding="utf-8"))
NAMES = sorted(_RECORDED)


def recorded_graph(name: str) -> Graph:
    return load_graph(_ROOT.parent / "calib_data" / name / "model.onnx")


def recorded_script(name: str) -> Script:
    """What a fake TensorRT parses: the sample's network as it was recorded."""
    network = _RECORDED[name]
    return Script(
        inputs=[_tensor(*tensor) for tensor in network["inputs"]],
        layers=[_layer(*layer) for layer in network["layers"]],
        outputs=network["outputs"],
    )


def parsed_network(trt: Any) -> Any:
    """The network that a fake TensorRT gives for its script."""
    logger = trt.ILogger()
    explicit = trt.NetworkDefinitionCreationFlag.__members__.get("EXPLICIT_BATCH")
    network = trt.Builder(logger).create_network(0 if explicit is None else 1 << int(explicit))
    assert trt.OnnxParser(network, logger).parse_from_file("model.onnx")
    return network


def pinned_layers(network: Any) -> dict[str, tuple[str, dict[int, str]]]:
    """The precision and output types of each layer for which they were set."""
    found = {}
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        slots = [slot for slot in range(layer.num_outputs) if layer.output_type_is_set(slot)]
        if layer.precision_is_set or slots:
            found[layer.name] = (layer.precision.name, {s: layer.get_output_type(s).name for s in slots})
    return found


def make_plan(graph: Graph, *labels: str, reason: str = "it was seen at 1e+06") -> PrecisionPlan:
    """A plan that pins the nodes."""
    nodes = [graph.by_label[label] for label in labels]
    pins = [
        Pin(
            node.label,
            node.op_type,
            node.outputs,
            (Finding("threshold", node.label, node.outputs[0], 1e6, 1e4, reason, "0"),),
        )
        for node in nodes
    ]
    return PrecisionPlan(graph.sha256, 1e4, tuple(pins))


def _tensor(name: str, dtype: str, shape: list[int], is_shape: bool, is_execution: bool) -> TensorSpec:
    return TensorSpec(name, dtype, tuple(shape), is_shape, is_execution)


def _layer(name: str, kind: str, metadata: str, outputs: list[Any]) -> LayerSpec:
    return LayerSpec(name, kind, (), tuple(_tensor(*output) for output in outputs), metadata)
