"""Nodes that compute with sizes, or hand on constants, stay in FP32; what they feed does not."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.backends.mixed_onnx.assignment import FLOAT, FLOAT16, assign_types
from overflow_fixer.backends.mixed_onnx.derivation import find_shape_nodes, find_whole_constants
from overflow_fixer.graph import Graph, load_graph


def _load(folder: Path, nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], output: str) -> Graph:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "m"])]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return load_graph(folder / "model.onnx")


def _resizing(folder: Path) -> Graph:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Shape", ["r"], ["s"], name="shape"),
        helper.make_node("Cast", ["s"], ["sf"], name="to_float", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["sf", "two"], ["sf2"], name="double"),
        helper.make_node("Cast", ["sf2"], ["s2"], name="to_int", to=TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["s2"], ["zeros"], name="fill"),
        helper.make_node("Tile", ["r", "twice"], ["t"], name="tile"),
        helper.make_node("Add", ["t", "zeros"], ["y"], name="add"),
    ]
    return _load(folder, nodes, {"two": np.float32([2, 1]), "twice": np.int64([2, 1])}, "y")


def test_what_computes_with_sizes_stays_in_fp32(tmp_path: Path) -> None:
    graph = _resizing(tmp_path)
    assert find_shape_nodes(graph) == {"to_float", "double", "to_int"}
    found = assign_types(graph, ())
    assert (found.stored["sf"], found.stored["sf2"]) == (FLOAT, FLOAT)
    assert {found.stored[name] for name in ("r", "zeros", "t", "y")} == {FLOAT16}
    assert {kept.node for kept in found.kept} == {"to_float", "double"}


def _sharing(folder: Path) -> Graph:
    nodes = [
        helper.make_node("Identity", ["w"], ["same"], name="share"),
        helper.make_node("Transpose", ["same"], ["turned"], name="turn"),
        helper.make_node("MatMul", ["x", "turned"], ["a"], name="first"),
        helper.make_node("Identity", ["w"], ["other"], name="share_again"),
        helper.make_node("MatMul", ["a", "other"], ["y"], name="second"),
    ]
    return _load(folder, nodes, {"w": np.eye(4, dtype=np.float32)}, "y")


def test_a_weight_handed_on_to_a_pinned_node_is_not_rounded_on_its_way(tmp_path: Path) -> None:
    graph = _sharing(tmp_path)
    assert find_whole_constants(graph, lambda node: node.label == "first") == {"share", "turn"}
    found = assign_types(graph, {"first"})
    assert (found.stored["same"], found.stored["turned"], found.stored["other"]) == (FLOAT, FLOAT, FLOAT16)


def test_with_nothing_in_fp32_every_weight_is_rounded(tmp_path: Path) -> None:
    assert find_whole_constants(_sharing(tmp_path), lambda node: False) == frozenset()
    assert assign_types(_sharing(tmp_path), ()).kept == ()
