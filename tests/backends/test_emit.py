"""The artifact is checked before it is handed on, and opened as FP16 hardware would run it."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import pytest
from fp16_emulation import run_typed
from in_memory_calibration import floats, make_model, node, scan
from onnx import TensorProto, helper, numpy_helper
from typed_models import (
    NEWEST_OPSET,
    assert_same,
    is_supported,
    make_typed,
    plan_of,
    run_plain,
    save,
    write_model,
)

from overflow_fixer.backends.mixed_onnx import describe, emit, open_runner, weights
from overflow_fixer.backends.mixed_onnx.emission import check_artifact
from overflow_fixer.errors import BackendError, ModelError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.records import Batch, PlanPolicy
from overflow_fixer.sessions.session import open_session, run_session
from overflow_fixer.simulation.typed_model import simulate

TEXT = """g (float[N,4] x) => (float[N,4] y, float[N,4] z) <float[4] w = {1.0001, 2, 3, 4}> {
    c = Constant <value = float {3.0001}> () a = Mul(x, w) b = Mul(a, c) y = Add(b, w) z = Exp(a)
}"""
X = np.asarray([[1.0002, -3, 5, 300], [0.1, 6, -2, 7]], np.float32)


def test_the_artifact_names_what_it_made(tmp_path: Path) -> None:
    typed = make_typed(write_model(tmp_path, TEXT), pinned=["z"])
    artifact = typed.artifact
    assert (artifact.backend, artifact.path, artifact.files) == ("onnx", artifact.path, (artifact.path,))
    assert artifact.fp16_nodes == ("node_of_a", "node_of_b", "node_of_y")
    assert (artifact.fp32_nodes, artifact.kept) == (("node_of_z",), ())
    assert artifact.cast_count == 3


def test_the_same_plan_gives_the_same_bytes(tmp_path: Path) -> None:
    path = write_model(tmp_path, TEXT)
    files = [make_typed(path, pinned=["z"], name=f"{n}/m.onnx").artifact.path.read_bytes() for n in "ab"]
    assert files[0] == files[1]


def test_inner_tensors_are_asked_for_by_their_original_names(tmp_path: Path) -> None:
    typed = make_typed(write_model(tmp_path, TEXT), pinned=["z"])
    runner = open_runner(typed.artifact, ["a", "b", "c", "z", "w"])
    assert runner.output_names == ("y", "z", "a", "b", "c", "w")
    found = runner.run(Batch("batch", {"x": X}))
    expected = run_typed(typed.artifact.path, {"x": X})
    for name in runner.output_names:
        assert_same(found[name], expected[name])
    assert {name: found[name].dtype.name for name in "abcyz"} == {
        **dict.fromkeys("abc", "float16"),
        **dict.fromkeys("yz", "float32"),
    }


@pytest.mark.parametrize("place", ["onnx.checker.check_model", "open_session"])
def test_a_want_of_memory_while_checking_is_no_fault(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = load_graph(write_model(tmp_path, TEXT))

    def fail(*_: object, **__: object) -> None:
        try:
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        except OSError as error:
            raise ModelError("It cannot be read: Cannot allocate memory.") from error

    module = "backends.mixed_onnx.loading." if place == "open_session" else "backends.mixed_onnx.emission."
    monkeypatch.setattr(f"overflow_fixer.{module}{place}", fail)
    with pytest.raises(ModelError, match="Cannot allocate memory"):
        check_artifact(graph, graph.path)


def test_a_model_that_fails_the_checker_is_refused(tmp_path: Path) -> None:
    graph = load_graph(write_model(tmp_path, TEXT))
    model = onnx.load(graph.path)
    model.graph.node[1].attribute.append(helper.make_attribute("unknown", 1))
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(model.SerializeToString())
    with pytest.raises(BackendError, match=r"typed model of .*model\.onnx does not pass onnx\.checker"):
        check_artifact(graph, bad)


def test_a_model_that_does_not_load_is_refused(tmp_path: Path) -> None:
    """The checker does not know other domains' operators; ONNX Runtime does."""
    graph = load_graph(write_model(tmp_path, TEXT))
    model = onnx.load(graph.path)
    model.opset_import.add(domain="com.example", version=1)
    model.graph.node[1].domain = "com.example"
    bad = tmp_path / "bad.onnx"
    bad.write_bytes(model.SerializeToString())
    with pytest.raises(BackendError, match=r"typed model of .*model\.onnx does not load: .*com\.example"):
        check_artifact(graph, bad)


def test_an_original_that_does_not_load_is_named_as_such_and_leaves_no_file(tmp_path: Path) -> None:
    path = write_model(tmp_path, "g (float[N,4] x) => (float[N,4] y) { a = Relu(x) y = Neg(a) }")
    model = onnx.load(path)
    model.opset_import.add(domain="com.example", version=1)
    model.graph.node[1].domain = "com.example"
    graph = load_graph(save(tmp_path, model))
    with pytest.raises(ModelError, match=r"com\.example"):
        emit(graph, plan_of(graph), tmp_path / "out" / "typed.onnx")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("limit", [0, 1_000_000])
def test_a_build_that_fails_leaves_the_earlier_artifact(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_EMBED_LIMIT_BYTES", limit)
    path = write_model(tmp_path, "g (float[N,600] x) => (float[N,600] y) { a = Mul(x, w) y = Neg(a) }")
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(600, np.float32), "w"))
    graph = load_graph(save(tmp_path, model))
    artifact = emit(graph, plan_of(graph), tmp_path / "out" / "typed.onnx")
    assert len(artifact.files) == (1 if limit else 2)
    before = {file: file.read_bytes() for file in artifact.files}
    model.opset_import.add(domain="com.example", version=1)
    model.graph.node[1].domain = "com.example"
    model.graph.initializer[0].raw_data = np.full(600, 2, np.float32).tobytes()
    graph = load_graph(save(tmp_path, model))
    with pytest.raises(ModelError, match=r"com\.example"):
        emit(graph, plan_of(graph), artifact.path)
    assert {file: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before


def test_the_artifact_of_another_model_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    """Which has the same nodes, and so the same plan, and other weights."""
    out = tmp_path / "typed.onnx"
    graphs = []
    for text in (TEXT, TEXT.replace("1.0001", "1.5")):
        graphs.append(load_graph(write_model(tmp_path, text)))
        _ = graphs[-1].sha256
    artifact = emit(graphs[1], plan_of(graphs[1]), out)
    assert describe(graphs[1], plan_of(graphs[1]), out) == artifact
    said = f"built from a model with the SHA-256 {graphs[1].sha256}. Expected that of {graphs[0].path}, {graphs[0].sha256}. Build"
    with pytest.raises(BackendError, match=re.escape(said)):
        describe(graphs[0], plan_of(graphs[0]), out)
    out.write_bytes(graphs[1].path.read_bytes())
    with pytest.raises(BackendError, match=r"built from a model with the SHA-256 \(none named\)"):
        describe(graphs[1], plan_of(graphs[1]), out)


@pytest.mark.parametrize("kept", [0, 0.5, 0.99])
def test_an_artifact_that_was_cut_short_is_told(kept: float, tmp_path: Path) -> None:
    graph = load_graph(write_model(tmp_path, TEXT))
    artifact = emit(graph, plan_of(graph), tmp_path / "typed.onnx")
    whole = artifact.path.read_bytes()
    artifact.path.write_bytes(whole[: int(kept * len(whole))])
    with pytest.raises(BackendError, match=r"typed\.onnx .*Expected .*Build it again with fix-fp16 build\.$"):
        describe(graph, plan_of(graph), artifact.path)


@pytest.mark.parametrize("kept", [None, 0, 0.5])
def test_an_artifact_whose_weights_are_gone_is_told(
    kept: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "_EMBED_LIMIT_BYTES", 0)
    path = write_model(tmp_path, "g (float[N,600] x) => (float[N,600] y) { y = Mul(x, w) }")
    model = onnx.load(path)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(600, np.float32), "w"))
    graph = load_graph(save(tmp_path, model))
    artifact = emit(graph, plan_of(graph), tmp_path / "typed.onnx")
    assert describe(graph, plan_of(graph), artifact.path) == artifact
    data = artifact.files[1]
    if kept is None:
        data.unlink()
    else:
        data.write_bytes(data.read_bytes()[: int(kept * data.stat().st_size)])
    with pytest.raises(BackendError, match=r"typed\.onnx.*Build it again with fix-fp16 build\.$"):
        describe(graph, plan_of(graph), artifact.path)


OPSETS = range(9, NEWEST_OPSET + 1)


def _convolution_model(folder: Path, opset: int) -> Path:
    """Operators whose meaning no opset from 9 on changed."""
    text = """g (float[N,3,8,8] x) => (float[N,5] y, float[N,4,6,6] f) <int64[2] flat = {-1, 4}> {
        c = Conv <kernel_shape: ints = [3, 3]> (x, cw, cb)
        n = BatchNormalization(c, cb, cb, cb, cv)
        r = Relu(n) m = MaxPool <kernel_shape: ints = [2, 2]> (r) k = Concat <axis: int = 1> (m, m)
        p = GlobalAveragePool(k) d = Flatten(p) g = Gemm(d, gw, gb) s = Sigmoid(g) t = Transpose(s)
        u = Transpose(t) y = Add(u, g) q = Sqrt(r) f = Mul(q, r)
    }"""
    rng = np.random.RandomState(0)
    shapes = {"cw": (4, 3, 3, 3), "cb": (4,), "cv": (4,), "gw": (8, 5), "gb": (5,)}
    model = onnx.load(write_model(folder, text, opset=opset))
    for name, shape in shapes.items():
        values = np.abs(rng.standard_normal(shape)) + 0.1
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return save(folder, model)


@pytest.mark.parametrize("opset", OPSETS)
def test_every_opset(tmp_path: Path, opset: int) -> None:
    if not is_supported(opset):
        pytest.skip(f"this ONNX Runtime has no opset {opset}")
    path = _convolution_model(tmp_path, opset)
    feeds = {"x": np.random.RandomState(1).standard_normal((2, 3, 8, 8)).astype(np.float32)}
    naive = make_typed(path)
    assert (naive.artifact.fp32_nodes, naive.artifact.cast_count) == ((), 3)
    for name, values in naive.run(feeds).items():
        assert_same(values, run_typed(naive.artifact.path, feeds)[name])
    pinned = make_typed(
        path, pinned=[n for node in naive.graph.nodes for n in node.writes], name="pinned.onnx"
    )
    assert (pinned.artifact.fp16_nodes, pinned.artifact.cast_count) == ((), 0)
    plain = run_plain(path, feeds)
    for name, values in pinned.run(feeds).items():
        assert_same(values, plain[name])


def test_ir_version_is_raised_only_where_initializers_need_it(tmp_path: Path) -> None:
    for ir_version, expected in ((3, 4), (4, 4), (8, 8)):
        path = write_model(
            tmp_path, "g (float[4] x) => (float[4] y) { y = Neg(x) }", opset=9, ir_version=ir_version
        )
        assert make_typed(path).model.ir_version == expected


def test_shapes_are_written_where_they_are_numbers(tmp_path: Path) -> None:
    path = write_model(tmp_path, "g (float[N,4] x) => (float[N,4] y) { a = Neg(x) y = Exp(a) }")
    (info,) = (info for info in make_typed(path).model.graph.value_info if info.name == "a")
    dims = info.type.tensor_type.shape.dim
    assert [dim.HasField("dim_value") for dim in dims] == [False, True]
    assert (dims[1].dim_value, info.type.tensor_type.elem_type) == (4, TensorProto.FLOAT16)


@pytest.mark.parametrize("io_types", ["keep", "fp16"])
def test_a_model_without_operators_of_onnx_gets_casts(
    tmp_path: Path, io_types: Literal["keep", "fp16"]
) -> None:
    """Converters of trees and the like import ai.onnx.ml alone."""
    model = onnx.parser.parse_model("""<ir_version: 4, opset_import: ["ai.onnx.ml" : 1]>
    g (float[N,4] x) => (float[N,4] y) { y = ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]> (x) }""")
    typed = make_typed(save(tmp_path, model), io_types=io_types)
    casts = 0 if io_types == "keep" else 2
    assert (typed.artifact.fp16_nodes, typed.artifact.cast_count) == ((), casts)
    x = X.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(
        run_plain(typed.artifact.path, {"x": x if not casts else x.astype(np.float16)})["y"],
        ((x - 1) * 2).astype(np.float16) if casts else (x - 1) * 2,
    )


STALE = """g (float[4,12] x) => (float[4,16] y, float[4] z)
<float[4,16] a, float[4,16] b, float[4,16] c, float[4,16] d> {
    a = Neg(x) b = Exp(a) c = Add(a, b) y = Tanh(c) d = Mul(y, a) z = ReduceMax <axes: ints = [1], keepdims: int = 0> (d)
}"""


@pytest.mark.parametrize("pinned", [(), ("b",), ("a", "c"), ("y",), ("d",)])
@pytest.mark.parametrize("io_types", ["keep", "fp16"])
def test_shapes_recorded_of_another_input_size_are_not_written(
    tmp_path: Path, pinned: tuple[str, ...], io_types: Literal["keep", "fp16"]
) -> None:
    """Someone wrote a new size into the input and left the rest; ONNX Runtime runs it, with a warning."""
    typed = make_typed(write_model(tmp_path, STALE), pinned, io_types)
    infos = (*typed.model.graph.value_info, *typed.model.graph.output)
    recorded = {info.name: info.type.tensor_type.shape.dim for info in infos}
    assert {*"abcdyz"} <= recorded.keys()
    assert {tuple(dim.dim_value for dim in dims) for dims in recorded.values()} <= {(4, 12), (4,)}
    x = np.linspace(-2, 2, 48, dtype=np.float32).reshape(4, 12)
    fed = x if io_types == "keep" else x.astype(np.float16)
    found = run_plain(typed.artifact.path, {"x": fed})
    wide = x.astype(np.float64)
    expected = np.tanh(np.exp(-wide) - wide)
    np.testing.assert_allclose(found["y"], expected, atol=0.01)
    np.testing.assert_allclose(found["z"], (-expected * wide).max(axis=1), atol=0.02)


def test_shapes_that_inference_cannot_tell_are_left_out(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[N,4] x, int64[2] s) => (float[5,4] y) <float[5,4] a, float[5,4] b>
        { a = Reshape(x, s) b = Neg(a) y = Exp(b) }""",
    )
    infos = make_typed(path).model.graph.value_info
    dims = {info.name: info.type.tensor_type.shape.dim for info in infos}
    assert [[dim.HasField("dim_value") for dim in dims[name]] for name in "ab"] == [[False, False]] * 2


def test_a_clamp_of_what_fills_a_tensor_is_built(tmp_path: Path) -> None:
    """Right in ONNX Runtime and rounded node by node, on sizes that the data did not have, one row among them."""
    low = numpy_helper.from_array(floats(np.finfo(np.float32).min))
    nodes = [
        node("Shape", "x", "size"),
        node("ConstantOfShape", "size", "full", value=low),
        node("Trilu", "full one", "tri"),
        node("Add", "x tri", "s"),
        node("Softmax", "s", "y"),
    ]
    triangle = make_model(nodes, {"x": ["n", "n"]}, "y", {"one": np.asarray(1, np.int64)})
    graph, ranges = scan(triangle, tmp_path, {"x": np.eye(4, dtype=np.float32)})
    path = tmp_path / "typed.onnx"
    emit(graph, plan_precision(graph, ranges, PlanPolicy()), path)
    model = onnx.load(path)
    (fill,) = (node for node in model.graph.node if node.op_type == "ConstantOfShape")
    assert numpy_helper.to_array(fill.attribute[0].t) == np.float16(-25000)
    right = open_session(graph.path, graph.folder)
    built = [open_session(path, tmp_path), open_session(simulate(load_graph(path)), tmp_path)]
    for size in (1, 3, 9):
        batch = Batch("b", {"x": np.random.default_rng(size).normal(size=(size, size)).astype(np.float32)})
        (expected,) = run_session(right, ["y"], batch)
        for session in built:
            (found,) = run_session(session, ["y"], batch)
            np.testing.assert_allclose(found, expected, atol=2e-3)
            assert np.array_equal(found == 0, expected == 0)
