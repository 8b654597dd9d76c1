"""The table of operators against ONNX's own: its schemas, and the nodes that it tests backends with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from onnx.defs import OpSchema

from overflow_fixer.graph.model import load_graph
from overflow_fixer.graph.nodes import Node, number_nodes
from overflow_fixer.graph.operator_ranks import RANKED_INPUTS, RANKS, find_rank
from overflow_fixer.graph.operator_types import (
    BODY_OUTPUTS,
    FIXED_TYPES,
    OTHER_OUTPUTS,
    TYPED_INPUT,
    tell_outputs,
)
from overflow_fixer.graph.tensor_types import dims_of, find_constants, infer_shapes, tell_types
from overflow_fixer.model_file.opsets import MIN_OPSET

SAMPLES = sorted((Path(__file__).parents[2] / "calib_data").glob("*/model.onnx"))
_NAMES = {
    TensorProto.INT64: "tensor(int64)",
    TensorProto.INT32: "tensor(int32)",
    TensorProto.UINT8: "tensor(uint8)",
    TensorProto.FLOAT: "tensor(float)",
    TensorProto.BOOL: "tensor(bool)",
}


@cache
def _histories() -> dict[str, list[OpSchema]]:
    found: dict[str, list[OpSchema]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "":
            found.setdefault(schema.name, []).append(schema)
    return found


def _in_use(op_type: str) -> Iterator[OpSchema]:
    """The operator as models may mean it: as of MIN_OPSET, and every later version."""
    versions = sorted(_histories()[op_type], key=lambda schema: schema.since_version)
    last_old = max((s.since_version for s in versions if s.since_version <= MIN_OPSET), default=0)
    yield from (schema for schema in versions if schema.since_version >= last_old)


def _allowed(schema: OpSchema, name: str) -> list[str]:
    """The types that a type parameter stands for; a type stands for itself."""
    constraints = {one.type_param_str: list(one.allowed_type_strs) for one in schema.type_constraints}
    return constraints.get(name, [name])


@pytest.mark.parametrize("op_type", TYPED_INPUT)
def test_an_output_has_the_type_of_the_input_in_every_version(op_type: str) -> None:
    for schema in _in_use(op_type):
        name = schema.inputs[TYPED_INPUT[op_type]].type_str
        assert schema.outputs[0].type_str == name
        assert schema.outputs[0].is_homogeneous


@pytest.mark.parametrize("op_type", FIXED_TYPES)
def test_an_output_of_one_type_has_it_in_every_version(op_type: str) -> None:
    for schema in _in_use(op_type):
        assert _allowed(schema, schema.outputs[0].type_str) == [_NAMES[FIXED_TYPES[op_type]]]


@pytest.mark.parametrize("op_type", OTHER_OUTPUTS)
def test_other_outputs_have_their_type_in_every_version(op_type: str) -> None:
    for schema in _in_use(op_type):
        first, *others = schema.outputs
        is_variadic = first.option == OpSchema.FormalParameterOption.Variadic
        assert is_variadic == (not others)
        told = OTHER_OUTPUTS[op_type]
        for place, output in enumerate(others):
            one = told[min(place, len(told) - 1)]
            if one == TensorProto.UNDEFINED:
                assert output.type_str == first.type_str
            else:
                assert _allowed(schema, output.type_str) == [_NAMES[one]]


def _tell(
    model: ModelProto, fed: Mapping[str, TensorProto] = MappingProxyType({})
) -> tuple[dict[str, int], dict[str, int]] | None:
    """The types and ranks of the outputs as the table tells them, what is `fed` taken for constants; None where not all types are."""
    constants = {**fed, **{tensor.name: tensor for tensor in model.graph.initializer}}
    infos = [info for info in model.graph.input if info.type.HasField("tensor_type")]
    dtypes = {info.name: info.type.tensor_type.elem_type for info in infos}
    ranks = {info.name: len(dims_of(info.type) or ()) for info in infos}
    return (dtypes, ranks) if tell_outputs(number_nodes(model.graph), constants, dtypes, ranks) else None


def _find_integers(case: Any) -> dict[str, TensorProto]:
    """The inputs that are axes, shapes and the like."""
    names = [info.name for info in case.model.graph.input]
    given = zip(names, case.data_sets[0][0] if case.data_sets else (), strict=False)
    arrays = {name: value for name, value in given if isinstance(value, np.ndarray)}
    return {
        name: onnx.numpy_helper.from_array(value, name)
        for name, value in arrays.items()
        if value.dtype == np.int64
    }


def test_what_is_told_of_the_nodes_that_onnx_tests_backends_with_is_right() -> None:
    """Ranks are in no schema. Each operator of the table is among them, but one that only comes with other outputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        cases = [case for case in collect_testcases(None) if case.model is not None]
    seen: set[str] = set()
    of_bodies: set[str] = set()
    for case in cases:
        model = case.model
        told = _tell(model, _find_integers(case))
        if told is None:
            continue
        for output in model.graph.output:
            assert told[0][output.name] == output.type.tensor_type.elem_type
            assert told[1].get(output.name) in (None, len(dims_of(output.type) or ()))
        of_bodies |= BODY_OUTPUTS.keys() & {node.op_type for node in model.graph.node}
        seen |= {node.op_type for node in model.graph.node if node.output[0] in told[1]}
    assert {*RANKED_INPUTS, *RANKS} - seen == {"LayerNormalization"}
    assert of_bodies == BODY_OUTPUTS.keys()


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.parent.name)
def test_types_and_ranks_are_those_that_onnx_infers(path: Path) -> None:
    model = onnx.load(path)
    nodes = number_nodes(model.graph)
    told = tell_types(model, path.parent, nodes, find_constants(model.graph, nodes))
    inferred = onnx.shape_inference.infer_shapes(model).graph
    infos = (*inferred.value_info, *inferred.output)
    assert {info.name: told.dtypes[info.name] for info in infos} == {
        info.name: info.type.tensor_type.elem_type for info in infos
    }
    assert told.ranks
    shapes = infer_shapes(model, {})
    for name, rank in told.ranks.items():
        assert rank == len(shapes[name])


def _node(op_type: str, outputs: list[str], domain: str = "", **attributes: int) -> ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x"], outputs, domain=domain, **attributes)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, [2, 3])],
        [],
    )
    return helper.make_model(graph)


@pytest.mark.parametrize(
    ("op_type", "outputs", "domain"),
    [
        ("Unheard", ["y"], ""),
        ("Relu", ["y"], "com.example"),
        ("If", ["y"], ""),
        ("MaxPool", ["y", "indices"], ""),
        ("Dropout", ["", "mask"], ""),
        ("Constant", ["y"], ""),
        ("Cast", ["y"], ""),
        ("Where", ["y"], ""),
        ("Constant", [], ""),
    ],
)
def test_what_the_table_does_not_tell_is_not_told(op_type: str, outputs: list[str], domain: str) -> None:
    assert _tell(_node(op_type, outputs, domain)) is None


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "told"),
    [
        ("QuantizeLinear", ["x", "s"], {}, TensorProto.UINT8),
        ("QuantizeLinear", ["x", "s", ""], {}, TensorProto.UINT8),
        ("QuantizeLinear", ["x", "s", "zero"], {}, TensorProto.INT8),
        ("QuantizeLinear", ["x", "s", "zero"], {"output_dtype": 0}, TensorProto.INT8),
        ("QuantizeLinear", ["x", "s"], {"output_dtype": TensorProto.INT16}, TensorProto.INT16),
        ("QuantizeLinear", ["x", "s", "unknown"], {}, None),
        ("DequantizeLinear", ["zero", "s"], {}, TensorProto.FLOAT16),
        ("DequantizeLinear", ["zero", "s", "zero"], {}, TensorProto.FLOAT16),
        ("DequantizeLinear", ["zero", "s"], {"output_dtype": TensorProto.FLOAT}, TensorProto.FLOAT),
        ("DequantizeLinear", ["zero", "unknown"], {}, None),
        ("DequantizeLinear", ["zero"], {}, None),
    ],
)
def test_what_is_quantized_has_the_type_that_it_is_told(
    op_type: str, inputs: list[str], attributes: dict[str, int], told: int | None
) -> None:
    dtypes = {"x": TensorProto.FLOAT, "s": TensorProto.FLOAT16, "zero": TensorProto.INT8}
    ranks = {"x": 3, "zero": 3}
    node = Node.of(0, "y", helper.make_node(op_type, inputs, ["y"], **attributes))
    is_told = tell_outputs([node], {}, dtypes, ranks)
    assert is_told is (told is not None)
    assert (dtypes.get("y"), ranks.get("y")) == (told, None if told is None else 3)


@pytest.mark.parametrize(
    ("outputs", "types", "told"),
    [
        (["more", "y"], [TensorProto.DOUBLE], {"y": TensorProto.DOUBLE}),
        (
            ["more", "y", "z"],
            [TensorProto.DOUBLE, TensorProto.INT64],
            {"y": TensorProto.DOUBLE, "z": TensorProto.INT64},
        ),
        (["more", "y", ""], [TensorProto.DOUBLE, TensorProto.INT64], {"y": TensorProto.DOUBLE}),
        (["more", "y"], [TensorProto.UNDEFINED], None),
        (["more", "y", "z"], [TensorProto.DOUBLE], None),
    ],
)
def test_what_a_body_declares_is_what_its_node_gives(
    outputs: list[str], types: list[int], told: dict[str, int] | None
) -> None:
    infos = [helper.make_tensor_value_info(f"o{i}", elem_type, None) for i, elem_type in enumerate(types)]
    more = helper.make_tensor_value_info("more", TensorProto.BOOL, [])
    body = helper.make_graph([], "b", [], [more, *infos])
    node = Node.of(0, "loop", helper.make_node("Loop", ["", "", "x"], outputs[1:], body=body))
    dtypes: dict[str, int] = {}
    assert tell_outputs([node], {}, dtypes, {}) is (told is not None)
    assert dtypes == (told or {})


def test_outputs_that_are_left_out_are_none() -> None:
    """Of a LayerNormalization the output has the type of the scale, which below opset 17 may be another."""
    model = _node("LayerNormalization", ["y", "", ""])
    model.graph.node[0].input.append("scale")
    model.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, [3]))
    types = {"x": TensorProto.FLOAT16, "scale": TensorProto.FLOAT, "y": TensorProto.FLOAT}
    assert _tell(model) == (types, {"x": 2, "scale": 1, "y": 2})


def test_a_first_output_that_is_left_out_is_none() -> None:
    told = _tell(_node("TopK", ["", "indices"]))
    assert told == ({"x": TensorProto.FLOAT16, "indices": TensorProto.INT64}, {"x": 2, "indices": 2})


@pytest.mark.parametrize(("op_type", "keeps", "rank"), [("ReduceMax", 1, 2), ("ReduceMax", 0, None)])
def test_a_reduction_may_drop_dimensions(op_type: str, keeps: int, rank: int | None) -> None:
    told = _tell(_node(op_type, ["y"], keepdims=keeps))
    assert told is not None
    assert told[1].get("y") == rank


@pytest.mark.parametrize(
    ("op_type", "listed", "rank"), [("Expand", [5], 2), ("Expand", [5, 2, 3], 3), ("Squeeze", [], None)]
)
def test_what_a_list_says_of_the_rank(op_type: str, listed: list[int], rank: int | None) -> None:
    """ONNX Runtime squeezes all dimensions of 1 where none is named."""
    model = _node(op_type, ["y"])
    model.graph.node[0].input.append("list")
    model.graph.initializer.append(helper.make_tensor("list", TensorProto.INT64, [len(listed)], listed))
    told = _tell(model)
    assert told is not None
    assert told[1].get("y") == rank


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_node_of_too_few_or_too_many_inputs_is_left_to_onnx_runtime(count: int) -> None:
    """It says what is wrong; no operator's row of the table fails before that."""
    nodes = [helper.make_node(op_type, ["x"] * count, ["y"]) for op_type in (*RANKED_INPUTS, *RANKS)]
    told = {node.op_type: find_rank(Node.of(0, "y", node), {}, {"x": 2}) for node in nodes}
    assert told["Gather"] is told["MatMul"] is told["Squeeze"] is None
    if not count:
        assert {op_type for op_type, rank in told.items() if rank is not None} == {"Flatten", "Shape"}


def test_a_shape_that_no_vector_tells_gives_no_rank() -> None:
    model = _node("Reshape", ["y"])
    model.graph.node[0].input.append("shape")
    model.graph.initializer.append(helper.make_tensor("shape", TensorProto.INT64, [], [1]))
    told = _tell(model)
    assert told is not None
    assert "y" not in told[1]


def test_shapes_are_inferred_when_they_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    infer, calls = onnx.shape_inference.infer_shapes, []

    def count(model: ModelProto, **arguments: bool) -> ModelProto:
        calls.append(model)
        return infer(model, **arguments)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", count)
    model = _node("Relu", ["y"])
    model.graph.output.append(helper.make_tensor_value_info("y", TensorProto.FLOAT16, [2, None]))
    onnx.save(model, tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    assert (graph.dtypes["y"], graph.ranks["y"], calls) == (TensorProto.FLOAT16, 2, [])
    assert graph.sure_shapes["y"] == (2, 3)
    assert len(calls) == 1
