"""A small network for a fake TensorRT, the model that it came from, and engines by what they tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fake_tensorrt import DISOBEYED, IoSpec, LayerSpec, Plan, Refusal, Script, TensorSpec
from typed_models import write_model

from overflow_fixer.graph.model import Graph, load_graph

_MODEL = """g (float[N,4] x) => (float[N,4] y, int64[N,4] i)
<float[4] w = {1, 2, 3, 4}, int64[1] k = {4}>
{ [square] s = Mul(x, x) [softmax] p = Softmax <axis = 1> (s) [add] q = Add(p, w) [topk] y, i = TopK(q, k) }"""
_IO = (
    IoSpec("x", "INPUT", shape=(-1, 4), profile=((1, 4), (2, 4), (8, 4))),
    IoSpec("y", "OUTPUT", shape=(-1, 4)),
    IoSpec("i", "OUTPUT", "INT32", (-1, 4)),
)
SOFTMAX_SHUFFLE = "(Unnamed Layer* 2) [Shuffle]"


def small_graph(folder: Path) -> Graph:
    """x * x, a softmax, plus a constant, then the largest four of each row with their places."""
    return load_graph(write_model(folder, _MODEL))


def small_script(*outcomes: Plan | Refusal, **changes: Any) -> Script:
    """The network of `small_graph` as 8.6 parses it, and what its builds come to."""
    shape = (-1, 4)
    layers = [
        LayerSpec(
            "square", "ELEMENTWISE", ("x", "x"), (TensorSpec("s", shape=shape),), "[ONNX Layer: square]"
        ),
        LayerSpec("softmax", "SOFTMAX", ("s",), (TensorSpec("u1", shape=shape),), "[ONNX Layer: softmax]"),
        LayerSpec(SOFTMAX_SHUFFLE, "SHUFFLE", ("u1",), (TensorSpec("p", shape=shape),)),
        LayerSpec("w", "CONSTANT", (), (TensorSpec("u3", shape=(4,)),)),
        LayerSpec("(Unnamed Layer* 4) [Shuffle]", "SHUFFLE", ("u3",), (TensorSpec("u4"),)),
        LayerSpec("add", "ELEMENTWISE", ("p", "u4"), (TensorSpec("q", shape=shape),), "[ONNX Layer: add]"),
        LayerSpec(
            "topk",
            "TOPK",
            ("q",),
            (TensorSpec("y", shape=shape), TensorSpec("i", "INT32", shape)),
            "[ONNX Layer: topk]",
        ),
    ]
    inputs = changes.pop("inputs", [TensorSpec("x", shape=shape)])
    return Script(inputs=inputs, layers=layers, outputs=["y", "i"], outcomes=list(outcomes), **changes)


def engine(*layers: tuple[str, str], content: bytes = b"engine", warnings: tuple[str, ...] = ()) -> Plan:
    """An engine of layers (fused name, "FP32" or "FP16" at every border)."""
    told = {
        "Layers": [
            {
                "Name": name,
                "LayerType": "Reformat"
                if "Reformatting" in name
                else "Myelin"
                if "{" in name
                else "PointWiseV2",
                "Inputs": [{"Name": "in", "Format/Datatype": f"Row major linear {kind}"}],
                "Outputs": [{"Name": "out", "Format/Datatype": f"Row major linear {kind}"}],
            }
            for name, kind in layers
        ]
    }
    return Plan(content, told, _IO, warnings)


def disobeyed(layer: str) -> Refusal:
    """No implementation of a layer obeys its pin."""
    return Refusal((DISOBEYED.format(layer=layer),))
