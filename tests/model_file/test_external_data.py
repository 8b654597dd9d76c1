"""Files in which weights lie: which are read, behind links too, and which refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from models_with_weights import COUNT, FORMS, VALUES, held, model_of, model_with_bodies
from onnx import TensorProto, numpy_helper

from overflow_fixer.errors import ModelError
from overflow_fixer.graph.copies import copy_model, embed_weights
from overflow_fixer.graph.model import load_graph
from overflow_fixer.model_file.external_data import list_data_files
from overflow_fixer.sessions.session import open_session


def link_to(blob: Path, model: onnx.ModelProto, **saving: Any) -> Path:
    """The model in `blob`, behind a link to it in another folder."""
    blob.parent.mkdir()
    onnx.save(model, blob, **saving)
    link = blob.parent.parent / "snapshot" / "model.onnx"
    link.parent.mkdir()
    link.symlink_to(blob)
    return link


def test_a_model_behind_a_symbolic_link_is_left_in_its_file(tmp_path: Path) -> None:
    model = model_of([FORMS["raw"]])
    model.graph.node[0].op_type = "Add"
    model.graph.node[0].input.append("w")
    link = link_to(tmp_path / "blobs" / "0123", model)
    graph = load_graph(link)
    assert graph.model.ByteSize() < 1000
    assert (graph.path, graph.data_files, list_data_files(link)) == (link, (), ())
    assert list(graph.external_tensors()) == []
    np.testing.assert_array_equal(graph.read_constant("w"), VALUES)
    session = open_session(copy_model(graph), graph.folder)
    x = np.ones(COUNT, np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x + VALUES)
    whole = copy_model(graph)
    embed_weights(whole, graph)
    assert whole.graph.initializer == model.graph.initializer


def test_a_link_beside_which_other_data_lie_is_read_whole(tmp_path: Path) -> None:
    saving = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 5 * COUNT}
    large, larger = FORMS["raw"], numpy_helper.from_array(np.tile(VALUES, 2), "v")
    link = link_to(tmp_path / "blobs" / "0123", model_of([large, larger]), **saving)
    (link.parent / "w.bin").write_bytes((tmp_path / "blobs" / "w.bin").read_bytes())
    graph = load_graph(link)
    assert graph.data_files == list_data_files(link) == (link.parent / "w.bin",)
    assert graph.initializers["w"].data_location == TensorProto.DEFAULT
    np.testing.assert_array_equal(graph.read_constant("v"), np.tile(VALUES, 2))
    open_session(copy_model(graph), graph.folder)


def lay_out_as_cache(folder: Path) -> tuple[Path, Path]:
    """A model and its data as links to blobs, as Hugging Face's cache has them; and the blob of the data."""
    saving = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 5 * COUNT}
    larger = numpy_helper.from_array(np.tile(VALUES, 2), "v")
    link = link_to(folder / "blobs" / "aaa", model_of([FORMS["raw"], larger]), **saving)
    data = (folder / "blobs" / "w.bin").rename(folder / "blobs" / "bbb")
    (link.parent / "w.bin").symlink_to(data)
    return link, data


def test_links_into_the_folder_of_what_is_behind_the_model_are_followed(tmp_path: Path) -> None:
    """ONNX Runtime, given the path, follows them too."""
    link, data = lay_out_as_cache(tmp_path)
    onnxruntime.InferenceSession(link)
    graph = load_graph(link)
    assert (graph.path, graph.folder, graph.data_files) == (link, tmp_path / "blobs", (data,))
    assert list_data_files(link) == (link.parent / "w.bin",)
    np.testing.assert_array_equal(graph.read_constant("v"), np.tile(VALUES, 2))
    np.testing.assert_array_equal(graph.read_constant("w"), VALUES)
    open_session(copy_model(graph), graph.folder)
    before = graph.sha256
    data.write_bytes(bytes(data.stat().st_size))
    assert load_graph(link).sha256 != before


def test_a_link_that_leads_elsewhere_is_refused_and_told(tmp_path: Path) -> None:
    link, data = lay_out_as_cache(tmp_path)
    elsewhere = data.rename(tmp_path / "elsewhere.bin")
    (link.parent / "w.bin").unlink()
    (link.parent / "w.bin").symlink_to(elsewhere)
    with pytest.raises(
        ModelError, match=f"lies in 'w.bin', which leads to {elsewhere}, outside the model's folder"
    ):
        load_graph(link)
    assert list_data_files(link) == ()


def test_data_that_lie_in_a_file_of_the_links_name_are_looked_up_beside_it(tmp_path: Path) -> None:
    """And nowhere else, though the file behind the link has a folder of its own."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="model.onnx")
    tensor.external_data.add(key="length", value="8")
    link, file = tmp_path / "model.onnx", tmp_path / "blobs" / "0123"
    file.parent.mkdir()
    file.write_bytes(model_of([tensor]).SerializeToString())
    link.symlink_to(file)
    graph = load_graph(link)
    assert (graph.home, graph.folder) == (link, tmp_path)


def test_a_file_with_a_second_hard_link_is_read_like_any(tmp_path: Path) -> None:
    """Caches and copies make them; the library's own reader of external data refuses such a file."""
    model = model_of([FORMS["raw"]])
    model.graph.node.insert(0, held("c", 2 * VALUES))
    onnx.save(model, tmp_path / "blob")
    (tmp_path / "m.onnx").hardlink_to(tmp_path / "blob")
    graph = load_graph(tmp_path / "m.onnx")
    np.testing.assert_array_equal(graph.read_constant("w"), VALUES)
    np.testing.assert_array_equal(graph.read_constant("c"), 2 * VALUES)
    assert graph.model.ByteSize() < 1000
    open_session(copy_model(graph), graph.folder)
    whole = copy_model(graph)
    embed_weights(whole, graph)
    there = onnx.load(tmp_path / "blob").graph
    assert (whole.graph.node, whole.graph.initializer) == (there.node, there.initializer)


@pytest.mark.parametrize("optimize", [True, False])
def test_bodies_of_a_file_with_a_second_hard_link_run_too(optimize: bool, tmp_path: Path) -> None:
    """ONNX Runtime refuses references of bodies to such a file, and of nothing else."""
    onnx.save(model_with_bodies(), tmp_path / "blob")
    (tmp_path / "m.onnx").hardlink_to(tmp_path / "blob")
    graph = load_graph(tmp_path / "m.onnx")
    assert not any(graph.external_tensors())
    session = open_session(copy_model(graph), graph.folder, optimize=optimize)
    x = np.ones(COUNT, np.float32)
    (found,) = session.run(None, {"x": x, "flag": np.array(False)})
    np.testing.assert_array_equal(found, x + VALUES - 3 * VALUES)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("offset", "abc", "whole numbers of bytes"),
        ("length", "1e3", "whole numbers of bytes"),
        (
            "offset",
            "-4",
            r"have the offset '-4' and the length '8'\. Expected whole numbers of bytes, none below 0",
        ),
        ("length", "-8", "none below 0"),
        ("offset", "1", r"ends at byte 9 of .*w\.bin, which has 8\. Expected the whole external data file"),
        ("length", "9", "ends at byte 9 of"),
        ("location", "w\0.bin", "which names no file"),
        ("location", ".", r"lies in '\.', which names no file"),
        ("location", "", "lies in '', which names no file"),
        ("location", "..", "outside the model's folder"),
        ("location", "lost.bin", r"is missing: .*lost\.bin is not there"),
        ("location", "folder", "cannot be read: .*folder is a folder"),
        ("location", "circle", "cannot be read: .*circle is no regular file"),
        ("location", "w" * 300, "is missing: .*www is not there"),
    ],
)
def test_references_that_nobody_wrote_are_refused(key: str, value: str, message: str, tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    for name, told in {"location": "w.bin", "offset": "0", "length": "8", key: value}.items():
        tensor.external_data.add(key=name, value=told)
    (tmp_path / "w.bin").write_bytes(b"12345678")
    (tmp_path / "folder").mkdir()
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "m.onnx").write_bytes(model_of([tensor]).SerializeToString())
    with pytest.raises(ModelError, match=message):
        load_graph(tmp_path / "m.onnx")
    named = set(list_data_files(tmp_path / "m.onnx"))
    assert named <= {tmp_path / name for name in ("w.bin", "lost.bin", "w" * 300)}
