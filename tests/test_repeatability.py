"""What may give other values when it is run again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from scan_cases import save_model, value_info

from overflow_fixer.repeatability import is_repeatable


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
    switches = [
        numpy_helper.from_array(np.array(value), name)
        for name, value in (("training", True), ("evaluating", False), ("default", False))
    ]
    weights = [numpy_helper.from_array(np.ones(2, np.float32), "w"), *switches]
    fed = [value_info(name, TensorProto.BOOL, []) for name in ("flag", "default")]
    inputs = [value_info("x", dims=[3, 2]), *fed]
    graph = save_model(tmp_path / "m.onnx", [node], inputs, [value_info("y")], weights)
    assert is_repeatable(graph) == repeatable


def test_a_random_node_in_a_body_counts(tmp_path: Path) -> None:
    body = helper.make_graph([helper.make_node("RandomNormalLike", ["x"], ["r"])], "b", [], [value_info("r")])
    nodes = [helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=body)]
    inputs = [value_info("x", dims=[2]), value_info("flag", TensorProto.BOOL, [])]
    assert not is_repeatable(save_model(tmp_path / "m.onnx", nodes, inputs, [value_info("y")]))
