"""Tensors that are asked for come out, with what they need, and their types are ONNX Runtime's own word."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.errors import ModelError
from overflow_fixer.records import Batch
from overflow_fixer.sessions.marking import infer_types, keep_outputs, mark_outputs
from overflow_fixer.sessions.providers import PLUGIN_DOMAIN, find_lack
from overflow_fixer.sessions.session import (
    SessionRunner,
    open_session,
    run_session,
)


def _model(elem_type: int = TensorProto.FLOAT) -> onnx.ModelProto:
    nodes = [helper.make_node("Neg", ["x"], ["t"]), helper.make_node("Abs", ["t"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, elem_type, [None]) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_marked_tensors_come_out(tmp_path: Path) -> None:
    model = _model()
    mark_outputs(model, ["t", "y"])
    runner = SessionRunner(open_session(model, tmp_path))
    assert runner.output_names == ("y", "t")
    found = runner.run(Batch("b", {"x": np.float32([1, -2])}))
    assert found["t"].tolist() == [-1, 2]


def test_onnx_runtime_tells_types(tmp_path: Path) -> None:
    assert infer_types(_model(TensorProto.DOUBLE), tmp_path, ["t"]) == {"t": TensorProto.DOUBLE}


def test_an_output_and_an_input_left_out_do_not_need_each_other() -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p", ""], kernel_shape=[1]),
        helper.make_node("Clip", ["x", "", "top"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [], [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph)
    keep_outputs(model, ["y"])
    assert [one.op_type for one in model.graph.node] == ["Clip"]


def test_outputs_are_kept_with_what_they_need_alone(tmp_path: Path) -> None:
    model = _model()
    body = helper.make_graph(
        [helper.make_node("Neg", ["t"], ["n"])], "b", [], [helper.make_empty_tensor_value_info("n")]
    )
    chosen = helper.make_node("If", ["is"], ["z"], then_branch=body, else_branch=body)
    model.graph.node.append(chosen)
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "is"))
    mark_outputs(model, ["z"])
    keep_outputs(model, ["z"])
    assert [one.op_type for one in model.graph.node] == ["Neg", "If"]
    found = run_session(open_session(model, tmp_path), None, Batch("b", {"x": np.float32([1, -2])}))
    assert [value.tolist() for value in found] == [[1, -2]]


class _Unsearched(list[str]):
    """Names that are looked for one by one in no list of them: of n outputs that would take n * n steps."""

    def __contains__(self, name: object) -> bool:
        raise AssertionError(name)


def test_outputs_are_kept_in_time_that_grows_with_the_model() -> None:
    model = _model()
    mark_outputs(model, ["t"])
    keep_outputs(model, _Unsearched(["t"]))
    assert [output.name for output in model.graph.output] == ["t"]
    assert [node.op_type for node in model.graph.node] == ["Neg"]


@pytest.mark.skipif(find_lack("tensorrt") is None, reason="TensorRT's provider loads here")
def test_types_of_plug_ins_are_asked_of_tensorrt_alone(tmp_path: Path) -> None:
    model = _model()
    model.graph.node[0].op_type, model.graph.node[0].domain = "CustomNeg_TRT", PLUGIN_DOMAIN
    model.opset_import.append(helper.make_opsetid(PLUGIN_DOMAIN, 1))
    with pytest.raises(ModelError, match=r"^The model has plug-ins of TensorRT .*, and .*docs/scan-gpu\.md"):
        infer_types(model, tmp_path, ["t"])
