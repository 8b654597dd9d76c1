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
