"""What TensorRT is given to parse: the model's own file unless something in it must change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from fake_tensorrt import Script, fake_tensorrt
from in_memory_calibration import make_model, node, save
from onnx import TensorProto, helper, numpy_helper
from recorded_networks import make_plan
from standin_gpu import use_standin_gpu
from typed_models import write_model

from overflow_fixer.backends.tensorrt.capabilities import Capabilities, probe
from overflow_fixer.backends.tensorrt.network import ParsedNetwork
from overflow_fixer.backends.tensorrt.source import doubt_opset, find_source, parse_graph
from overflow_fixer.errors import BackendError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import Clamp, PrecisionPlan, ShapeRange

_MASK = np.array([0, -3.4e38, -np.inf, 3.4e38, np.nan, 5], np.float32)
OLD, NEW = (probe(fake_tensorrt(variant, Script())) for variant in ("8.6", "10.0"))
_EXPECTED = np.array([0, -1e4, -1e4, 1e4, np.nan, 5], np.float32)


def _save(
    folder: Path, nodes: list[onnx.NodeProto], weights: list[TensorProto], external: bool = False
) -> Graph:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [6]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    path = folder / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return load_graph(path)


def _clamping(graph: Graph, tensor: str) -> PrecisionPlan:
    return replace(make_plan(graph), clamps=(Clamp(tensor, 1e4, "a mask"),))


def _clamped(graph: Graph, tensor: str) -> onnx.ModelProto:
    source = find_source(graph, _clamping(graph, tensor), OLD, {})
    assert isinstance(source, bytes)
    return onnx.ModelProto.FromString(source)


def test_an_unchanged_model_is_its_file(tmp_path: Path) -> None:
    graph = _save(tmp_path, [helper.make_node("Abs", ["x"], ["y"])], [])
    assert find_source(graph, None, OLD, {}) == graph.path


def test_an_initializer_is_clamped_and_the_rest_is_untouched(tmp_path: Path) -> None:
    other = numpy_helper.from_array(_MASK, "other")
    nodes = [helper.make_node("Add", ["x", "mask"], ["p"]), helper.make_node("Add", ["p", "other"], ["y"])]
    graph = _save(tmp_path, nodes, [numpy_helper.from_array(_MASK, "mask"), other])
    before = graph.model.SerializeToString()
    found = {t.name: numpy_helper.to_array(t) for t in _clamped(graph, "mask").graph.initializer}
    np.testing.assert_array_equal(found["mask"], _EXPECTED)
    np.testing.assert_array_equal(found["other"], _MASK)
    assert found["mask"].dtype == np.float32
    assert graph.model.SerializeToString() == before


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ({"value": numpy_helper.from_array(_MASK, "v")}, _EXPECTED),
        ({"value_floats": [float(value) for value in _MASK[:2]]}, _EXPECTED[:2]),
        ({"value_float": -3.4e38}, np.float32(-1e4)),
    ],
    ids=["value", "value_floats", "value_float"],
)
def test_a_constant_node_is_clamped_however_it_holds_its_value(
    tmp_path: Path, attribute: dict[str, object], expected: np.ndarray
) -> None:
    nodes = [
        helper.make_node("Constant", [], ["mask"], name="const", **attribute),
        helper.make_node("ReduceMax", ["mask"], ["top"], keepdims=0),
        helper.make_node("Add", ["x", "top"], ["y"]),
    ]
    model = _clamped(_save(tmp_path, nodes, []), "mask")
    (value,) = model.graph.node[0].attribute
    assert value.name == "value"
    found = numpy_helper.to_array(value.t)
    np.testing.assert_array_equal(found, expected)
    assert found.shape == np.shape(expected)
    onnx.checker.check_model(model)


def test_what_fills_a_tensor_is_clamped(tmp_path: Path) -> None:
    fill = numpy_helper.from_array(_MASK[1:2], "v")
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["mask"], value=fill),
        helper.make_node("ConstantOfShape", ["s"], ["other"], value=fill),
        helper.make_node("Sum", ["x", "mask", "other"], ["y"]),
    ]
    graph = _save(tmp_path, nodes, [])
    before = graph.model.SerializeToString()
    model = _clamped(graph, "mask")
    found = [numpy_helper.to_array(node.attribute[0].t) for node in model.graph.node[1:3]]
    np.testing.assert_array_equal(found, [_EXPECTED[1:2], _MASK[1:2]])
    assert graph.model.SerializeToString() == before
    onnx.checker.check_model(model)


def test_external_data_stays_where_it_is_and_a_clamped_tensor_comes_inside(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "mask"], ["p"]), helper.make_node("Add", ["p", "other"], ["y"])]
    weights = [numpy_helper.from_array(_MASK, name) for name in ("mask", "other")]
    graph = _save(tmp_path, nodes, weights, external=True)
    data = (tmp_path / "weights.bin").read_bytes()
    found = {tensor.name: tensor for tensor in _clamped(graph, "mask").graph.initializer}
    assert found["other"].data_location == TensorProto.EXTERNAL
    assert {entry.key: entry.value for entry in found["other"].external_data}["location"] == "weights.bin"
    assert found["mask"].data_location != TensorProto.EXTERNAL
    np.testing.assert_array_equal(numpy_helper.to_array(found["mask"]), _EXPECTED)
    assert (tmp_path / "weights.bin").read_bytes() == data


def test_data_behind_a_link_are_found_beside_what_is_behind_it(tmp_path: Path) -> None:
    """As caches lay models out: the bytes name a file of that folder, and the parser is told a file in it."""
    nodes = [helper.make_node("Add", ["x", "mask"], ["p"]), helper.make_node("Add", ["p", "other"], ["y"])]
    weights = [numpy_helper.from_array(_MASK, name) for name in ("mask", "other")]
    (tmp_path / "blobs").mkdir()
    home = _save(tmp_path, nodes, weights, external=True).path.rename(tmp_path / "blobs" / "1")
    data = (tmp_path / "weights.bin").rename(tmp_path / "blobs" / "2")
    (tmp_path / "model.onnx").symlink_to(home)
    (tmp_path / "weights.bin").symlink_to(data)
    trt = fake_tensorrt("8.6", Script())
    with use_standin_gpu(trt):
        graph = load_graph(tmp_path / "model.onnx")
        parse_graph(trt, OLD, graph, _clamping(graph, "mask"), "weak", {})
    ((content, beside),) = trt.script.parsed
    model = onnx.ModelProto.FromString(content)
    onnx.load_external_data_for_model(model, str(Path(beside).parent))
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[1]), _MASK)


def test_inlined_functions_go_as_bytes(tmp_path: Path) -> None:
    function = '<domain: "local", opset_import: ["" : 17]> twice (a) => (b) { b = Add(a, a) }'
    path = write_model(tmp_path, "g (float[4] x) => (float[4] y) { y = local.twice(x) }", functions=function)
    assert onnx.load(path).functions
    source = find_source(load_graph(path), None, OLD, {})
    assert isinstance(source, bytes)
    model = onnx.ModelProto.FromString(source)
    assert not model.functions
    assert [node.op_type for node in model.graph.node] == ["Add"]


# ---------------------------------------------------------------- axes that the parser overlooks


def _reduction(folder: Path, node: str, constants: str = "") -> Graph:
    text = f"g (float[2,3,4] x, int64[1] fed) => (float[] y) <{constants}> {{ y = {node} }}"
    return load_graph(write_model(folder, text, opset=18))


def _as_opset_17(source: Path | bytes) -> onnx.ModelProto:
    """What was changed, as a model of the opset that has axes as an attribute."""
    assert isinstance(source, bytes)
    model = onnx.ModelProto.FromString(source)
    model.opset_import[0].version = 17
    return model


def _run(model: bytes) -> np.ndarray:
    feeds = {"x": np.arange(24, dtype=np.float32).reshape(2, 3, 4) / 8 - 1, "fed": np.array([1])}
    session = onnxruntime.InferenceSession(model)
    return np.asarray(session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})[0])


@pytest.mark.parametrize("axes", ["int64[2] axes = {1, -1}", "int64[1] axes = {0}", "int64[0] axes = {}"])
@pytest.mark.parametrize(
    "name", ["L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare"]
)
def test_a_parser_that_overlooks_axes_as_an_input_gets_them_as_an_attribute(
    tmp_path: Path, name: str, axes: str
) -> None:
    graph = _reduction(tmp_path, f"Reduce{name}<keepdims=0>(x, axes)", axes)
    before = graph.model.SerializeToString()
    changed = _as_opset_17(find_source(graph, None, OLD, {}))
    np.testing.assert_array_equal(_run(changed.SerializeToString()), _run(graph.path.read_bytes()))
    assert graph.model.SerializeToString() == before
    assert find_source(graph, None, NEW, {}) == graph.path


@pytest.mark.parametrize("made", ["Constant<value_ints=[-1]>()", "Identity(shared)"])
def test_axes_of_a_node_and_those_that_are_shared_are_constants_too(tmp_path: Path, made: str) -> None:
    text = f"""g (float[2,3,4] x) => (float[2,3,1] y) <int64[1] shared = {{2}}> {{
        axes = {made} y = ReduceMean(x, axes)
    }}"""
    graph = load_graph(write_model(tmp_path, text, opset=18))
    changed = _as_opset_17(find_source(graph, None, OLD, {}))
    np.testing.assert_array_equal(_run(changed.SerializeToString()), _run(graph.path.read_bytes()))


@pytest.mark.parametrize(
    ("node", "constants"),
    [
        ("ReduceMean(x)", ""),
        ("ReduceMean(x, )", ""),
        ("ReduceMean(x, fed)", ""),
        ("ReduceMean<noop_with_empty_axes=1>(x, none)", "int64[0] none = {}"),
        ("ReduceSum(x, axes)", "int64[1] axes = {1}"),
    ],
)
def test_other_reductions_are_left_as_they_are(tmp_path: Path, node: str, constants: str) -> None:
    graph = _reduction(tmp_path, node, constants)
    assert find_source(graph, None, OLD, {}) == graph.path


def test_axes_that_a_batch_may_feed_are_left_as_they_are(tmp_path: Path) -> None:
    text = "g (float[2,3,4] x, int64[1] axes = {1}) => (float[2,1,4] y) { y = ReduceMean(x, axes) }"
    graph = load_graph(write_model(tmp_path, text, opset=18))
    assert find_source(graph, None, OLD, {}) == graph.path


@pytest.mark.parametrize(("opset", "is_doubted"), [(17, False), (18, True)])
def test_a_model_of_an_opset_that_came_after_the_parser_is_doubted(
    tmp_path: Path, opset: int, is_doubted: bool
) -> None:
    graph = load_graph(write_model(tmp_path, "g (float[2] x) => (float[2] y) { y = Abs(x) }", opset=opset))
    assert doubt_opset(graph, NEW) == ""
    expected = "The model is of opset 18, and the parser of TensorRT 8.6.1 was made for 17 and older"
    assert doubt_opset(graph, OLD).startswith(expected) == is_doubted
    assert bool(doubt_opset(graph, OLD)) == is_doubted


def test_the_doubt_is_told_where_the_model_is_refused(tmp_path: Path) -> None:
    graph = load_graph(write_model(tmp_path, "g (float[2] x) => (float[2] y) { y = Abs(x) }", opset=18))
    trt = fake_tensorrt("8.6", Script(parse_errors=["no importer"]))
    with use_standin_gpu(trt), pytest.raises(BackendError, match="The model is of opset 18"):
        parse_graph(trt, OLD, graph, None, "weak", {})


# ---------------------------------------------------------------- parts of shapes, taken for the whole


def _shape(folder: Path, ends: str) -> Graph:
    """A model that gives, of a [2, 3, 4], the sizes."""
    text = f"g (float[2,3,n] x) => (int64[k] y) {{ s = Shape{ends}(x) y = Neg(s) }}"
    return load_graph(write_model(folder, text, opset=18))


@pytest.mark.parametrize(
    "ends",
    [
        "<start=1>",
        "<end=2>",
        "<start=1,end=2>",
        "<start=-2>",
        "<end=-1>",
        "<start=-9,end=9>",
        "<start=2,end=1>",
    ],
)
def test_a_part_of_a_shape_is_a_slice_of_the_whole(tmp_path: Path, ends: str) -> None:
    """So a parser that overlooks `start` and `end` of a Shape has the part."""
    graph = _shape(tmp_path, ends)
    before = graph.model.SerializeToString()
    source = find_source(graph, None, OLD, {})
    assert isinstance(source, bytes)
    shape, *constants, cut, _ = onnx.ModelProto.FromString(source).graph.node
    assert (shape.op_type, list(shape.attribute), cut.op_type, cut.output[0]) == ("Shape", [], "Slice", "s")
    assert {one.op_type for one in constants} == {"Constant"}
    np.testing.assert_array_equal(_run(source), _run(graph.path.read_bytes()))
    assert graph.model.SerializeToString() == before
    assert find_source(graph, None, NEW, {}) == graph.path


@pytest.mark.parametrize("ends", ["", "<start=0>"])
def test_a_whole_shape_is_left(tmp_path: Path, ends: str) -> None:
    graph = _shape(tmp_path, ends)
    assert find_source(graph, None, OLD, {}) == graph.path


def test_names_that_are_taken_are_not_given_to_what_slices_a_shape(tmp_path: Path) -> None:
    text = """g (float[2,3,4] x) => (int64[1] y) {
        whole_shape_0_sizes = Shape<start=1,end=2>(x) t = Shape<start=2>(x) y = Add(whole_shape_0_sizes, t)
    }"""
    graph = load_graph(write_model(tmp_path, text, opset=18))
    source = find_source(graph, None, OLD, {})
    assert isinstance(source, bytes)
    onnx.checker.check_model(onnx.ModelProto.FromString(source))
    assert _run(source) == _run(graph.path.read_bytes()) == [7]


# ---------------------------------------------------------------- modes by names that the parser does not know


@pytest.mark.parametrize("found", [OLD, NEW])
@pytest.mark.parametrize(
    ("attributes", "opset", "expected"),
    [
        ('<mode="linear">', 20, "bilinear"),
        ('<padding_mode="border", mode="cubic">', 20, "bicubic"),
        ('<mode="nearest">', 20, None),
        ("", 20, None),
        ('<mode="bilinear">', 17, None),
    ],
)
def test_modes_of_a_grid_sample_have_the_names_that_the_parser_knows(
    tmp_path: Path, attributes: str, opset: int, expected: str | None, found: Capabilities
) -> None:
    text = (
        f"g (float[1,1,4,4] x, float[1,2,2,2] g) => (float[1,1,2,2] y) {{ y = GridSample{attributes}(x, g) }}"
    )
    graph = load_graph(write_model(tmp_path, text, opset=opset))
    source = find_source(graph, None, found, {})
    if expected is None:
        assert source == graph.path
        return
    assert isinstance(source, bytes)
    (sample,) = onnx.ModelProto.FromString(source).graph.node
    assert {one.name: one.s.decode() for one in sample.attribute}["mode"] == expected
    assert len(sample.attribute) == attributes.count("=")


# ---------------------------------------------------------------- bounds that are none


@pytest.mark.parametrize(
    ("reads", "kept"),
    [
        (["x", "low", "inf"], ["x", "low", ""]),
        (["x", "minus_inf", "high"], ["x", "", "high"]),
        (["x", "minus_inf", "inf"], ["x", "", ""]),
        (["x", "", "made"], ["x", "", ""]),
        (["x", "low", "high"], None),
        (["x", "inf", "minus_inf"], None),
        (["x", "low"], None),
        (["x", "low", "fed"], None),
    ],
)
def test_an_infinite_bound_of_a_clip_is_left_out(
    tmp_path: Path, reads: list[str], kept: list[str] | None
) -> None:
    numbers = {"low": -0.5, "high": 0.5, "inf": np.inf, "minus_inf": -np.inf}
    constants = {name: np.float32(value) for name, value in numbers.items()}
    nodes = [node("Identity", "inf", "made"), helper.make_node("Clip", reads, ["y"])]
    inputs = {"x": [2, 3, 4], "fed": []}
    graph = save(make_model(nodes, inputs, "y", constants), tmp_path)
    source = find_source(graph, None, NEW, {})
    if kept is None:
        assert source == graph.path
        return
    assert isinstance(source, bytes)
    assert list(onnx.ModelProto.FromString(source).graph.node[-1].input) == kept
    x = np.array([np.nan, -3.4e38, 3.4e38, *np.linspace(-1, 1, 21)], np.float32)
    feeds = {"x": x.reshape(2, 3, 4), "fed": np.asarray(1, np.float32)}
    before, after = (
        onnxruntime.InferenceSession(m).run(None, feeds) for m in (graph.path.read_bytes(), source)
    )
    np.testing.assert_array_equal(after, before)


# ---------------------------------------------------------------- dimensions of one name

_SQUARE = {"x": ShapeRange((1, 4), (1, 4), (8, 8)), "z": ShapeRange((1, 4), (1, 4), (8, 8))}


@pytest.mark.parametrize(
    ("x", "z", "shapes", "unequal"),
    [
        ("n c", "n c", _SQUARE, ""),
        ("n c", "n c", {}, ""),
        ("n c", "n c", {"x": ShapeRange((1, 4), (2, 4), (8, 4))}, ""),
        ("n c", "n c", _SQUARE | {"z": ShapeRange((1, 4), (1, 4), (8, 9))}, "x1 z1"),
        ("n c", "n c", _SQUARE | {"z": ShapeRange((1, 4), (2, 4), (8, 8))}, "x0 z0"),
        ("n c", "n c", _SQUARE | {"z": ShapeRange((1, 3), (1, 4), (8, 8))}, "x1 z1"),
        ("? ?", "n c", _SQUARE, "x0 x1"),
        ("s s", "n s", _SQUARE, "x0 x1 z1"),
        ("4 4", "4 4", dict.fromkeys("xz", ShapeRange((4, 4), (4, 4), (4, 4))), ""),
    ],
)
def test_dimensions_that_need_not_be_equal_get_names_of_their_own(
    tmp_path: Path, x: str, z: str, shapes: dict[str, ShapeRange], unequal: str
) -> None:
    """Those of one input may differ in a batch though their ranges do not."""
    dims = {name: [int(d) if d.isdigit() else d for d in told.split()] for name, told in (("x", x), ("z", z))}
    nodes = [node("Abs", "x", "a"), node("Shape", "z", "b"), node("Expand", "a b", "y")]
    graph = save(make_model(nodes, dims, "y"), tmp_path)
    source = find_source(graph, None, NEW, shapes)
    assert isinstance(source, bytes) == bool(unequal)
    if not isinstance(source, bytes):
        return
    changed = onnx.ModelProto.FromString(source)
    names = {
        f"{info.name}{axis}": dim.dim_param
        for info in changed.graph.input
        for axis, dim in enumerate(info.type.tensor_type.shape.dim)
    }
    assert " ".join(sorted(place for place, name in names.items() if "." in name)) == unequal
    assert len({name for name in names.values() if "." in name}) == len(unequal.split())
    onnxruntime.InferenceSession(source)


# ---------------------------------------------------------------- open dimensions that are refused

_OF_ONE_SIZE = {"x": ShapeRange((1, 3, 4), (1, 3, 4), (1, 3, 8))}


_SIGMOIDS = """g (float[4] x) => (float[4] moved, float[4] y) <float two = {2}> {
    hidden = Sigmoid(x) scaled = Mul(x, two) given = Sigmoid(scaled) moved = Identity(given)
    inner = Mul(hidden, two) y = Sigmoid(inner) }"""


def test_a_pinned_sigmoid_that_is_given_out_is_written_out(tmp_path: Path) -> None:
    """TensorRT's own, in FP32 where FP16 is allowed, is in steps of 2^-24; others are as they were."""
    model = onnx.load(write_model(tmp_path, _SIGMOIDS))
    for number, one in enumerate(model.graph.node):
        one.name = f"node {number}"
    onnx.save(model, tmp_path / "model.onnx")
    graph = load_graph(tmp_path / "model.onnx")
    labels = {node.outputs[0]: node.label for node in graph.nodes}
    plan = make_plan(graph, labels["given"], labels["hidden"])
    source = find_source(graph, plan, OLD, {})
    assert isinstance(source, bytes)
    nodes = onnx.ModelProto.FromString(source).graph.node
    assert [node.output[0] for node in nodes if node.op_type == "Sigmoid"] == ["hidden", "y"]
    names = {node.output[0]: node.name for node in nodes}
    assert len(set(names.values())) == len(names)
    assert names["given"] == labels["given"]
    x = np.array([-40, -8.5, 0, 3], np.float32)
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    moved, _ = session.run(None, {"x": x})
    np.testing.assert_allclose(moved, 1 / (1 + np.exp(-2 * x.astype(float))), rtol=1e-6)


def test_names_that_are_taken_are_not_given_to_what_writes_a_sigmoid_out(tmp_path: Path) -> None:
    text = """g (float[4] x) => (float[4] y, float[4] sigmoid_of_y__power) {
        sigmoid_of_y__power = Abs(x) y = Sigmoid(x) }"""
    graph = load_graph(write_model(tmp_path, text))
    source = find_source(graph, make_plan(graph, graph.nodes[1].label), OLD, {})
    assert isinstance(source, bytes)
    onnx.checker.check_model(onnx.ModelProto.FromString(source))
    assert "Sigmoid" not in [one.op_type for one in onnx.ModelProto.FromString(source).graph.node]


@pytest.mark.parametrize("pinned", [[], ["hidden"]])
def test_no_other_sigmoid_changes_what_tensorrt_is_given(tmp_path: Path, pinned: list[str]) -> None:
    graph = load_graph(write_model(tmp_path, _SIGMOIDS))
    labels = [node.label for node in graph.nodes if node.outputs[0] in pinned]
    assert find_source(graph, make_plan(graph, *labels), OLD, {}) == graph.path


def _parse_open(folder: Path, script: Script, shapes: dict[str, ShapeRange]) -> ParsedNetwork:
    """A model of which the first and the last dimension are open, refused as the script says."""
    text = "g (float[n,3,w] x) => (float[n,3,w] y) { y = Abs(x) }"
    graph = load_graph(write_model(folder, text, opset=17))
    trt = fake_tensorrt("8.6", script)
    with use_standin_gpu(trt):
        return parse_graph(trt, OLD, graph, None, "weak", shapes)


def _read_dims(parsed: tuple[bytes, str]) -> list[int | str]:
    dims = onnx.ModelProto.FromString(parsed[0]).graph.input[0].type.tensor_type.shape.dim
    return [dim.dim_param or dim.dim_value for dim in dims]


def test_a_model_that_is_refused_gets_the_sizes_that_there_is_no_choice_of(tmp_path: Path) -> None:
    script = Script(parse_errors=["Cannot infer squeeze dimensions"], refused_parsings=1)
    parsed = _parse_open(tmp_path, script, _OF_ONE_SIZE)
    first, second = script.parsed
    assert (first, _read_dims(second)) == (str(tmp_path / "model.onnx"), [1, 3, "w"])
    assert parsed.source == second[0]
    assert parsed.note == (
        "The model was given the sizes that the data, or --profile, leave no choice of (1 of 'x' along axis 0), and the engine "
        "takes no others: TensorRT 8.6.1 refuses it as it is (Cannot infer squeeze dimensions)."
    )


def test_a_model_that_is_taken_keeps_its_open_dimensions(tmp_path: Path) -> None:
    script = Script()
    parsed = _parse_open(tmp_path, script, _OF_ONE_SIZE)
    assert (script.parsed, parsed.note) == ([str(tmp_path / "model.onnx")], "")


def test_what_is_refused_with_those_sizes_too_is_told_as_of_the_model_itself(tmp_path: Path) -> None:
    script = Script(parse_errors=["no importer"])
    with pytest.raises(BackendError, match=r"cannot take .*no importer") as refused:
        _parse_open(tmp_path, script, _OF_ONE_SIZE)
    assert len(script.parsed) == 2
    assert refused.value.__suppress_context__


@pytest.mark.parametrize("shapes", [{}, {"x": ShapeRange((1, 3, 4), (2, 3, 4), (2, 3, 8))}])
def test_nothing_is_tried_where_every_open_dimension_has_a_choice(
    tmp_path: Path, shapes: dict[str, ShapeRange]
) -> None:
    script = Script(parse_errors=["no importer"])
    with pytest.raises(BackendError, match="no importer"):
        _parse_open(tmp_path, script, shapes)
    assert len(script.parsed) == 1
