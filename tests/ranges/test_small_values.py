"""Where the smallest magnitude is taken."""

from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from scan_cases import save_model, value_info

from overflow_fixer.ranges.small_values import find_small_valued

node = helper.make_node


def test_divisors_and_what_a_logarithm_power_or_root_reads(tmp_path: Path) -> None:
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("ReduceSum", ["e"], ["s"]),
        node("Div", ["e", "s"], ["p"]),
        node("Log", ["p"], ["l"]),
        node("Tanh", ["l"], ["t"]),
        node("Pow", ["t", "t"], ["w"]),
        node("Reciprocal", ["w"], ["r"]),
        node("Relu", ["r"], ["z"]),
        node("Sqrt", ["z"], ["y"]),
    ]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[2])], [value_info("y")])
    assert find_small_valued(graph) == {"x", "s", "p", "l", "t", "w", "z", "y"}


def test_masks_made_of_inputs_integers_and_constants(tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["tokens"], ["m"], to=TensorProto.FLOAT),
        node("Sub", ["one", "m"], ["left_out"]),
        node("Mul", ["left_out", "large"], ["mask"]),
        node("MatMul", ["x", "x"], ["scores"]),
        node("Add", ["scores", "mask"], ["y"]),
        node("Sign", ["y"], ["signs"]),
        node("Neg", ["signs"], ["turned"]),
    ]
    constants = [
        numpy_helper.from_array(np.float32(value), name) for name, value in (("one", 1), ("large", -1e9))
    ]
    inputs = [value_info("x", dims=[2, 2]), value_info("tokens", TensorProto.INT64, [2])]
    graph = save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y"), value_info("turned")], constants)
    found = find_small_valued(graph)
    assert found == {"x", "m", "left_out", "mask", "signs", "turned", "y"}


def test_what_is_zero_at_1_on_the_way_to_what_is_enlarged(tmp_path: Path) -> None:
    nodes = [
        node("Tanh", ["x"], ["p"]),
        node("Log", ["p"], ["l"]),
        node("Neg", ["l"], ["n"]),
        node("Log", ["n"], ["y"]),
        node("Acos", ["p"], ["a"]),
        node("Sin", ["a"], ["s"]),
        node("Div", ["p", "s"], ["z"]),
        node("Acosh", ["y"], ["c"]),
        node("Exp", ["c"], ["e"]),
        node("Reciprocal", ["e"], ["w"]),
    ]
    outputs = [value_info(name) for name in "zw"]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[2])], outputs)
    assert find_small_valued(graph) == {"x", "p", "l", "n", "a", "s", "z", "e", "w"}


def test_what_is_compared_with_a_tiny_number(tmp_path: Path) -> None:
    nodes = [
        node("Exp", ["x"], ["e"]),
        node("Tanh", ["e"], ["t"]),
        node("Less", ["e", "tiny"], ["b"]),
        node("Less", ["t", "one"], ["c"]),
        node("And", ["b", "c"], ["d"]),
        node("Cast", ["d"], ["y"], to=TensorProto.FLOAT),
    ]
    constants = [
        numpy_helper.from_array(np.float32(value), name) for name, value in (("one", 1), ("tiny", 1e-10))
    ]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[2])], [value_info("y")], constants)
    found = find_small_valued(graph)
    assert "e" in found
    assert "t" not in found
