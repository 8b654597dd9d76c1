"""What a scan observes, and the reason for what it does not."""

from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import make_model, node, scan
from onnx import TensorProto, helper, numpy_helper
from scan_cases import save_model, value_info
from sparse_tensors import make_sparse

from overflow_fixer.ranges.coverage import not_observed, observed_tensors


def test_float_tensors_are_observed_in_graph_order(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32(3))),
        helper.make_node("Mul", ["x", "w"], ["m"]),
        helper.make_node("Cast", ["m"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["m"], ["brain"], to=TensorProto.BFLOAT16),
        helper.make_node("Cast", ["m"], ["double"], to=TensorProto.DOUBLE),
        helper.make_node("Cast", ["m"], ["int"], to=TensorProto.INT32),
        helper.make_node("Cast", ["m"], ["flag"], to=TensorProto.BOOL),
        helper.make_node("DynamicQuantizeLinear", ["m"], ["byte", "scale", "zero"]),
        helper.make_node("Add", ["m", "c"], ["y"]),
    ]
    weights = [numpy_helper.from_array(np.ones(3, np.float32), "w")]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[3])], [value_info("y")], weights)
    assert observed_tensors(graph) == ("x", "w", "c", "m", "half", "brain", "double", "scale", "y")
    assert not_observed(graph) == {}


def test_the_rest_is_listed_with_its_reason(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("seq", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["seq"]),
        helper.make_node("SequenceConstruct", ["x"], ["quiet"]),
        helper.make_node("SequenceLength", ["seq"], ["n"]),
        helper.make_node("Cast", ["x"], ["text"], to=TensorProto.STRING),
        helper.make_node("Cast", ["x"], ["f8"], to=TensorProto.FLOAT8E4M3FN),
        helper.make_node("Optional", ["x"], ["maybe"]),
    ]
    outputs = [sequence, value_info("n", TensorProto.INT64)]
    graph = save_model(
        tmp_path / "m.onnx", nodes, [value_info("x", dims=[2, 2])], outputs, opset=19, ir_version=9
    )
    assert observed_tensors(graph) == ("x",)
    reasons = not_observed(graph)
    assert list(reasons) == ["seq", "quiet", "text", "f8", "maybe"]
    assert reasons["seq"] == "it is a sequence, not a tensor"
    assert reasons["quiet"] == "the SequenceConstruct that writes it does not tell that it is a dense tensor"
    assert reasons["text"] == "it holds strings"
    assert reasons["f8"] == "its element type FLOAT8E4M3FN is not handled"


@pytest.mark.parametrize("opset", [10, 17])
def test_sparse_initializers_are_observed(opset: int, tmp_path: Path) -> None:
    """Constant has sparse_value from opset 11 on."""
    model = make_model([node("Add", "x sparse", "y")], {"x": [4]}, "y", opset=opset)
    model.graph.sparse_initializer.append(make_sparse("sparse", [2e5], [2], [4]))
    graph, table = scan(model, tmp_path, {"x": np.ones(4, np.float32)})
    assert not_observed(graph) == {}
    seen = table.by_tensor["sparse"]
    assert (seen.min, seen.max, seen.element_count, seen.over_fp16_count) == (0, 2e5, 4, 1)
