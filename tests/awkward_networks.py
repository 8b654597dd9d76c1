"""Two networks as TensorRT 8.6.0 parsed them: one of operators whose layers it leaves unnamed, one with an If.

What each layer reads was left out, and the weights are zeros here.
"""

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.backends.tensorrt.mapping import LayerTensor, NetworkLayer
from overflow_fixer.graph.model import Graph, load_graph

_RECORDED = json.loads(
    (Path(__file__).parent / "backends/data/awkward_networks.json").read_text(encoding="utf-8")
)
_FLOAT, _INT64, _BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def recorded_layers(name: str) -> tuple[NetworkLayer, ...]:
    """The layers of "awkward" or "if"."""
    return tuple(
        NetworkLayer(
            index,
            layer,
            kind,
            metadata,
            tuple(
                LayerTensor(tensor, dtype, is_shape, is_execution)
                for tensor, dtype, _, is_shape, is_execution in outputs
            ),
        )
        for index, (layer, kind, metadata, outputs) in enumerate(_RECORDED[name]["layers"])
    )


def awkward_graph(folder: Path) -> Graph:
    """LayerNormalization, Gemm with alpha, Softmax, ReduceL2, Clip, Max of three, Split, TopK, Concat."""
    nodes = [
        helper.make_node("LayerNormalization", ["x", "sc", "bi"], ["l"], name="ln"),
        helper.make_node("Gemm", ["l", "w", "bi"], ["g"], name="gemm", alpha=0.5),
        helper.make_node("Softmax", ["g"], ["s"], name="sm", axis=1),
        helper.make_node("ReduceL2", ["s"], ["r"], name="l2", axes=[1], keepdims=1),
        helper.make_node("Clip", ["r", "lo", "hi"], ["c"], name="clip"),
        helper.make_node("Max", ["c", "r", "s"], ["m"], name="max"),
        helper.make_node("Split", ["m"], ["p", "q"], name="split", axis=1),
        helper.make_node("TopK", ["p", "k"], ["tv", "ti"], name="topk"),
        helper.make_node("Concat", ["tv", "q"], ["y"], name="cat", axis=1),
    ]
    floats = {"sc": (16,), "bi": (16,), "w": (16, 16), "lo": (), "hi": ()}
    weights = [numpy_helper.from_array(np.zeros(shape, np.float32), name) for name, shape in floats.items()]
    weights.append(numpy_helper.from_array(np.array([4]), "k"))
    x = helper.make_tensor_value_info("x", _FLOAT, ["n", 16])
    outputs = [
        helper.make_tensor_value_info("y", _FLOAT, ["n", 12]),
        helper.make_tensor_value_info("ti", _INT64, ["n", 4]),
    ]
    return _save(folder, helper.make_graph(nodes, "awkward", [x], outputs, weights))


def if_graph(folder: Path) -> Graph:
    """x * x or x + x by a condition, then its square root."""
    bodies = {
        branch: helper.make_graph(
            [helper.make_node(op_type, ["x", "x"], [output], name=name)],
            branch,
            [],
            [helper.make_tensor_value_info(output, _FLOAT, [4, 6])],
        )
        for branch, op_type, name, output in (
            ("then_branch", "Mul", "then_mul", "ty"),
            ("else_branch", "Add", "else_add", "ey"),
        )
    }
    nodes = [
        helper.make_node("If", ["c"], ["z"], name="if0", **bodies),
        helper.make_node("Sqrt", ["z"], ["y"], name="sqrt"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", _FLOAT, [4, 6]),
        helper.make_tensor_value_info("c", _BOOL, []),
    ]
    y = helper.make_tensor_value_info("y", _FLOAT, [4, 6])
    return _save(folder, helper.make_graph(nodes, "if", inputs, [y]))


def _save(folder: Path, graph: onnx.GraphProto) -> Graph:
    path = folder / f"{graph.name}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return load_graph(path)
