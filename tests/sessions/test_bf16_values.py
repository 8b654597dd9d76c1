"""BF16 in and out of a run, bit for bit."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper

from overflow_fixer.records import Batch
from overflow_fixer.sessions.session import SessionRunner, open_session


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


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_bf16_outputs_come_as_ml_dtypes_arrays_beside_others(tmp_path: Path, shape: tuple[int, ...]) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.BFLOAT16),
        helper.make_node("SequenceConstruct", ["x", "x"], ["list"]),
        helper.make_node("Neg", ["x"], ["wide"]),
    ]
    x, wide = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "wide"))
    narrow = helper.make_tensor_value_info("narrow", TensorProto.BFLOAT16, shape)
    sequence = helper.make_tensor_sequence_value_info("list", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [narrow, sequence, wide])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    values = np.full(shape, 1.00390625 + 2.0**-9, np.float32)
    found = SessionRunner(open_session(model, tmp_path)).run(Batch("b", {"x": values}))
    assert found["narrow"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(found["narrow"].astype(np.float32), np.full(shape, 1.0078125, np.float32))
    np.testing.assert_array_equal(found["wide"], -values)
    assert [part.tolist() for part in found["list"]] == [values.tolist()] * 2


def test_an_optional_that_is_empty_beside_bf16_is_none(tmp_path: Path) -> None:
    of_floats = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("Cast", ["x"], ["narrow"], to=TensorProto.BFLOAT16),
        helper.make_node("Optional", [], ["nothing"], type=of_floats),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    narrow = helper.make_tensor_value_info("narrow", TensorProto.BFLOAT16, [2])
    nothing = helper.make_value_info("nothing", helper.make_optional_type_proto(of_floats))
    graph = helper.make_graph(nodes, "g", [x], [narrow, nothing])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = SessionRunner(open_session(model, tmp_path)).run(Batch("b", {"x": np.ones(2, np.float32)}))
    assert found["narrow"].tolist() == [1, 1]
    assert found["nothing"] is None
