"""Names that nothing in a model has."""

from pathlib import Path

import onnx
import pytest
from onnx import helper

from overflow_fixer.graph.free_names import free_prefix
from overflow_fixer.graph.model import load_graph


@pytest.mark.parametrize("place", ["input", "initializer", "output", "value_info", "node", "in a body"])
def test_a_prefix_is_free_where_no_name_begins_with_it(place: str, tmp_path: Path) -> None:
    """Underscores are put before it until it is; a name that holds it further on does not matter."""

    def name(where: str) -> str:
        return "_own_x" if where == place else f"{where}_own_x"

    body = helper.make_graph(
        [helper.make_node("Neg", [name("input")], [name("in a body")])],
        "b",
        [],
        [helper.make_tensor_value_info(name("in a body"), 1, None)],
    )
    nodes = [
        helper.make_node("Add", [name("input"), name("initializer")], [name("output")], name=name("node"))
    ]
    if place == "in a body":
        nodes.append(helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=body))
    inputs = [
        helper.make_tensor_value_info(name("input"), 1, None),
        helper.make_tensor_value_info("c", 9, None),
    ]
    outputs = [helper.make_tensor_value_info(name("output"), 1, None)]
    weights = [helper.make_tensor(name("initializer"), 1, [1], [1.0])]
    proto = helper.make_graph(nodes, "g", inputs, outputs, weights)
    proto.value_info.append(helper.make_tensor_value_info(name("value_info"), 1, None))
    model = helper.make_model(proto, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    assert free_prefix(graph, "_own_") == "__own_"
    assert free_prefix(graph, "own_") == "own_"
    assert free_prefix(graph, "other_") == "other_"
