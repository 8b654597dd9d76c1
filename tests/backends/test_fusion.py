"""What a pin reaches over: what TensorRT will fuse with the pinned node, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from recorded_networks import recorded_graph

from overflow_fixer.backends.tensorrt.fusion import extend_over_fusions
from overflow_fixer.graph.model import Graph, load_graph

_WEIGHTS = {"w": (4, 4, 1, 1), "m": (4, 4), "c": (1, 4, 1, 1), "scale": (4,), "mean": (4,), "var": (4,)}


def _graph(folder: Path, chain: list[tuple[str, str, list[str]]], outputs: list[str]) -> Graph:
    """Nodes (op type, name and output, inputs) over an image x [1, 4, 8, 8]."""
    nodes = [helper.make_node(op_type, inputs, [name], name=name) for op_type, name, inputs in chain]
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in _WEIGHTS.items()]
    shape = ["n", 4, 8, 8]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", *outputs)]
    graph = helper.make_graph(nodes, "fusion", infos[:1], infos[1:], weights)
    path = folder / "fusion.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return load_graph(path)


CONV = ("Conv", "conv", ["x", "w"])
BN = ("BatchNormalization", "bn", ["conv", "scale", "mean", "mean", "var"])


@pytest.mark.parametrize(
    ("chain", "followers"),
    [
        ([CONV, ("Relu", "relu", ["conv"])], ["relu"]),
        ([CONV, BN, ("Add", "add", ["bn", "c"]), ("Sigmoid", "act", ["add"])], ["bn", "add", "act"]),
        ([CONV, BN, ("Relu", "act", ["bn"])], ["bn", "act"]),
        ([CONV, ("Add", "add", ["c", "conv"]), ("Tanh", "act", ["add"])], ["add", "act"]),
        ([("ConvTranspose", "up", ["x", "w"]), ("LeakyRelu", "act", ["up"])], ["act"]),
        ([("MatMul", "product", ["x", "x"]), ("Add", "add", ["product", "c"])], ["add"]),
        ([CONV, ("Relu", "relu", ["conv"]), ("Add", "late", ["relu", "c"])], ["relu"]),
        ([CONV, ("Add", "residual", ["conv", "x"]), ("Relu", "act", ["residual"])], []),
        ([CONV, ("Softmax", "softmax", ["conv"])], []),
        ([CONV, ("Mul", "mul", ["conv", "c"])], []),
        ([("Mul", "conv", ["x", "c"]), ("Relu", "relu", ["conv"])], []),
    ],
)
def test_a_pin_reaches_over_what_is_fused(
    tmp_path: Path, chain: list[tuple[str, str, list[str]]], followers: list[str]
) -> None:
    graph = _graph(tmp_path, chain, [chain[-1][1]])
    anchor = chain[0][1]
    assert extend_over_fusions(graph, [anchor]) == dict.fromkeys(followers, anchor)


def test_what_another_node_reads_is_not_fused(tmp_path: Path) -> None:
    chain = [CONV, ("Relu", "relu", ["conv"]), ("Add", "sum", ["conv", "relu"])]
    assert extend_over_fusions(_graph(tmp_path, chain, ["sum"]), ["conv"]) == {}


def test_an_output_of_the_model_is_not_fused(tmp_path: Path) -> None:
    chain = [CONV, ("Relu", "relu", ["conv"])]
    assert extend_over_fusions(_graph(tmp_path, chain, ["conv", "relu"]), ["conv"]) == {}


def test_what_is_pinned_already_is_not_told_again(tmp_path: Path) -> None:
    chain = [CONV, BN, ("Relu", "act", ["bn"])]
    assert extend_over_fusions(_graph(tmp_path, chain, ["act"]), ["conv", "bn"]) == {"act": "conv"}


def test_an_unpinned_product_pulls_nothing(tmp_path: Path) -> None:
    graph = _graph(tmp_path, [CONV, ("Relu", "relu", ["conv"])], ["relu"])
    assert extend_over_fusions(graph, ["relu"]) == {}


def test_the_sample_whose_pinned_convolution_once_ran_in_fp16() -> None:
    found = extend_over_fusions(recorded_graph("conv_chain"), ["/conv7/Conv"])
    assert found == {"/relu7/Relu": "/conv7/Conv"}
