"""Weights: rounded as numpy rounds them, clamped where the plan says, complete in the files that are named."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typed_models import Typed, assert_same, make_typed, open_plain, plan_of, run_plain, save, write_model

from overflow_fixer.backends.mixed_onnx import describe, emit, open_runner, weights
from overflow_fixer.errors import BackendError, ModelError, OutputError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.model_file.external_data import external_tensors
from overflow_fixer.records import Artifact, Batch, Clamp, PrecisionPlan

X = np.linspace(-3, 3, 32, dtype=np.float32).reshape(1, 32)
DENSE = """g (bool k, float[1,32] x) => (float[1,32] y) {
    a = MatMul(x, low) b = MatMul(a, both)
    c = If (k) <
        then_branch = t () => (float[1,32] o) { o = MatMul(b, inner) },
        else_branch = e () => (float[1,32] p) { p = MatMul(b, both) }
    >
    d = MatMul(c, high) f = Constant() h = MatMul(d, f) y = Mul(h, small)
}"""
FEEDS = {"k": np.asarray(True), "x": X}


def _weight(name: str, seed: int, size: int = 32) -> TensorProto:
    values = np.random.RandomState(seed).standard_normal((size, size)) / 6
    return numpy_helper.from_array(values.astype(np.float32), name)


def _dense_model(folder: Path) -> Path:
    """Weights of 4096 bytes among the initializers, in a body and in a Constant node; one of 128 bytes."""
    model = onnx.load(write_model(folder, DENSE))
    graph = model.graph
    graph.initializer.extend(_weight(name, seed) for seed, name in enumerate(("low", "both", "high")))
    graph.initializer.append(numpy_helper.from_array(np.linspace(1, 2, 32, dtype=np.float32), "small"))
    branch = next(node for node in graph.node if node.op_type == "If").attribute[0].g
    branch.initializer.append(_weight("inner", 7))
    constant = next(node for node in graph.node if node.op_type == "Constant")
    constant.attribute.append(helper.make_attribute("value", _weight("", 8)))
    return save(folder, model)


def _make_external(path: Path, attributes: bool = True) -> Path:
    """The same model with every tensor of more than 1024 bytes in weights.bin."""
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", convert_attribute=attributes)
    assert any(external_tensors(onnx.load(path, load_external_data=False)))
    return path


def _locations(path: Path) -> set[str]:
    tensors = external_tensors(onnx.load(path, load_external_data=False))
    return {item.value for tensor in tensors for item in tensor.external_data if item.key == "location"}


def _moved(typed: Typed, folder: Path) -> Artifact:
    """The artifact's files alone, in another folder, and everything else gone."""
    folder.mkdir()
    for file in typed.artifact.files:
        shutil.move(file, folder / file.name)
    shutil.rmtree(typed.graph.folder / "typed")
    for file in typed.graph.folder.iterdir():
        if file != folder:
            file.unlink()
    path = folder / typed.artifact.path.name
    return Artifact("onnx", path, (path,), (), (), (), 0)


@pytest.mark.parametrize("pinned", [(), ("b",), ("a", "b", "c", "d", "h", "y")])
def test_external_weights_end_up_beside_the_model_and_move_with_it(
    tmp_path: Path, pinned: tuple[str, ...]
) -> None:
    path = _dense_model(tmp_path)
    embedded = make_typed(path, pinned=pinned, name="embedded/model.onnx")
    expected = embedded.run(FEEDS)["y"]
    plain = run_plain(path, FEEDS)["y"]
    shutil.rmtree(tmp_path / "embedded")
    typed = make_typed(_make_external(path), pinned=pinned)
    assert [file.name for file in typed.artifact.files] == ["model.fp16.onnx", "model.fp16.onnx.data"]
    assert_same(typed.run(FEEDS)["y"], expected)
    moved = _moved(typed, tmp_path / "elsewhere")
    assert _locations(moved.path) == {"model.fp16.onnx.data"}
    assert_same(open_runner(moved).run(Batch("moved", FEEDS))["y"], expected)
    if len(pinned) == 6:
        assert_same(expected, plain)


@pytest.mark.parametrize(("size", "count"), [(32, 2), (16, 1)])
def test_weights_that_all_become_fp16_go_beside_the_model_but_for_small_ones(
    size: int, count: int, tmp_path: Path
) -> None:
    """Those of 32 are of 2048 bytes in FP16; those of 16 of 512, and no file is left for them."""
    text = f"g (float[1,{size}] x) => (float[1,{size}] y) {{ a = MatMul(x, w) y = MatMul(a, v) }}"
    path = write_model(tmp_path, text)
    model = onnx.load(path)
    model.graph.initializer.extend([_weight("w", 1, size), _weight("v", 2, size)])
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    typed = make_typed(path)
    assert [file.name for file in typed.artifact.files] == ["model.fp16.onnx", "model.fp16.onnx.data"][:count]
    assert [file.name for file in typed.artifact.path.parent.iterdir() if file.suffix == ".data"] == [
        file.name for file in typed.artifact.files[1:]
    ]
    expected = numpy_helper.to_array(_weight("w", 1, size)).astype(np.float16)
    moved = _moved(typed, tmp_path / "elsewhere")
    assert_same(numpy_helper.to_array(onnx.load(moved.path).graph.initializer[0]), expected)
    open_plain(moved.path)


def test_large_weights_in_the_models_own_file_stay_in_the_file(tmp_path: Path) -> None:
    """Those of 16 KiB and more are read in place, as external data that lies in the model itself."""
    path = write_model(tmp_path, "g (float[1,64] x) => (float[1,64] y) { y = MatMul(x, w) }")
    model = onnx.load(path)
    model.graph.initializer.append(_weight("w", 0, 64))
    typed = make_typed(save(tmp_path, model), pinned=["y"])
    assert typed.artifact.files == (typed.artifact.path,)
    assert_same(typed.initializers["w"], numpy_helper.to_array(model.graph.initializer[0]))


def test_weights_go_beside_a_model_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _dense_model(tmp_path)
    expected = make_typed(path, pinned=["b"], name="embedded/model.onnx").run(FEEDS)["y"]
    monkeypatch.setattr(weights, "_EMBED_LIMIT_BYTES", 10_000)
    typed = make_typed(path, pinned=["b"])
    assert len(typed.artifact.files) == 2
    assert_same(typed.run(FEEDS)["y"], expected)
    stored = onnx.load(typed.artifact.path, load_external_data=False).graph.initializer
    outside = {t.name: {e.key: e.value for e in t.external_data} for t in stored if t.external_data}
    assert set(outside) == {"low", "both", "high", "f"}
    assert all(int(entry["offset"]) % 4096 == 0 for entry in outside.values())
    size = typed.artifact.files[1].stat().st_size
    assert max(int(entry["offset"]) + int(entry["length"]) for entry in outside.values()) == size


def test_fp16_copies_count_for_what_one_message_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original would still fit; with the FP16 copy of a weight that is read in both types it does not."""
    path = write_model(tmp_path, "g (float[1,64] x) => (float[1,64] y) { a = MatMul(x, w) y = MatMul(a, w) }")
    model = onnx.load(path)
    model.graph.initializer.append(_weight("w", 0, 64))
    path = save(tmp_path, model)
    monkeypatch.setattr(weights, "_EMBED_LIMIT_BYTES", path.stat().st_size)
    typed = make_typed(path, pinned=["y"])
    assert len(typed.artifact.files) == 2


def test_what_becomes_fp16_counts_for_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The original would pass the limit, and what is written does not."""
    path = write_model(tmp_path, "g (float[1,64] x) => (float[1,64] y) { a = MatMul(x, w) y = MatMul(a, v) }")
    model = onnx.load(path)
    model.graph.initializer.extend([_weight("w", 1, 64), _weight("v", 2, 64)])
    path = save(tmp_path, model)
    size = make_typed(path, name="embedded/model.onnx").artifact.path.stat().st_size
    assert size < 0.6 * path.stat().st_size
    for limit, count in ((size, 1), (size - 1000, 2)):
        monkeypatch.setattr(weights, "_EMBED_LIMIT_BYTES", limit)
        assert len(make_typed(path).artifact.files) == count


def test_describe_names_the_files_that_the_model_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _dense_model(tmp_path)
    graph, plan, out = load_graph(path), plan_of(load_graph(path)), tmp_path / "out" / "typed.onnx"
    with pytest.raises(BackendError, match="not there"):
        describe(graph, plan, out)
    with monkeypatch.context() as patch:
        patch.setattr(weights, "_EMBED_LIMIT_BYTES", 10_000)
        artifact = emit(graph, plan, out)
        assert describe(graph, plan, out) == artifact
        assert len(describe(graph, plan, out).files) == 2
    artifact = emit(graph, plan, out)
    assert describe(graph, plan, out) == artifact
    assert artifact.files == (out,)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_weights_that_changed_since_the_model_was_loaded_are_refused(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are not those of the hash in the artifact."""
    graph = load_graph(_make_external(_dense_model(tmp_path)))
    plan = plan_of(graph, [graph.producers["b"].label])
    (data,) = graph.data_files
    changed = np.full(data.stat().st_size // 4 + 1, 7, np.float32).tobytes()
    bring_in = weights.bring_in

    def bring_in_and_change(tensor: TensorProto, folder: Path) -> None:
        bring_in(tensor, folder)
        data.write_bytes(changed)

    if when == "before":
        data.write_bytes(changed)
    monkeypatch.setattr(weights, "bring_in", bring_in_and_change)
    with pytest.raises(ModelError, match="changed while it was in use"):
        emit(graph, plan, tmp_path / "out" / "typed.onnx")
    assert list((tmp_path / "out").glob("*")) == []


def test_float_data_is_rounded_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.linspace(0, 7, 600, dtype=np.float32)
    path = write_model(tmp_path, "g (float[600] x) => (float[600] y) { a = Mul(x, w) y = Add(a, w) }")
    model = onnx.load(path)
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [600], values))
    path = save(tmp_path, model)
    for limit in (weights._EMBED_LIMIT_BYTES, 0):
        monkeypatch.setattr(weights, "_EMBED_LIMIT_BYTES", limit)
        typed = make_typed(path, pinned=["y"])
        assert_same(typed.initializers["w"], values)
        assert_same(typed.initializers["w__fp16"], values.astype(np.float16))


def test_packed_types_keep_their_bytes(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        "g (float[2,2048] x) => (float[2,2048] y) <float s = {0.5}> { d = DequantizeLinear(q, s) y = Mul(x, d) }",
        opset=21,
        ir_version=10,
    )
    model = onnx.load(path)
    packed = np.random.RandomState(0).bytes(2048)
    model.graph.initializer.append(
        TensorProto(name="q", data_type=TensorProto.INT4, dims=[2, 2048], raw_data=packed)
    )
    path = save(tmp_path, model)
    expected = make_typed(path, name="embedded/model.onnx").run({"x": np.ones((2, 2048), np.float32)})["y"]
    typed = make_typed(_make_external(path))
    (stored,) = (t for t in typed.model.graph.initializer if t.name == "q")
    assert (len(typed.artifact.files), stored.raw_data) == (2, packed)
    assert_same(typed.run({"x": np.ones((2, 2048), np.float32)})["y"], expected)


def test_every_value_is_rounded_as_numpy_rounds_it(tmp_path: Path) -> None:
    ties = [1 + 2**-11, 1 + 3 * 2**-11, 2**-25, 2**-25 * 1.001, 2**-14 - 2**-25]
    edges = [0, -0.0, 65504, 65519.996, 65520, -65520, 2**-14, 2**-24, 6e-8, 1e-45]
    beyond = [1e38, -3.4028235e38, np.inf, -np.inf, np.nan]
    values = np.asarray([*ties, *edges, *beyond], np.float32)
    path = write_model(tmp_path, "g (float[N] x) => (float[N] y) { y = Add(x, w) }")
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(values, "w"))
    typed = make_typed(save(tmp_path, model))
    with np.errstate(over="ignore"):
        assert_same(typed.initializers["w"], values.astype(np.float16))


def test_a_clamp_holds_in_fp16_and_not_in_fp32(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[4] x) => (float[4] y, float[4] z) <float[4] mask = {-3.4e38, 0, -1e30, 5}, float[4] other = {-3.4e38, 0, 7e4, 5}> {
            c = Constant <value = float[4] {-1e9, 1.5, 0, 1e9}> ()
            a = Add(x, mask) b = Add(a, other) y = Add(b, c) z = Add(x, mask)
        }""",
    )
    clamps = (Clamp("mask", 20000.0, "test"), Clamp("c", 30000.0, "test"))
    typed = make_typed(path, pinned=["z"], clamps=clamps)
    found = typed.initializers
    assert found["mask__fp16"].tolist() == [-20000, 0, -20000, 5]
    assert_same(found["mask"], np.asarray([-3.4e38, 0, -1e30, 5], np.float32))
    assert found["other"].tolist() == [-np.inf, 0, np.inf, 5]
    assert found["c"].tolist() == [-30000, 1.5, 0, 30000]


def test_a_plan_with_another_clamp_has_another_artifact(tmp_path: Path) -> None:
    text = "g (float[2] x) => (float[2] y) <float[2] mask = {-3.4e38, 0}> { y = Add(x, mask) }"
    typed = make_typed(write_model(tmp_path, text), clamps=(Clamp("mask", 20000.0, "test"),))
    for clamps in ((), (Clamp("mask", 30000.0, "test"),)):
        with pytest.raises(BackendError, match="was not built from this plan"):
            describe(typed.graph, plan_of(typed.graph, clamps=clamps), typed.artifact.path)
    same = plan_of(typed.graph, clamps=(Clamp("mask", 20000.0, "another reason"),))
    assert describe(typed.graph, same, typed.artifact.path) == typed.artifact


def test_an_infinite_mask_is_clamped_and_nan_is_kept(tmp_path: Path) -> None:
    path = write_model(tmp_path, "g (float[3] x) => (float[3] y) { y = Add(x, mask) }")
    model = onnx.load(path)
    mask = np.asarray([-np.inf, np.nan, np.inf], np.float32)
    model.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    typed = make_typed(save(tmp_path, model), clamps=(Clamp("mask", 20000.0, "test"),))
    assert_same(typed.initializers["mask"], np.asarray([-20000, np.nan, 20000], np.float16))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    path = write_model(tmp_path, "g (float[3] x) => (float[3] y) { y = Neg(x) }")
    graph = load_graph(path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="could not be written"):
        emit(graph, PrecisionPlan(graph.sha256, 1e4, ()), tmp_path / "file" / "typed.onnx")


def test_nothing_is_left_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = load_graph(_make_external(_dense_model(tmp_path)))
    out = tmp_path / "out"
    out.mkdir()
    (out / "typed.onnx").write_bytes(b"before")

    def fill_the_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weights, "_move_out", fill_the_disk)
    with pytest.raises(OutputError, match="No space left"):
        emit(graph, PrecisionPlan(graph.sha256, 1e4, ()), out / "typed.onnx")
    assert [file.read_bytes() for file in out.iterdir()] == [b"before"]
