"""Models read without their weights: what is left out lies where the reference says, and nothing else is lost."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models_with_weights import COUNT, FORMS, VALUES, branch, held, model_of, model_with_bodies, typed
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.copies import copy_model, embed_weights
from overflow_fixer.graph.model import load_graph
from overflow_fixer.model_file.external_data import external_tensors
from overflow_fixer.model_file.reading import LEAST_BYTES, _message, read_model
from overflow_fixer.model_file.weights import read_pieces, read_values
from overflow_fixer.sessions.session import open_session

IN_THE_MESSAGE = {
    "small": numpy_helper.from_array(VALUES[1:], "w"),
    "int64 list": typed("w", TensorProto.INT64, np.arange(COUNT)),
    "FP16 list": typed("w", TensorProto.FLOAT16, np.tile(VALUES, 2).astype(np.float16)),
    "complex list": typed("w", TensorProto.COMPLEX64, np.tile(VALUES, 2).astype(np.complex64)),
    "strings": helper.make_tensor("w", TensorProto.STRING, [1], [b"x" * LEAST_BYTES]),
    "long name": TensorProto(name="w" * LEAST_BYTES, data_type=TensorProto.FLOAT, dims=[1], float_data=[1]),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_large_weight_becomes_a_reference_into_the_file(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a model.onnx"
    onnx.save(model_of([numpy_helper.from_array(VALUES[:3], "small"), FORMS[form]]), path)
    read = read_model(path)
    small, large = read.graph.initializer
    assert read.ByteSize() < 1000
    assert (small.data_location, large.data_location) == (TensorProto.DEFAULT, TensorProto.EXTERNAL)
    expected = numpy_helper.to_array(FORMS[form])
    np.testing.assert_array_equal(read_values(large, tmp_path), expected, strict=True)
    pieces = [piece.copy() for piece in read_pieces(large, tmp_path, memoryview(bytearray(512)))]
    np.testing.assert_array_equal(np.concatenate(pieces), expected.ravel(), strict=True)


@pytest.mark.parametrize("form", [*FORMS, *IN_THE_MESSAGE])
def test_all_else_is_what_protobuf_reads(tmp_path: Path, form: str) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_of([(FORMS | IN_THE_MESSAGE)[form], numpy_helper.from_array(VALUES[:2], "last")]), path)
    read, expected = read_model(path), onnx.load(path)
    assert (read.graph.initializer[0].data_location == TensorProto.EXTERNAL) == (form in FORMS)
    assert read.graph.initializer[0].doc_string == expected.graph.initializer[0].doc_string
    for tensor, whole in zip(read.graph.initializer, expected.graph.initializer, strict=True):
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(whole)
    assert read == expected


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("flag", [True, False])
def test_weights_of_constant_nodes_and_of_bodies_are_references_too(
    flag: bool, optimize: bool, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_with_bodies(), path)
    read = read_model(path)
    assert read.ByteSize() < 2000
    graph = load_graph(path)
    assert len([t for t in external_tensors(graph.model) if graph.holds(t)]) == 4
    session = open_session(copy_model(graph), graph.folder, optimize=optimize)
    x = np.ones(COUNT, np.float32)
    (found,) = session.run(None, {"x": x, "flag": np.array(flag)})
    h = x + VALUES
    np.testing.assert_array_equal(found, h + 4 * VALUES + 2 * VALUES if flag else h - 3 * VALUES, strict=True)


def test_what_stands_in_the_file_again_is_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_with_bodies(), path)
    graph = load_graph(path)
    model = copy_model(graph)
    embed_weights(model, graph)
    assert model.graph.node == onnx.load(path).graph.node


@pytest.mark.parametrize("domain", ["ai.onnx", "own"])
def test_a_constant_of_another_domain_is_left_as_it_is(domain: str, tmp_path: Path) -> None:
    model = model_of([])
    model.graph.node.append(held("c", VALUES, domain=domain))
    model.opset_import.append(helper.make_opsetid("own", 1))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    read = read_model(tmp_path / "m.onnx")
    assert (read.ByteSize() < 1000) == (domain == "ai.onnx")
    assert domain == "ai.onnx" or read == model


def test_other_tensors_of_nodes_are_left_as_they_are(tmp_path: Path) -> None:
    model = model_of([])
    tensor = numpy_helper.from_array(VALUES, "values")
    model.graph.node.append(
        helper.make_node("TreeEnsemble", ["x"], ["t"], domain="ai.onnx.ml", nodes_splits=tensor)
    )
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert read_model(tmp_path / "m.onnx") == model


def test_a_tensor_that_already_lies_elsewhere_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    saving = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(model_of([FORMS["raw"]]), path, **saving)
    assert read_model(path) == onnx.load(path, load_external_data=False)


def test_data_in_two_forms_is_left_to_protobuf(tmp_path: Path) -> None:
    twice = numpy_helper.from_array(VALUES, "w")
    twice.float_data.extend([1.0])
    path = tmp_path / "m.onnx"
    onnx.save(model_of([twice]), path)
    assert read_model(path) == onnx.load(path)


def test_pieces_of_a_weight_larger_than_one(tmp_path: Path) -> None:
    values = np.arange(2 * (1 << 16) + 17, dtype=np.float32)
    onnx.save(model_of([numpy_helper.from_array(values, "w")]), tmp_path / "m.onnx")
    (tensor,) = read_model(tmp_path / "m.onnx").graph.initializer
    pieces = [piece.copy() for piece in read_pieces(tensor, tmp_path, memoryview(bytearray(1 << 18)))]
    assert [piece.nbytes for piece in pieces] == [1 << 18, 1 << 18, 68]
    np.testing.assert_array_equal(np.concatenate(pieces), values)


def test_a_file_that_ends_within_a_weight_is_told(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_of([FORMS["raw"]]), path)
    (tensor,) = read_model(path).graph.initializer
    path.write_bytes(path.read_bytes()[: COUNT * 2])
    with pytest.raises(ModelError, match="ends within the data of tensor 'w'"):
        list(read_pieces(tensor, tmp_path, memoryview(bytearray(4096))))


@pytest.mark.parametrize(
    "content", [b"", b"not a model", bytes(range(256)) * 40, b"\x3a\xff\xff\xff\xff\x7f", b"\x3a"]
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"is not a whole ONNX model|has no graph in it"):
        read_model(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read"):
        read_model(tmp_path / "nowhere.onnx")
    with pytest.raises(ModelError, match="cannot be read"):
        read_model(tmp_path)


@settings(max_examples=60, deadline=None)
@given(
    end=st.integers(0, 1 << 16),
    damage=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4),
)
def test_a_truncated_or_damaged_model_never_crashes(
    end: int, damage: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "m.onnx"
    content = bytearray(model_of([FORMS["raw"], FORMS["floats"]]).SerializeToString())
    for place, value in damage:
        content[place % len(content)] = value
    path.write_bytes(content[: end % len(content)])
    try:
        read = read_model(path)
    except ModelError:
        return
    assert isinstance(read, onnx.ModelProto)


@pytest.mark.parametrize("depth", [20, 60, 200, 3000])
def test_bodies_in_bodies_are_read_or_refused(depth: int, tmp_path: Path) -> None:
    message = branch("o", [helper.make_node("Add", ["x", "w"], ["o"])], FORMS["raw"]).SerializeToString()
    for _ in range(depth):
        attribute = b"\x0a\x0bthen_branch" + _message(6, message) + b"\xa0\x01\x05"
        message = _message(1, _message(4, b"If") + _message(5, attribute))
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08" + _message(7, message))
    if depth == 20:
        assert read_model(tmp_path / "m.onnx").ByteSize() < 2000
    else:
        with pytest.raises(ModelError, match="not a whole ONNX model"):
            read_model(tmp_path / "m.onnx")


def test_a_number_without_an_end_is_none(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x3a" + b"\xff" * 200_000 + b"\x01")
    with pytest.raises(ModelError, match="not a whole ONNX model"):
        read_model(tmp_path / "m.onnx")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="POSIX has pipes with names")
def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.onnx")
    (tmp_path / "link.onnx").symlink_to("m.onnx")
    for name in ("m.onnx", "link.onnx"):
        with pytest.raises(ModelError, match="is not a regular file"):
            load_graph(tmp_path / name)
