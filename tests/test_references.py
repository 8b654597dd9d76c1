"""Weights that stay in the model's file, and what is done where they do not lie there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.graph import load_graph
from overflow_fixer.records import Batch
from overflow_fixer.references import Extent, copy_model, find_weights
from overflow_fixer.sessions import SessionRunner, open_session

LARGE = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
SMALL = np.arange(64, dtype=np.float32)
X = Batch("b", {"x": np.ones((3, 64), np.float32)})


def _write(path: Path, *, raw: bool = True, large: np.ndarray = LARGE, **saving: object) -> Path:
    weight = (
        numpy_helper.from_array(large, "large")
        if raw
        else helper.make_tensor("large", TensorProto.FLOAT, large.shape, large.ravel())
    )
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "large"], ["m"]), helper.make_node("Add", ["m", "small"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        [weight, numpy_helper.from_array(SMALL, "small")],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 13)])
    onnx.save(model, path, **saving)
    return path


def _run(model: onnx.ModelProto, folder: Path) -> np.ndarray:
    return SessionRunner(open_session(model, folder)).run(X)["y"]


def test_a_large_weight_is_found_where_it_lies(tmp_path: Path) -> None:
    path = _write(tmp_path / "a model.onnx")
    (name, extent), *others = find_weights(path).items()
    assert (name, others) == ("large", [])
    content = path.read_bytes()
    assert content[extent.offset : extent.offset + extent.length] == LARGE.tobytes()


def test_a_copy_has_no_large_weight_in_it_and_runs_the_same(tmp_path: Path) -> None:
    graph = load_graph(_write(tmp_path / "a model.onnx"))
    before = graph.model.SerializeToString()
    copied = copy_model(graph)
    assert copied.ByteSize() < LARGE.nbytes / 4
    assert [t.data_location for t in copied.graph.initializer] == [TensorProto.EXTERNAL, TensorProto.DEFAULT]
    assert graph.model.SerializeToString() == before
    np.testing.assert_array_equal(_run(copied, graph.folder), _run(graph.model, graph.folder))


@pytest.mark.parametrize(
    "saving",
    [{"raw": False}, {"save_as_external_data": True, "location": "w.bin"}],
    ids=["typed", "external"],
)
def test_what_does_not_lie_there_is_copied(tmp_path: Path, saving: dict[str, object]) -> None:
    graph = load_graph(_write(tmp_path / "m.onnx", **saving))
    assert find_weights(graph.path) == {}
    np.testing.assert_allclose(_run(copy_model(graph), graph.folder), X.feeds["x"] @ LARGE + SMALL, rtol=1e-5)


def test_a_file_that_was_written_anew_is_not_referred_to(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.onnx")
    graph = load_graph(path)
    expected = _run(graph.model, graph.folder)
    _write(path, large=LARGE + 1)
    np.testing.assert_array_equal(_run(copy_model(graph), graph.folder), expected)
    path.unlink()
    np.testing.assert_array_equal(_run(copy_model(graph), graph.folder), expected)


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


@pytest.mark.parametrize(
    "content", [b"", b"not a model", bytes(range(256)) * 40, b"\x3a\xff\xff\xff\xff\x7f"]
)
def test_what_is_no_model_has_no_weights(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert find_weights(path) == {}
    assert find_weights(tmp_path / "nowhere") == {}


def test_a_truncated_model_leads_nowhere(tmp_path: Path) -> None:
    path = _write(tmp_path / "m.onnx")
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        for extent in find_weights(path).values():
            assert extent == Extent(extent.offset, LARGE.nbytes)
