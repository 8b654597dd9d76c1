"""Models that hold a weight large enough to be left in the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.model_file.reading import LEAST_BYTES

COUNT = LEAST_BYTES // 4
VALUES = np.random.default_rng(0).normal(size=COUNT).astype(np.float32)


def typed(name: str, elem_type: int, values: np.ndarray) -> TensorProto:
    """A tensor with its values in a list of their type, not in raw_data."""
    return helper.make_tensor(name, elem_type, values.shape, values.ravel())


def model_of(initializers: list[TensorProto]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["y"], name="n")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        initializers,
        doc_string="kept",
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], producer_name="test", ir_version=8
    )
    helper.set_model_props(model, {"key": "value"})
    return model


FORMS = {
    "raw": numpy_helper.from_array(VALUES, "w"),
    "floats": typed("w", TensorProto.FLOAT, VALUES),
    "doubles": typed("w", TensorProto.DOUBLE, VALUES.astype(np.float64)),
    "raw FP16": numpy_helper.from_array(np.tile(VALUES, 2).astype(np.float16), "w"),
    "raw int64": numpy_helper.from_array(np.arange(COUNT), "w"),
    "matrix": numpy_helper.from_array(VALUES.reshape(64, -1), "w"),
    "documented": TensorProto(
        name="w",
        data_type=TensorProto.FLOAT,
        dims=[COUNT],
        raw_data=VALUES.tobytes(),
        doc_string="of the tensor",
    ),
}


def held(name: str, values: np.ndarray, **attributes: Any) -> onnx.NodeProto:
    tensor = numpy_helper.from_array(values, name + "_value")
    return helper.make_node("Constant", [], [name], value=tensor, **attributes)


def branch(output: str, nodes: list[onnx.NodeProto], *weights: TensorProto) -> onnx.GraphProto:
    info = helper.make_tensor_value_info(output, TensorProto.FLOAT, [COUNT])
    return helper.make_graph(nodes, output + "_branch", [], [info], weights)


def model_with_bodies() -> onnx.ModelProto:
    """Weights in Constant nodes, in bodies, and in Constant nodes of a body of a body."""
    inner = helper.make_node(
        "If",
        ["flag"],
        ["i"],
        then_branch=branch("t2", [held("c2", 4 * VALUES), helper.make_node("Add", ["h", "c2"], ["t2"])]),
        else_branch=branch("e2", [helper.make_node("Identity", ["h"], ["e2"])]),
    )
    weight = numpy_helper.from_array(2 * VALUES, "w1")
    outer = helper.make_node(
        "If",
        ["flag"],
        ["y"],
        then_branch=branch("t1", [inner, helper.make_node("Add", ["i", "w1"], ["t1"])], weight),
        else_branch=branch("e1", [held("c1", 3 * VALUES), helper.make_node("Sub", ["h", "c1"], ["e1"])]),
    )
    model = model_of([])
    del model.graph.node[:]
    nodes = [
        held("c0", VALUES),
        held("small", VALUES[:2]),
        helper.make_node("Add", ["x", "c0"], ["h"]),
        outer,
    ]
    model.graph.node.extend(nodes)
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))
    return model
