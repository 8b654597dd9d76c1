"""What the stages see of a model: labels, types, constants, what control flow reads, and what is refused."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from sparse_tensors import make_sparse

from overflow_fixer.errors import ModelError
from overflow_fixer.graph import model as graph_module
from overflow_fixer.graph.model import load_graph
from overflow_fixer.graph.tensor_types import infer_shapes
from overflow_fixer.sessions.session import open_session

FLOAT = TensorProto.FLOAT


def _info(name: str, elem_type: int = FLOAT, dims: list[int | str] | None = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem_type, dims)


def _save(
    folder: Path,
    nodes: list[onnx.NodeProto],
    initializers: list[TensorProto] | None = None,
    inputs: list[onnx.ValueInfoProto] | None = None,
    outputs: list[onnx.ValueInfoProto] | None = None,
    opset: int = 17,
) -> Path:
    inputs = inputs if inputs is not None else [_info("x", dims=["n", 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs or [_info("y")], initializers or [])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_a_model_without_outputs_is_refused(tmp_path: Path) -> None:
    path = _save(tmp_path, [helper.make_node("Relu", ["x"], ["y"])])
    model = onnx.load(path)
    del model.graph.output[:]
    onnx.save(model, path)
    with pytest.raises(ModelError, match=r"has 1 node and no output\. Expected one output at least"):
        load_graph(path)


def test_labels_are_unique_and_name_the_first_output_where_the_name_cannot(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="same"),
        helper.make_node("Relu", ["a"], ["b"], name="same"),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Relu", ["c"], ["c_"]),
        helper.make_node("Relu", ["c_"], ["y"], name="node_of_c"),
    ]
    graph = load_graph(_save(tmp_path, nodes))
    labels = [node.label for node in graph.nodes]
    assert labels == ["node_of_a", "node_of_b", "node_of_c_", "node_of_c__", "node_of_c"]
    assert len(graph.by_label) == 5


def test_names_that_nodes_share_are_dropped_in_bodies_too(tmp_path: Path) -> None:
    """ONNX Runtime refuses a model with them."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x, bool c) => (float[4] y) {
        y = If (c) <
            then_branch = t () => (float[4] o) { [same] a = Neg (x) [same] o = Abs (a) },
            else_branch = e () => (float[4] p) { [other] b = Abs (x) [single] p = Neg (b) }
        >
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    with pytest.raises(ModelError):
        open_session(tmp_path / "m.onnx", tmp_path)
    graph = load_graph(tmp_path / "m.onnx")
    feeds = {"x": np.float32([-1, 0, 1, 2]), "c": np.array(True)}
    (found,) = open_session(graph.model, graph.folder).run(None, feeds)
    assert found.tolist() == [1, 0, 1, 2]


def test_types_come_from_inference_and_from_onnx_runtime_where_it_knows_nothing(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        helper.make_node("Shape", ["g"], ["s"]),
        helper.make_node("Cast", ["g"], ["d"], to=TensorProto.DOUBLE),
        helper.make_node("SequenceConstruct", ["d"], ["q"]),
        helper.make_node("SequenceAt", ["q", "zero"], ["y"]),
    ]
    zero = numpy_helper.from_array(np.int64(0), "zero")
    graph = load_graph(_save(tmp_path, nodes, [zero], outputs=[_info("y", TensorProto.DOUBLE)]))
    assert graph.dtypes["g"] == FLOAT
    assert graph.dtypes["s"] == TensorProto.INT64
    assert graph.dtypes["y"] == TensorProto.DOUBLE
    assert "q" not in graph.dtypes
    assert graph.is_float("y")
    assert not graph.is_float("s")
    assert not graph.is_float("q")


def test_tensors_producers_and_consumers(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"], name="add"),
        helper.make_node("Mul", ["a", "a"], ["m"], name="mul"),
        helper.make_node("Sub", ["a", "m"], ["y"], name="sub"),
    ]
    graph = load_graph(_save(tmp_path, nodes, [numpy_helper.from_array(np.ones(4, np.float32), "w")]))
    assert graph.tensors == ("x", "w", "a", "m", "y")
    assert graph.producers["m"].label == "mul"
    assert [node.label for node in graph.consumers["a"]] == ["mul", "sub"]
    assert graph.inputs[0].dims == ("n", 4)
    assert [spec.name for spec in graph.inputs] == ["x"]


def test_copies_of_constants_are_told_with_what_they_copy(tmp_path: Path) -> None:
    """Whatever holds it, and however often it is copied."""
    held = numpy_helper.from_array(np.ones(4, np.float32), "")
    nodes = [
        helper.make_node("Constant", [], ["k"], value=held),
        helper.make_node("Identity", ["w"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Identity", ["k"], ["c"]),
        helper.make_node("Identity", ["x"], ["d"]),
        helper.make_node("Identity", ["d"], ["e"]),
        helper.make_node("Sum", ["b", "c", "e"], ["y"]),
    ]
    graph = load_graph(_save(tmp_path, nodes, [numpy_helper.from_array(np.ones(4, np.float32), "w")]))
    assert graph.copied_constants == {"a": "w", "b": "w", "c": "k"}


def test_what_bodies_capture_is_read_by_their_node(tmp_path: Path) -> None:
    inner = helper.make_graph([helper.make_node("Mul", ["deep", "w"], ["i"])], "inner", [], [_info("i")])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["j"])], "other", [], [_info("j")])
    middle = helper.make_graph(
        [
            helper.make_node("Abs", ["x"], ["deep"]),
            helper.make_node("If", ["c"], ["k"], then_branch=inner, else_branch=other),
        ],
        "middle",
        [],
        [_info("k")],
    )
    outer = helper.make_graph([helper.make_node("Relu", ["x"], ["l"])], "outer", [], [_info("l")])
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=middle, else_branch=outer, name="if")]
    inputs = [_info("x", dims=[4]), _info("c", TensorProto.BOOL, [])]
    graph = load_graph(_save(tmp_path, nodes, [numpy_helper.from_array(np.ones(4, np.float32), "w")], inputs))
    assert set(graph.by_label["if"].captured) == {"x", "w", "c"}
    assert [node.label for node in graph.consumers["w"]] == ["if"]


@pytest.mark.parametrize(
    ("attributes", "value"),
    [
        ({"value": numpy_helper.from_array(np.float32([1, 2]))}, [1, 2]),
        ({"value_float": 0.5}, 0.5),
        ({"value_floats": [0.5, 1.5]}, [0.5, 1.5]),
        ({"value_int": 3}, 3),
        ({"value_ints": [3, 4]}, [3, 4]),
    ],
)
def test_every_form_of_constant_is_read(tmp_path: Path, attributes: dict[str, object], value: object) -> None:
    nodes = [helper.make_node("Constant", [], ["c"], **attributes), helper.make_node("Relu", ["x"], ["y"])]
    graph = load_graph(_save(tmp_path, nodes))
    constant = graph.read_constant("c")
    assert constant.tolist() == value
    assert graph.find_constant("y") is None


def test_initializers_that_are_inputs_too_need_not_be_fed(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    graph = load_graph(_save(tmp_path, nodes, [weight], [_info("x", dims=[4]), _info("w", dims=[4])]))
    assert [spec.name for spec in graph.inputs] == ["x"]
    assert graph.tensors == ("x", "w", "y")


def test_large_weights_do_not_hinder_shapes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["y"]),
    ]
    weights = [
        numpy_helper.from_array(np.ones((4, 600), np.float32), "w"),
        numpy_helper.from_array(np.int64([-1, 2, 300]), "shape"),
    ]
    graph = load_graph(_save(tmp_path, nodes, weights))
    assert graph.sure_shapes["m"] == ("n", 600)
    assert graph.sure_shapes["y"][1:] == (2, 300)
    assert infer_shapes(graph.model, {"x": (6, 4)})["y"] == (6, 2, 300)


def test_nodes_out_of_order_are_sorted(tmp_path: Path) -> None:
    """ONNX Runtime sorts them too, also by what a body reads of the graph around it."""
    then = helper.make_graph([helper.make_node("Neg", ["late"], ["t"])], "then", [], [_info("t")])
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["e"])], "else", [], [_info("e")])
    nodes = [
        helper.make_node("If", ["flag"], ["y"], then_branch=then, else_branch=other),
        helper.make_node("Relu", ["a"], ["late"]),
        helper.make_node("Neg", ["x"], ["a"]),
    ]
    graph = load_graph(_save(tmp_path, nodes, [numpy_helper.from_array(np.array(True), "flag")]))
    assert [node.op_type for node in graph.nodes] == ["Neg", "Relu", "If"]
    assert [node.index for node in graph.nodes] == [0, 1, 2]
    assert [proto.op_type for proto in graph.model.graph.node] == ["Neg", "Relu", "If"]
    assert [node.proto.output[0] for node in graph.nodes] == ["a", "late", "y"]
    assert graph.is_float("late")


def test_nodes_in_a_circle_are_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    with pytest.raises(ModelError, match=r"goes round in a circle: 'node_of_[ab]', 'node_of_[ab]'"):
        load_graph(_save(tmp_path, nodes))


def test_a_path_may_be_text(tmp_path: Path) -> None:
    path = _save(tmp_path, [helper.make_node("Identity", ["x"], ["y"])])
    assert load_graph(str(path)).path == path


def test_sha256_covers_external_data(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "w"], ["y"])]
    model = onnx.load(_save(tmp_path, nodes, [numpy_helper.from_array(np.ones(4, np.float32), "w")]))
    onnx.save(model, tmp_path / "e.onnx", save_as_external_data=True, location="e.bin", size_threshold=0)
    before = load_graph(tmp_path / "e.onnx").sha256
    (tmp_path / "e.bin").write_bytes(np.full(4, 2, np.float32).tobytes())
    graph = load_graph(tmp_path / "e.onnx")
    assert graph.sha256 != before
    assert graph.read_constant("w").tolist() == [2, 2, 2, 2]


def test_a_file_that_is_written_while_it_is_hashed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = load_graph(_save(tmp_path, [helper.make_node("Identity", ["x"], ["y"])]))

    def write(paths: list[Path]) -> str:
        os.utime(paths[0], ns=(1, 1))
        return "of neither"

    monkeypatch.setattr(graph_module, "sha256_of", write)
    with pytest.raises(ModelError, match="changed while it was in use"):
        _ = graph.sha256


def test_files_that_were_not_written_since_are_not_hashed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper_nodes = [helper.make_node("Identity", ["x"], ["y"])]
    path = _save(tmp_path, helper_nodes)
    first = load_graph(path)
    sha256, stamp = first.sha256, first.stamp
    monkeypatch.setattr(graph_module, "sha256_of", lambda paths: "another")
    assert load_graph(path).has_sha256(sha256, stamp)
    assert not load_graph(path).has_sha256(sha256, "")
    os.utime(path, ns=(1, 1))
    assert load_graph(path).stamp != stamp
    assert not load_graph(path).has_sha256(sha256, stamp)
    assert load_graph(path).has_sha256("another", stamp)


def test_sparse_constants_are_dense_in_bodies_too(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x, bool c) => (float[4] y) {
        a = Add (x, s)
        y = If (c) <
            then_branch = t () => (float[4] o) { o = Mul (a, r) },
            else_branch = e () => (float[4] o) { o = Neg (a) }
        >
    }"""
    model = onnx.parser.parse_model(text)
    model.graph.sparse_initializer.append(make_sparse("s", [3, 2e5], [1, 2], [4]))
    branch = model.graph.node[1].attribute[0].g
    held = helper.make_node("Constant", [], ["r"], sparse_value=make_sparse("r", [3, 2e5], [1, 2], [4]))
    branch.node.insert(0, held)
    onnx.save(model, tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    dense = np.array([0, 3, 2e5, 0], np.float32)
    np.testing.assert_array_equal(graph.read_constant("s"), dense)
    assert graph.dtypes["s"] == TensorProto.FLOAT
    assert [node.op_type for node in graph.nodes] == ["Add", "If"]
    feeds = {"x": np.arange(4, dtype=np.float32), "c": np.array(True)}
    (found,) = open_session(graph.model, graph.folder).run(None, feeds)
    np.testing.assert_array_equal(found, (feeds["x"] + dense) * dense)


def test_a_sparse_initializer_that_is_an_input_too_is_a_default(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x, float[4] s) => (float[4] y) { y = Add (x, s) }"""
    model = onnx.parser.parse_model(text)
    model.graph.sparse_initializer.append(make_sparse("s", [3, 2e5], [1, 2], [4]))
    onnx.save(model, tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    assert graph.defaults == {"s"}
    assert [spec.name for spec in graph.inputs] == ["x"]
