"""Which tensors are made of integers, inputs and constants by arithmetic."""

from pathlib import Path

import numpy as np
from in_memory_calibration import make_model, node, save, scalar
from onnx import TensorProto

from overflow_fixer.evidence.integers.coordinates import find_coordinates


def test_arithmetic_keeps_coordinates_and_layers_and_large_tables_do_not(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "ids", "p", to=TensorProto.FLOAT),
        node("Mul", "p scale", "angle"),
        node("Gather", "words ids", "word"),
        node("Gather", "small ids", "few"),
        node("Add", "angle x", "sum"),
        node("Softmax", "angle", "s"),
        node("Mul", "s angle", "data"),
        node("Shape", "data", "shape"),
        node("Cast", "shape", "sizes", to=TensorProto.FLOAT),
        node("Gelu", "p", "other", domain="com.microsoft"),
        node("ReduceMax", "sizes", "y"),
    ]
    constants = {
        "scale": scalar(2),
        "words": np.zeros((70000, 1), np.float32),
        "small": np.zeros((7, 1), np.float32),
    }
    model = make_model(nodes, {"ids": (TensorProto.INT64, [4]), "x": [4]}, "y", constants)
    found = find_coordinates(save(model, tmp_path))
    assert {"ids", "x", "scale", "p", "angle", "few", "sum", "shape", "sizes", "y"} <= found
    assert found.isdisjoint({"word", "s", "data", "other"})


def test_elements_that_are_put_in_place_are_some_and_those_that_are_added_up_are_none(tmp_path: Path) -> None:
    nodes = [
        node("ScatterND", "x at updates", "put"),
        node("ScatterElements", "x at updates", "put_too"),
        node("ScatterElements", "x at updates", "added", reduction="add"),
        node("ScatterND", "x at data", "of_data"),
        node("Softmax", "x", "data"),
        node("Concat", "put put_too added of_data", "y", axis=0),
    ]
    nodes.insert(0, nodes.pop(4))
    inputs = {"x": [4, 1], "updates": [4, 1], "at": (TensorProto.INT64, [4, 1])}
    found = find_coordinates(save(make_model(nodes, inputs, "y", {}, 18), tmp_path))
    assert {"put", "put_too"} <= found
    assert found.isdisjoint({"added", "of_data"})
