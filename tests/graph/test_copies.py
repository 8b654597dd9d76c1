"""Copies of a model: its weights stay in its file, are put back where asked, and never come from another file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.copies import add_nodes, copy_model, copy_shell, embed_weights
from overflow_fixer.graph.model import load_graph
from overflow_fixer.records import Batch
from overflow_fixer.sessions.session import SessionRunner, open_session

LARGE = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
SMALL = np.arange(64, dtype=np.float32)
X = Batch("b", {"x": np.ones((3, 64), np.float32)})


def _write(path: Path, **saving: object) -> Path:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "large"], ["m"]), helper.make_node("Add", ["m", "small"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [numpy_helper.from_array(LARGE, "large"), numpy_helper.from_array(SMALL, "small")],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    onnx.save(model, path, **saving)
    return path


def _run(model: onnx.ModelProto, folder: Path) -> np.ndarray:
    return SessionRunner(open_session(model, folder)).run(X)["y"]


def test_a_copy_has_no_large_weight_in_it_and_runs_the_same(tmp_path: Path) -> None:
    graph = load_graph(_write(tmp_path / "a model.onnx"))
    before = graph.model.SerializeToString()
    copied = copy_model(graph)
    assert copied.ByteSize() < LARGE.nbytes / 4
    assert [t.data_location for t in copied.graph.initializer] == [TensorProto.EXTERNAL, TensorProto.DEFAULT]
    assert graph.model.SerializeToString() == before
    np.testing.assert_array_equal(_run(copied, graph.folder), _run(graph.model, graph.folder))


def test_embedded_weights_are_those_of_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.onnx")
    graph = load_graph(path)
    copied = copy_model(graph)
    embed_weights(copied, graph)
    assert {t.name: t.raw_data for t in copied.graph.initializer} == {
        t.name: t.raw_data for t in onnx.load(path).graph.initializer
    }
    assert [t.data_location for t in copied.graph.initializer] == [TensorProto.DEFAULT] * 2
    np.testing.assert_array_equal(_run(copied, tmp_path / "elsewhere"), _run(graph.model, graph.folder))


def test_weights_in_another_file_stay_there(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=LARGE.nbytes
    )
    graph = load_graph(path)
    copied = copy_model(graph)
    embed_weights(copied, graph)
    assert [t.name for t in graph.external_tensors()] == ["large"]
    assert [t.data_location for t in copied.graph.initializer] == [TensorProto.EXTERNAL, TensorProto.DEFAULT]
    assert graph.data_files == (tmp_path / "w.bin",)


@pytest.mark.parametrize("change", ["rewritten", "gone"])
@pytest.mark.parametrize("outside", [False, True])
def test_a_file_that_changed_is_refused(tmp_path: Path, change: str, outside: bool) -> None:
    saving = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0} if outside else {}
    path = _write(tmp_path / "m.onnx", **saving)
    graph = load_graph(path)
    changed = tmp_path / "w.bin" if outside else path
    content = changed.read_bytes()
    changed.unlink()
    if change == "rewritten":
        changed.write_bytes(content)
    for use in (
        copy_model,
        lambda graph: embed_weights(onnx.ModelProto(), graph),
        lambda graph: graph.sha256,
    ):
        with pytest.raises(ModelError, match=f"{changed.name} changed while it was in use"):
            use(graph)


def test_an_inlined_model_keeps_its_weights_in_the_file(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.onnx")
    model = onnx.load(path)
    double = helper.make_function(
        "own", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], model.opset_import
    )
    model.functions.append(double)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.append(helper.make_node("Double", ["y"], ["z"], domain="own"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 64]))
    onnx.save(model, path)
    graph = load_graph(path)
    copied = copy_model(graph)
    assert copied.ByteSize() < LARGE.nbytes / 4
    found = SessionRunner(open_session(copied, graph.folder)).run(X)
    np.testing.assert_array_equal(found["z"], found["y"] * 2)


def _write_noted(path: Path) -> Path:
    """Two nodes, one of them of another domain, with what exporters note about each and its output."""
    made = [
        helper.make_node("Neg", ["x"], ["a"], name="first", doc_string="line 7"),
        helper.make_node("Own", ["a"], ["b"], name="second", domain="own", doc_string="line 8"),
    ]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "abx"]
    graph = helper.make_graph(made, "g", infos[2:], infos[1:2], value_info=infos[:2])
    for node in graph.node:
        node.metadata_props.add(key="trace", value="forward")
    model = helper.make_model(
        graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    )
    path.write_bytes(model.SerializeToString())
    return path


def test_a_shell_records_only_the_types_that_nobody_could_tell(tmp_path: Path) -> None:
    graph = load_graph(_write_noted(tmp_path / "m.onnx"))
    shell = copy_shell(graph)
    assert [info.name for info in shell.graph.value_info] == ["b"]
    assert not shell.graph.node
    assert not shell.graph.output
    whole = copy_model(graph).graph
    assert whole.value_info == graph.model.graph.value_info
    assert whole.node == graph.model.graph.node
    assert whole.output == graph.model.graph.output


def test_added_nodes_are_copies_without_notes(tmp_path: Path) -> None:
    graph = load_graph(_write_noted(tmp_path / "m.onnx"))
    shell = copy_shell(graph)
    add_nodes(shell, (node.proto for node in graph.nodes))
    add_nodes(shell, [helper.make_node("Abs", ["b"], ["c"])])
    assert [node.name for node in shell.graph.node] == ["first", "second", ""]
    assert not any(node.doc_string or node.metadata_props for node in shell.graph.node)
    assert all(node.proto.doc_string and node.proto.metadata_props for node in graph.nodes)
