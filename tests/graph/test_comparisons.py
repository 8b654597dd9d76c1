"""What is compared with zero or a tiny number, and of which values FP16 decides otherwise."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import floats, make_model, node, save, scalar
from onnx import TensorProto

from overflow_fixer.graph.comparisons import find_tiny_comparisons

LARGEST = 2.0**-18
BELOW = float(np.nextafter(np.float32(LARGEST), np.float32(0)))
OUTPUT = {"y": TensorProto.BOOL}


@pytest.mark.parametrize(
    ("constant", "number"),
    [
        (scalar(0), 0),
        (scalar(BELOW), BELOW),
        (scalar(-BELOW), -BELOW),
        (floats(0, 0, 0), 0),
        (scalar(LARGEST), None),
        (floats(0, 0, 1e-12), None),
        (floats(), None),
        (scalar(math.nan), None),
        (scalar(math.inf), None),
    ],
)
@pytest.mark.parametrize("op", ["Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Equal"])
def test_of_one_tiny_number(op: str, constant: np.ndarray, number: float | None, tmp_path: Path) -> None:
    for slot, inputs in enumerate(("x c", "c x")):
        model = make_model([node(op, inputs, "y")], {"x": [3]}, "y", {"c": constant}, output_types=OUTPUT)
        found = [one[1:] for one in find_tiny_comparisons(save(model, tmp_path))]
        assert found == ([] if number is None else [(slot, number)])


def test_a_sign_and_a_truth_value_are_of_zero_and_integers_are_none(tmp_path: Path) -> None:
    nodes = [
        node("Sign", "x", "s"),
        node("Cast", "s", "y", to=TensorProto.BOOL),
        node("Cast", "s", "z", to=TensorProto.INT32),
        node("Sign", "n", "w"),
    ]
    kinds = {"y": TensorProto.BOOL, "z": TensorProto.INT32, "w": TensorProto.INT64}
    inputs = {"x": [3], "n": (TensorProto.INT64, [3])}
    graph = save(make_model(nodes, inputs, "y z w", output_types=kinds), tmp_path)
    assert [(one.node.label, one.number) for one in find_tiny_comparisons(graph)] == [
        ("Sign_s", 0),
        ("Cast_y", 0),
    ]


@pytest.mark.parametrize(
    ("op", "number", "value", "is_otherwise"),
    [
        ("Less", 1e-10, 1e-12, True),
        ("Less", 1e-10, 0, True),
        ("Less", 1e-10, -1e-12, True),
        ("Less", 1e-10, -1, False),
        ("LessOrEqual", 1e-10, 0, False),
        ("LessOrEqual", 1e-10, 2**-25, True),
        ("LessOrEqual", 1e-10, 2**-24, False),
        ("Greater", 0, 2**-25, True),
        ("Greater", 0, 2**-24, False),
        ("Greater", 0, -1e-12, False),
        ("GreaterOrEqual", 0, -1e-12, True),
        ("Equal", 0, 1e-12, True),
        ("Equal", 0, math.nan, False),
        ("Equal", 0, math.inf, False),
    ],
)
def test_of_which_values_fp16_decides_otherwise(
    op: str, number: float, value: float, is_otherwise: bool, tmp_path: Path
) -> None:
    model = make_model([node(op, "x c", "y")], {"x": []}, "y", {"c": scalar(number)}, output_types=OUTPUT)
    (found,) = find_tiny_comparisons(save(model, tmp_path))
    assert found.is_otherwise_in_fp16(value) == is_otherwise
