"""Functions of a model are put in the place of their calls, where that leaves their operators what they are."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.model_file.opsets import MIN_OPSET


def _info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def _call_function(
    folder: Path,
    body: list[onnx.NodeProto],
    *opsets: tuple[str, int],
    imports: Sequence[tuple[str, int]] = (("", 17),),
) -> Path:
    """A model with these `imports` that calls a function which imports `opsets`."""
    own = [helper.make_opsetid(*opset) for opset in opsets]
    function = helper.make_function("local", "F", ["a"], ["b"], body, own)
    call = helper.make_node("F", ["x"], ["y"], domain="local")
    graph = helper.make_graph([call], "g", [_info("x")], [_info("y")])
    all_imports = [helper.make_opsetid(*opset) for opset in (*imports, ("local", 1), ("other", 1))]
    model = helper.make_model(graph, opset_imports=all_imports, ir_version=8, functions=[function])
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_functions_are_inlined(tmp_path: Path) -> None:
    body = [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("Neg", ["t"], ["b"])]
    graph = load_graph(_call_function(tmp_path, body, ("", 17)))
    assert [node.op_type for node in graph.nodes] == ["Relu", "Neg"]
    assert graph.is_inlined


@pytest.mark.parametrize("opset", [13, 17, 21])
def test_functions_of_another_opset_are_inlined_where_their_operators_are_the_same(
    opset: int, tmp_path: Path
) -> None:
    body = [helper.make_node("Tanh", ["a"], ["t"]), helper.make_node("Softmax", ["t"], ["b"])]
    graph = load_graph(_call_function(tmp_path, body, ("", opset)))
    assert [node.op_type for node in graph.nodes] == ["Tanh", "Softmax"]


@pytest.mark.parametrize(
    ("op", "opsets", "words"),
    [
        (
            "Softmax",
            [("", 12)],
            "imports opset 12, and the model opset 17, in which Softmax is another operator",
        ),
        ("Resize", [("", 10)], "in which Resize is another operator"),
        ("Gelu", [("", 20)], "in which Gelu is another operator"),
        ("Nothing", [("", 16)], "in which Nothing is another operator"),
        ("Relu", [("", 17), ("other", 2)], "imports other versions of operator sets than the model"),
    ],
)
def test_others_are_refused(op: str, opsets: list[tuple[str, int]], words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        load_graph(_call_function(tmp_path, [helper.make_node(op, ["a"], ["b"])], *opsets))


def test_an_operator_in_a_body_of_a_function_is_looked_at(tmp_path: Path) -> None:
    result = _info("r")
    softmax = helper.make_graph([helper.make_node("Softmax", ["a"], ["r"])], "body", [], [result])
    condition = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
    body = [condition, helper.make_node("If", ["c"], ["b"], then_branch=softmax, else_branch=softmax)]
    with pytest.raises(ModelError, match="is another operator"):
        load_graph(_call_function(tmp_path, body, ("", 12)))


@pytest.mark.parametrize("named", [(), (("", 8),)])
@pytest.mark.parametrize("inner", [13, 8])
def test_functions_bring_the_opset_of_a_model_that_uses_no_other_operator(
    tmp_path: Path, named: tuple[tuple[str, int], ...], inner: int
) -> None:
    body = [helper.make_node("Relu", ["a"], ["b"])]
    path = _call_function(tmp_path, body, ("", inner), imports=named)
    if inner < MIN_OPSET:
        with pytest.raises(ModelError, match="uses ONNX opset 8"):
            load_graph(path)
        return
    graph = load_graph(path)
    assert (graph.opset, [node.op_type for node in graph.nodes]) == (13, ["Relu"])
