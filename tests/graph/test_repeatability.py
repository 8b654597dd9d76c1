"""What may give other values when it is run again."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.graph.repeatability import is_repeatable


def _load(folder: Path, node: onnx.NodeProto, constants: dict[str, Any]) -> Graph:
    """A model of one node that may read x (float), and flag and default (bool), or a constant of that name."""
    fed = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("flag", "default")]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 2]), *fed]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    weights = [numpy_helper.from_array(np.array(value), name) for name, value in constants.items()]
    graph = helper.make_graph([node], "g", inputs, [output], weights)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx"
    )
    return load_graph(folder / "m.onnx")


@pytest.mark.parametrize(
    ("node", "repeatable"),
    [
        (helper.make_node("Dropout", ["x"], ["y"]), True),
        (helper.make_node("Dropout", ["x", ""], ["y"]), True),
        (helper.make_node("Dropout", ["x", "", "training"], ["y"]), False),
        (helper.make_node("Dropout", ["x", "", "evaluating"], ["y"]), True),
        (helper.make_node("Dropout", ["x", "", "flag"], ["y"]), False),
        (helper.make_node("Dropout", ["x", "", "default"], ["y"]), False),
        (helper.make_node("Bernoulli", ["x"], ["y"]), False),
        (helper.make_node("BatchNormalization", ["x", *"wwww"], ["y"]), True),
        (helper.make_node("BatchNormalization", ["x", *"wwww"], ["y", "m", "v"], training_mode=1), False),
    ],
)
def test_what_may_change_from_run_to_run(tmp_path: Path, node: Any, repeatable: bool) -> None:
    constants = {"training": True, "evaluating": False, "default": False, "w": np.ones(2, np.float32)}
    assert is_repeatable(_load(tmp_path, node, constants)) == repeatable


def test_a_random_node_in_a_body_counts(tmp_path: Path) -> None:
    drawn = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
    body = helper.make_graph([helper.make_node("RandomNormalLike", ["x"], ["r"])], "b", [], [drawn])
    node = helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body)
    assert not is_repeatable(_load(tmp_path, node, {}))
