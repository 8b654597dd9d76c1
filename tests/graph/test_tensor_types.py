"""Types and shapes: what is recorded, what is inferred, and what may be relied on whatever a model records."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import onnx
import pytest
from onnx import TensorProto, ValueInfoProto, helper

from overflow_fixer.graph import tensor_types
from overflow_fixer.graph.model import load_graph
from overflow_fixer.graph.nodes import number_nodes
from overflow_fixer.graph.tensor_types import (
    Types,
    dims_of,
    find_constants,
    find_defaults,
    infer_shapes,
    is_typed,
    tell_types,
)

FLOAT = TensorProto.FLOAT
Dims = Sequence[int | str | None]


def _info(name: str, dims: Dims | None) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, dims)


def _model(output: Dims | None, inner: Dims | None = None, opset: int = 17) -> onnx.ModelProto:
    """x [n, 4] -> a -> y, and z which nothing can infer; types of inside are recorded where `inner` is given."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Transpose", ["a"], ["y"]),
        helper.make_node("Unknown", ["y"], ["z"], domain="elsewhere"),
    ]
    graph = helper.make_graph(nodes, "g", [_info("x", ["n", 4])], [_info("y", output), _info("z", [3, "k"])])
    if inner is not None:
        graph.value_info.append(_info("a", inner))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("elsewhere", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _tell(model: onnx.ModelProto) -> Types:
    nodes = number_nodes(model.graph)
    return tell_types(model, Path(), nodes, find_constants(model.graph, nodes))


def test_a_model_that_records_no_type_inside_is_inferred_once() -> None:
    with patch.object(onnx.shape_inference, "infer_shapes", wraps=onnx.shape_inference.infer_shapes) as infer:
        told = _tell(_model(["rows", "columns"]))
    assert infer.call_count == 1
    assert told.dtypes == dict.fromkeys("xayz", FLOAT)
    assert told.sure_shapes == {"x": ("n", 4), "a": ("n", 4), "y": (4, "n")}


@pytest.mark.parametrize("recorded", [None, [4, 9], [None, None], [7, 9], [4, 9, 1]])
def test_what_is_recorded_of_an_output_is_never_relied_on(recorded: Dims | None) -> None:
    found = _tell(_model(recorded))
    assert found.sure_shapes is not None
    assert found.sure_shapes["y"] == (4, "n")


@pytest.mark.parametrize("output", [None, ["rows", "columns"], [4, 9]])
@pytest.mark.parametrize("inner", [None, ["n", 4], [9, 4]])
def test_sure_shapes_are_those_inferred_for_no_input_in_particular(
    output: Dims | None, inner: Dims | None, tmp_path: Path
) -> None:
    model = _model(output, inner)
    del model.graph.node[2:], model.graph.output[1:]
    onnx.save(model, tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    assert graph.sure_shapes == infer_shapes(model, {}) == {"x": ("n", 4), "a": ("n", 4), "y": (4, "n")}


def test_shapes_are_inferred_anew_where_some_are_recorded_inside() -> None:
    assert _tell(_model(None, [9, 4])).sure_shapes is None


def test_shapes_follow_what_is_fed() -> None:
    assert infer_shapes(_model([4, 9]), {"x": (2, 4)}) == {"x": (2, 4), "a": (2, 4), "y": (4, 2)}


@pytest.mark.parametrize("may_be_fed", [False, True])
def test_a_shape_that_is_copied_is_seen(may_be_fed: bool) -> None:
    """As exporters share equal constants by an Identity, which inference does not see through."""
    nodes = [
        helper.make_node("Identity", ["shape"], ["copy"]),
        helper.make_node("Identity", ["copy"], ["other"]),
        helper.make_node("Reshape", ["x", "other"], ["y"]),
    ]
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [2, 6])
    inputs = [_info("x", ["n", 4])]
    if may_be_fed:
        inputs.append(helper.make_tensor_value_info("shape", TensorProto.INT64, [2]))
    graph = helper.make_graph(nodes, "g", inputs, [_info("y", None)], [shape])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = infer_shapes(model, {})["y"]
    assert (found == (2, 6)) is not may_be_fed
    assert len(found) == 2
    assert [node.op_type for node in model.graph.node] == ["Identity", "Identity", "Reshape"]


@pytest.mark.parametrize("outputs", ["y", "v y"])
def test_copies_have_shapes_and_so_has_what_is_behind_them(outputs: str) -> None:
    """One that is an output of the graph, too."""
    nodes = [
        helper.make_node("Identity", ["w"], ["v"]),
        helper.make_node("Mul", ["w", "v"], ["s"]),
        helper.make_node("Mul", ["x", "s"], ["y"]),
    ]
    weights = helper.make_tensor("w", FLOAT, [3], [1, 2, 3])
    infos = [_info(name, None) for name in outputs.split()]
    graph = helper.make_graph(nodes, "g", [_info("x", [2, 3])], infos, [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = infer_shapes(model, {})
    assert {name: found[name] for name in "vsy"} == {"v": (3,), "s": (3,), "y": (2, 3)}
    graph.node.append(helper.make_node("NonZero", ["y"], ["n"]))
    with patch.object(tensor_types, "infer_types", lambda *_: pytest.fail("a session was opened")):
        assert _tell(model).dtypes["v"] == FLOAT


def test_what_onnx_cannot_infer_is_asked_of_onnx_runtime() -> None:
    model = _model(None)
    del model.graph.output[1:]
    asked = []

    def infer_types(model: onnx.ModelProto, folder: Path, tensors: Sequence[str]) -> dict[str, int]:
        asked.extend(tensors)
        return {"z": TensorProto.INT8}

    with patch.object(tensor_types, "infer_types", infer_types):
        assert _tell(model).dtypes["z"] == TensorProto.INT8
    assert asked == ["z"]


def test_dimensions_of_a_tensor() -> None:
    assert dims_of(_info("a", [0, "n", None, 3]).type) == (0, "n", None, 3)
    assert dims_of(_info("a", []).type) == ()
    assert dims_of(_info("a", None).type) is None
    assert dims_of(helper.make_sequence_type_proto(_info("a", [1]).type)) is None


def test_a_type_that_says_nothing_is_none() -> None:
    assert is_typed(_info("a", None).type)
    assert is_typed(helper.make_sequence_type_proto(_info("a", [1]).type))
    assert not is_typed(onnx.TypeProto())
    assert not is_typed(helper.make_tensor_type_proto(TensorProto.UNDEFINED, None))


def test_an_output_left_out_of_such_a_pool_is_nobodys_input() -> None:
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p", ""], kernel_shape=[2, 2], ceil_mode=1),
        helper.make_node("Clip", ["x", "", "top"], ["y"]),
    ]
    top = helper.make_tensor("top", FLOAT, [], [1])
    graph = helper.make_graph(nodes, "g", [_info("x", [1, 1, 8, 8])], [_info("y", None)], [top])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert set(infer_shapes(model, {})) == {"x", "y", "top"}


@pytest.mark.parametrize(("version", "expected"), [(3, set()), (4, {"w"})])
def test_before_ir_version_4_no_batch_replaces_an_initializer(version: int, expected: set[str]) -> None:
    """Though each has to be an input too."""
    weight = helper.make_tensor("w", FLOAT, [4], [1] * 4)
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    infos = [_info("x", [4]), _info("w", [4])]
    graph = helper.make_graph(nodes, "g", infos, [_info("y", [4])], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=version)
    assert find_defaults(model) == expected


@pytest.mark.parametrize("past", [["pk", "pv"], []])
def test_the_scores_that_an_attention_gives_out_are_not_sure_beside_a_past(past: list[str]) -> None:
    """ONNX infers as many columns as there are new keys."""
    made = helper.make_node(
        "Attention", ["q", "k", "v", *([""] if past else []), *past], ["y", "nk", "nv", "s"]
    )
    infos = [_info(name, [1, 2, 3, 4]) for name in ["q", "k", "v", *past]]
    outputs = [_info(name, None) for name in made.output]
    graph = helper.make_graph([made], "g", infos, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)
    assert ("s" in infer_shapes(model, {})) == (not past)


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize(
    ("attributes", "is_sure"),
    [
        ({}, True),
        ({"ceil_mode": 0, "pads": [0, 1, 0, 1]}, True),
        ({"auto_pad": "SAME_UPPER"}, True),
        ({"dilations": [2, 2]}, True),
        ({"auto_pad": "SAME_LOWER", "dilations": [1, 1]}, True),
        ({"ceil_mode": 1}, False),
        ({"ceil_mode": 1, "auto_pad": "VALID"}, False),
        ({"auto_pad": "SAME_LOWER", "dilations": [1, 2]}, False),
    ],
)
def test_sizes_of_pools_on_which_onnx_runtime_differs_are_not_sure(
    attributes: dict[str, Any], is_sure: bool, op: str, records: bool
) -> None:
    """Nor is what is computed from them."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node(op, ["a"], ["p"], kernel_shape=[2, 2], **attributes),
        helper.make_node("Neg", ["p"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [_info("x", [1, 1, 8, 8])], [_info("y", None)])
    graph.value_info.extend([_info("a", [1, 1, 8, 8])] if records else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=8)
    found = _tell(model).sure_shapes
    sure = infer_shapes(model, {}) if found is None else found
    assert set(sure) == ({"x", "a", "p", "y"} if is_sure else {"x", "a"})


@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_nor_is_what_a_body_computes_from_them(ceil_mode: int) -> None:
    body = helper.make_graph([helper.make_node("Neg", ["p"], ["inner"])], "body", [], [_info("inner", None)])
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2], ceil_mode=ceil_mode),
        helper.make_node("If", ["is"], ["y"], then_branch=body, else_branch=body),
        helper.make_node("Relu", ["x"], ["z"]),
    ]
    flag = helper.make_tensor_value_info("is", TensorProto.BOOL, [])
    outputs = [_info(name, None) for name in "yz"]
    graph = helper.make_graph(nodes, "g", [_info("x", [1, 1, 8, 8]), flag], outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=8)
    assert set(infer_shapes(model, {})) == {"x", "is", "z"} | (set() if ceil_mode else {"p", "y"})
