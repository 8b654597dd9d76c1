"""Sessions compute each node as it stands, and say in one paragraph why they cannot."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from overflow_fixer.errors import ModelError
from overflow_fixer.records import Batch
from overflow_fixer.sessions import SessionRunner, infer_types, mark_outputs, open_session, run_session


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


def test_fp16_inputs_take_rounded_fp32_feeds(tmp_path: Path) -> None:
    runner = SessionRunner(open_session(_model(TensorProto.FLOAT16), tmp_path))
    found = runner.run(Batch("b", {"x": np.float32([1, -65520])}))["y"]
    assert found.dtype == np.float16
    assert found.tolist() == [1, np.inf]


def test_bf16_inputs_take_ml_dtypes_arrays(tmp_path: Path) -> None:
    cast = helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)
    x, y = (
        helper.make_tensor_value_info(n, t, [2])
        for n, t in (("x", TensorProto.BFLOAT16), ("y", TensorProto.FLOAT))
    )
    model = helper.make_model(
        helper.make_graph([cast], "g", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    fed = np.array([1.5, -3], ml_dtypes.bfloat16)
    assert SessionRunner(open_session(model, tmp_path)).run(Batch("b", {"x": fed}))["y"].tolist() == [1.5, -3]


def test_onnx_runtime_tells_types(tmp_path: Path) -> None:
    assert infer_types(_model(TensorProto.DOUBLE), tmp_path, ["t"]) == {"t": TensorProto.DOUBLE}


def test_a_refused_model_and_a_failing_batch_are_told(tmp_path: Path) -> None:
    broken = _model()
    broken.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(ModelError, match="NoSuchOperator"):
        open_session(broken, tmp_path)
    with pytest.raises(ModelError, match=r"batch night\.npz"):
        run_session(
            open_session(_model(), tmp_path), None, Batch("night.npz", {"x": np.ones((2, 2), np.float32)})
        )
