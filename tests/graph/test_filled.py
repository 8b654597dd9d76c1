"""Where a constant stands in the place of some elements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, save, scalar
from onnx import TensorProto, helper

from overflow_fixer.graph.filled import is_filled

CONSTANTS = {"mask": np.array([True, False]), "far": scalar(1e4), "length": ints(2)}
ZEROS = helper.make_tensor("zeros", TensorProto.FLOAT, [1], [0.0])


@pytest.mark.parametrize(
    ("nodes", "filled"),
    [
        ([node("Where", "mask x far", "y")], [1]),
        ([node("Where", "mask far x", "y")], [2]),
        ([node("Expand", "far length", "f"), node("Where", "mask f x", "y")], [2]),
        ([node("ConstantOfShape", "length", "f", value=ZEROS), node("Where", "mask x f", "y")], [1]),
        ([node("Constant", "", "f", value_float=1.0), node("Where", "mask x f", "y")], [1]),
        ([node("Where", "mask x x", "y")], []),
        ([node("Neg", "x", "f"), node("Identity", "f", "g"), node("Where", "mask x g", "y")], []),
        ([node("Add", "x far", "y")], []),
    ],
)
def test_of_a_node(nodes: list[onnx.NodeProto], filled: list[int], tmp_path: Path) -> None:
    graph = save(make_model(nodes, {"x": [2]}, "y", CONSTANTS), tmp_path)
    last = graph.nodes[-1]
    assert [slot for slot in range(len(last.inputs)) if is_filled(graph, last, slot)] == filled
