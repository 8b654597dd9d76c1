"""What the rewrite does to wires, constants and bodies. Every model made here also passes the judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import run_typed
from onnx import TensorProto, helper
from sparse_tensors import make_sparse
from typed_models import (
    FLOAT,
    FLOAT16,
    Typed,
    all_nodes,
    assert_same,
    make_typed,
    run_plain,
    save,
    write_model,
)

from overflow_fixer.graph.model import load_graph

X = np.asarray([[1.0002, -3, 5, 300], [0.1, 65519, -2, 7]], np.float32)


def _casts(typed: Typed) -> list[tuple[str, str]]:
    return [(cast.input[0], cast.output[0]) for cast in typed.inserted]


def _check_run(typed: Typed, feeds: dict[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """The simulation agrees with the emulation bit for bit; returns its outputs."""
    feeds = feeds or {"x": X}
    found = typed.run(feeds)
    if typed.model.graph.input and any(
        i.type.tensor_type.elem_type == TensorProto.FLOAT16 for i in typed.model.graph.input
    ):
        feeds = {name: a.astype(np.float16) if a.dtype == np.float32 else a for name, a in feeds.items()}
    expected = run_typed(typed.artifact.path, feeds)
    for name, values in found.items():
        assert_same(values, expected[name])
    return found


# ---------------------------------------------------------------- Casts


def test_a_chain_in_fp16_has_one_cast_in_and_one_out(tmp_path: Path) -> None:
    path = write_model(
        tmp_path, "g (float[N,4] x) => (float[N,4] y) { a = Relu(x) b = Add(a, a) y = Neg(b) }"
    )
    typed = make_typed(path)
    assert typed.ops() == ["Cast", "Relu", "Add", "Neg", "Cast"]
    assert _casts(typed) == [("x", "x__fp16"), ("y__fp16", "y")]
    _check_run(typed)


def test_a_cast_is_shared_by_its_consumers(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[N,4] x) => (float[N,4] y, float[N,4] z) {
            a = Relu(x) b = Neg(x) c = Mul(a, b) d = Add(a, c) e = Sub(a, a) y = Add(d, e) z = Abs(b)
        }""",
    )
    typed = make_typed(path, pinned=["d", "e"])
    assert _casts(typed) == [
        ("x", "x__fp16"),
        ("a", "a__fp32"),
        ("c", "c__fp32"),
        ("d", "d__fp16"),
        ("e", "e__fp16"),
        ("y__fp16", "y"),
        ("z__fp16", "z"),
    ]
    _check_run(typed)


def test_all_pinned_is_the_original(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        "g (float[N,4] x) => (float[N,4] y) <float[4] w = {1.0001, 2, 3, 4}> { a = Mul(x, w) y = Exp(a) }",
    )
    typed = make_typed(path, pinned=["a", "y"])
    assert typed.artifact.cast_count == 0
    assert typed.artifact.fp16_nodes == ()
    assert list(typed.model.graph.node) == list(typed.graph.model.graph.node)
    assert_same(typed.run({"x": X})["y"], run_plain(path, {"x": X})["y"])


def test_existing_casts_are_retargeted_and_stay(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (int64[N] i, double[N] d, float[N] x) => (float[N] y, int32[N] z) {
            a = Cast <to: int = 1> (i) b = Cast <to: int = 1> (d) c = Cast <to: int = 1> (x)
            e = Add(a, b) y = Add(e, c) z = Cast <to: int = 6> (e)
        }""",
    )
    typed = make_typed(path)
    kept = {node.output[0]: node.attribute[0].i for node in typed.model.graph.node if node.op_type == "Cast"}
    assert {name: kept[name] for name in "abcz"} == {"a": 10, "b": 10, "c": 10, "z": 6}
    assert _casts(typed) == [("y__fp16", "y")]
    feeds = {"i": np.asarray([3, 70000]), "d": np.asarray([0.5, 2]), "x": np.asarray([1, 2], np.float32)}
    assert np.isinf(_check_run(typed, feeds)["y"]).tolist() == [False, True]


def test_a_cast_that_changes_no_type_any_more_is_an_identity(tmp_path: Path) -> None:
    """ONNX Runtime 1.23, the last for Python 3.10, refuses a Cast from FP16 to FP16 with optimisation off."""
    path = write_model(
        tmp_path,
        """g (float[N] x, float16[N] h) => (float[N] y) {
            a = Neg(x) b = Cast <to: int = 1, saturate: int = 1> (a) c = Cast <to: int = 1> (h)
            d = Add(b, c) e = Cast <to: int = 1> (d) y = Exp(e)
        }""",
        opset=19,
    )
    typed = make_typed(path, pinned=["e"])
    assert [typed.node_of(name).op_type for name in "bce"] == ["Identity", "Identity", "Cast"]
    assert not typed.node_of("b").attribute
    _check_run(typed, {"x": np.asarray([1, 2], np.float32), "h": np.asarray([3, 4], np.float16)})


def test_a_cast_to_the_models_own_fp16_is_an_identity_where_it_reads_fp16(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[N] x) => (float[N] y) {
            a = Neg(x) b = Cast <to: int = 10> (a) c = Neg(b) d = Cast <to: int = 1> (c) y = Exp(d)
        }""",
    )
    typed = make_typed(path)
    assert [typed.node_of(name).op_type for name in "bd"] == ["Identity", "Identity"]
    _check_run(typed, {"x": np.asarray([1, 2], np.float32)})
    pinned = make_typed(path, pinned=["a"])
    assert [pinned.node_of(name).op_type for name in "bd"] == ["Cast", "Identity"]
    _check_run(pinned, {"x": np.asarray([1, 2], np.float32)})


def test_a_pinned_cast_keeps_its_target(tmp_path: Path) -> None:
    path = write_model(tmp_path, "g (int64[N] i) => (float[N] y) { a = Cast <to: int = 1> (i) y = Neg(a) }")
    typed = make_typed(path, pinned=["a"])
    assert typed.node_of("a").attribute[0].i == TensorProto.FLOAT
    assert _casts(typed) == [("a", "a__fp16"), ("y__fp16", "y")]


def test_integer_and_boolean_nodes_read_what_is_there(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[N,4] x) => (int64[M] s, bool[N,4] b, int64[N] m, float[N,4] y) {
            a = Relu(x) s = Shape(a) b = Greater(a, x) m = ArgMax <axis: int = 1, keepdims: int = 0> (a)
            y = Where(b, a, x)
        }""",
    )
    typed = make_typed(path)
    assert typed.node_of("s").input[0] == "a"
    assert typed.node_of("m").input[0] == "a"
    assert list(typed.node_of("b").input) == ["a__fp32", "x"]
    _check_run(typed)


# ---------------------------------------------------------------- inputs and outputs


def test_an_output_that_is_read_inside_shares_its_cast(tmp_path: Path) -> None:
    path = write_model(
        tmp_path, "g (float[N,4] x) => (float[N,4] a, float[N,4] y) { a = Relu(x) b = Exp(a) y = Neg(a) }"
    )
    typed = make_typed(path, pinned=["b"])
    assert _casts(typed) == [("x", "x__fp16"), ("a__fp16", "a"), ("y__fp16", "y")]
    assert list(typed.node_of("b").input) == ["a"]
    assert list(typed.node_of("y").input) == ["a__fp16"]
    _check_run(typed)


def test_io_types_fp16_makes_inputs_and_outputs_fp16(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[N,4] x, int64 k) => (float[N,4] y, float[N,4] z, int64 j) {
            a = Relu(x) y = Neg(a) z = Exp(x) j = Add(k, k)
        }""",
    )
    typed = make_typed(path, pinned=["z"], io_types="fp16")
    infos = (*typed.model.graph.input, *typed.model.graph.output)
    assert [info.type.tensor_type.elem_type for info in infos] == [10, 7, 10, 10, 7]
    assert _casts(typed) == [("x", "x__fp32"), ("z__fp32", "z")]
    feeds = {"x": X, "k": np.asarray(2)}
    assert _check_run(typed, feeds)["y"].dtype == np.float16


@pytest.mark.parametrize("io_types", ["keep", "fp16"])
def test_an_output_that_is_an_input_or_a_constant(tmp_path: Path, io_types: str) -> None:
    path = write_model(
        tmp_path,
        """g (float[2] x) => (float[2] x, float[2] w, float[2] v, float[2] c, float[2] y, float[2] z)
        <float[2] w = {1.0001, 2}, float[2] v = {3.0001, 4}> {
            c = Constant <value = float[2] {5.0001, 6}> ()
            a = Add(x, w) b = Mul(a, c) y = Div(b, c) z = Sub(x, v)
        }""",
    )
    typed = make_typed(path, pinned=["y", "z"], io_types=io_types)
    wanted = FLOAT if io_types == "keep" else FLOAT16
    assert {typed.types[name] for name in "xwvcyz"} == {wanted}
    found = _check_run(typed, {"x": np.asarray([1, 2], np.float32)})
    dtype = np.float32 if io_types == "keep" else np.float16
    for name, values in {"w": [1.0001, 2], "v": [3.0001, 4], "c": [5.0001, 6]}.items():
        assert_same(found[name], np.asarray(values, dtype))


def test_an_input_with_a_default_becomes_a_constant(tmp_path: Path) -> None:
    """As in models of IR version 3, whose initializers all stand among the inputs."""
    path = write_model(
        tmp_path,
        """g (float[N,4] x, float[4] w, float[4] v) => (float[N,4] y)
        <float[4] w = {1.0001, 2, 3, 4}, float[4] v = {1, 2, 3, 4}> { a = Mul(x, w) y = Add(a, v) }""",
        ir_version=3,
        opset=9,
    )
    typed = make_typed(path, pinned=["y"])
    assert [info.name for info in typed.model.graph.input] == ["x"]
    assert typed.model.ir_version == 4
    assert {name: a.dtype.name for name, a in typed.initializers.items()} == {"w": "float16", "v": "float32"}
    _check_run(typed)


# ---------------------------------------------------------------- constants


def test_constants_are_converted_once_and_doubled_only_where_both_types_are_read(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[N,4] x) => (float[N,4] y)
        <float[4] low = {1.0001, 2, 3, 4}, float[4] high = {1e6, 2, 3, 4}, float[4] both = {1.0001, 2, 3, 4}> {
            a = Mul(x, low) b = Add(a, low) c = Mul(b, both) d = Add(c, both) e = Add(d, both) y = Add(e, high)
        }""",
    )
    typed = make_typed(path, pinned=["e", "y"])
    assert {name: a.dtype.name for name, a in typed.initializers.items()} == {
        "low": "float16",
        "high": "float32",
        "both": "float32",
        "both__fp16": "float16",
    }
    exact = np.asarray([1.0001, 2, 3, 4], np.float32)
    assert_same(typed.initializers["low"], exact.astype(np.float16))
    assert_same(typed.initializers["both__fp16"], exact.astype(np.float16))
    assert_same(typed.initializers["both"], exact)
    _check_run(typed)


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("value = float[2] {1.0001, -7}", [1.0001, -7]),
        ("value = float {1.0001}", 1.0001),
        ("value_float: float = 1.0001", 1.0001),
        ("value_floats: floats = [1.0001, -7.0]", [1.0001, -7]),
    ],
)
@pytest.mark.parametrize("pinned", [(), ("b",), ("a", "b")])
def test_constant_nodes_in_every_form(
    tmp_path: Path, attribute: str, expected: object, pinned: tuple[str, ...]
) -> None:
    path = write_model(
        tmp_path,
        f"g (float[2] x) => (float[2] y) {{ c = Constant <{attribute}> () a = Mul(x, c) b = Add(x, c) y = Mul(a, b) }}",
    )
    typed = make_typed(path, pinned=pinned)
    assert typed.ops().count("Constant") == (1 if pinned else 0)
    halves = [a for a in typed.initializers.values() if a.dtype == np.float16]
    assert len(halves) == (0 if len(pinned) == 2 else 1)
    for half in halves:
        assert_same(half, np.asarray(expected, np.float32).astype(np.float16))
    _check_run(typed, {"x": np.asarray([3, 70], np.float32)})


def test_constants_that_are_no_floats_stay(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[2,2] x) => (float[M] y, string[1] t) {
            t = Constant <value_strings: strings = ["a"]> ()
            k = Constant <value_ints: ints = [4, 1]> ()
            i = Constant <value_int: int = 0> ()
            r = Reshape(x, k) y = Gather(r, i)
        }""",
    )
    typed = make_typed(path)
    assert typed.ops().count("Constant") == 3
    _check_run(typed, {"x": X[:, :2]})


def test_a_constant_that_nothing_reads_in_fp16_is_left_where_it_is(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[2] x) => (float[2] y) <float[2] unread = {1, 2}> {
            c = Constant <value = float[2] {1, 2}> () i = Cast <to: int = 7> (c)
            f = Cast <to: int = 1> (i) y = Add(x, f)
        }""",
    )
    typed = make_typed(path)
    assert typed.initializers["unread"].dtype == np.float32
    assert list(typed.node_of("i").input) == ["c"]
    _check_run(typed, {"x": np.asarray([3, 70], np.float32)})


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [("", 0), ("<value = float[1] {1.0001}>", 1.0001), ("<value = float[1] {70000}>", np.inf)],
)
def test_constant_of_shape_is_retyped(tmp_path: Path, attribute: str, expected: float) -> None:
    path = write_model(
        tmp_path,
        f"g (float[2] x) => (float[2] y, float[2] z) {{ s = Shape(x) a = ConstantOfShape {attribute} (s) y = Add(x, a) "
        f"b = ConstantOfShape {attribute} (s) z = Sub(x, b) }}",
    )
    typed = make_typed(path, pinned=["b"])
    assert (typed.types["a"], typed.types["b"]) == (FLOAT16, FLOAT)
    outputs = typed.run({"x": np.zeros(2, np.float32)}, ["a"])
    assert_same(outputs["a"], np.full(2, expected, np.float32).astype(np.float16))
    _check_run(typed, {"x": np.zeros(2, np.float32)})


def test_constant_of_shape_of_integers_is_left_alone(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[2] x) => (float[2] y) {
            s = Shape(x) a = ConstantOfShape <value = int64[1] {3}> (s) f = Cast <to: int = 1> (a) y = Add(x, f)
        }""",
    )
    typed = make_typed(path)
    assert typed.types["a"] == "tensor(int64)"
    _check_run(typed, {"x": np.zeros(2, np.float32)})


def test_sparse_constants_are_typed_by_their_readers(tmp_path: Path) -> None:
    path = write_model(
        tmp_path, "g (float[N,4] x) => (float[N,4] y) { a = Relu(x) b = Mul(a, s) d = Mul(b, c) y = Neg(d) }"
    )
    model = onnx.load(path)
    model.graph.sparse_initializer.append(make_sparse("s", [1.0001, 5], [1, 2], [4]))
    sparse = make_sparse("c", [1.0001, 5], [[1], [2]], [4])
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], sparse_value=sparse))
    typed = make_typed(save(tmp_path, model))
    assert {typed.types[name] for name in "sc"} == {"tensor(float16)"}
    assert (typed.artifact.fp32_nodes, typed.artifact.kept) == ((), ())
    found = typed.run({"x": X})["y"]
    dense = np.asarray([0, 1.0001, 5, 0], np.float32).astype(np.float16)
    half = np.maximum(X, 0).astype(np.float16)
    d = ((half * dense) * dense).astype(np.float32)
    np.testing.assert_allclose(found, -d, rtol=2e-3)


# ---------------------------------------------------------------- names, left-out outputs


def test_duplicated_and_empty_node_names_and_names_like_ours(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[N,4] x) => (float[N,4] y, float[N,4] x__fp16) {
            [same] a = Relu(x) [same] a__fp32 = Neg(a) [Cast_a__fp32] y__fp16 = Exp(a__fp32)
            b = Add(a, y__fp16) [Cast_x__fp16] y = Sub(b, x) x__fp16 = Tanh(a)
        }""",
    )
    typed = make_typed(path, pinned=["y__fp16", "y"])
    names = [typed.node_of(tensor).name for tensor in ("a", "a__fp32", "y__fp16", "b", "y")]
    assert names == ["", "", "Cast_a__fp32", "", "Cast_x__fp16"]
    assert _casts(typed) == [
        ("x", "x__fp16_"),
        ("a__fp32", "a__fp32__fp32"),
        ("y__fp16", "y__fp16__fp16"),
        ("b", "b__fp32"),
        ("x__fp16__fp16", "x__fp16"),
    ]
    _check_run(typed)


@pytest.mark.parametrize("io_types", ["keep", "fp16"])
def test_nodes_without_names_go_by_the_same_labels(tmp_path: Path, io_types: str) -> None:
    """By which what an engine of the typed model tells is told of the model's own nodes."""
    text = "g (float[2,4] x) => (float[2,4] y, float[2,4] z) { a = Mul(x, x) y = Relu(a) [n] b = Neg(a) [n] z = Abs(b) }"
    path = write_model(tmp_path, text)
    typed = make_typed(path, pinned=["y"], io_types=io_types)
    labels = {node.label for node in load_graph(typed.artifact.path).nodes}
    assert {node.label for node in load_graph(path).nodes} <= labels


def test_names_inside_bodies_are_not_taken(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (bool k, float[N,4] x) => (float[N,4] y) {
            y = If (k) <
                then_branch = t () => (float[N,4] x__fp32) { x__fp32 = Relu(x) },
                else_branch = e () => (float[N,4] q) { y__fp32 = Neg(x) q = Abs(y__fp32) }
            >
        }""",
    )
    typed = make_typed(path, io_types="fp16")
    assert _casts(typed) == [("x", "x__fp32_"), ("y__fp32_", "y")]
    _check_run(typed, {"k": np.asarray(True), "x": X})


def test_optional_inputs_and_outputs_that_are_left_out(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[3,1,2] x, float[1,8,2] w, float[1,8,2] r, float[1,1,2] h) => (float[3,1,2] y, float[1,1,2] c)
        <float high = {50000}> {
            a = Clip(x, "", high) b, "" = Dropout(a) y = Neg(b)
            "", "", c = LSTM <hidden_size: int = 2> (a, w, r, "", "", h, h)
        }""",
    )
    typed = make_typed(path)
    assert list(typed.node_of("a").input) == ["x__fp16", "", "high"]
    assert list(typed.node_of("b").output) == ["b", ""]
    assert list(typed.node_of("c").output) == ["", "", "c__fp16"]
    assert list(typed.node_of("c").input)[3:5] == ["", ""]
    rng = np.random.default_rng(0)
    shapes = {"x": (3, 1, 2), "w": (1, 8, 2), "r": (1, 8, 2), "h": (1, 1, 2)}
    _check_run(typed, {n: rng.standard_normal(shape).astype(np.float32) for n, shape in shapes.items()})


# ---------------------------------------------------------------- control flow

NESTED = """g (bool k, bool l, float[2] x) => (float[2] y) <float[2] w = {1.0001, 5}, float[2] v = {1.0001, 6}> {
    a = Mul(x, w)
    b = If (k) <
        then_branch = t () => (float[2] o) {
            p = Add(a, w)
            o = If (l) <
                then_branch = tt () => (float[2] q) { r = Mul(a, v) q = Add(r, p) },
                else_branch = te () => (float[2] s) { s = Sub(x, w) }
            >
        },
        else_branch = e () => (float[2] u) { u = Identity(a) }
    >
    y = Mul(b, w)
}"""


@pytest.mark.parametrize("io_types", ["keep", "fp16"])
def test_control_flow_is_one_fp32_node_at_any_depth(tmp_path: Path, io_types: str) -> None:
    typed = make_typed(write_model(tmp_path, NESTED), io_types=io_types)
    assert [kept.node for kept in typed.artifact.kept] == ["node_of_b"]
    assert typed.artifact.fp32_nodes == ("node_of_b",)
    inner = {node.output[0]: list(node.input) for node in all_nodes(typed.model.graph)}
    x = "x" if io_types == "keep" else "x__fp32"
    assert inner["p"] == ["a__fp32", "w"]
    assert inner["r"] == ["a__fp32", "v"]
    assert inner["s"] == [x, "w"]
    assert inner["u"] == ["a__fp32"]
    assert inner["y" if io_types == "fp16" else "y__fp16"] == ["b__fp16", "w__fp16"]
    constants = {name: a.dtype.name for name, a in typed.initializers.items()}
    assert constants == {"w": "float32", "v": "float32", "w__fp16": "float16"}
    bodies = [
        attribute.g
        for node in typed.model.graph.node
        for attribute in node.attribute
        if attribute.HasField("g")
    ]
    assert all(not body.initializer for body in bodies)
    for flags in ((True, True), (True, False), (False, False)):
        feeds = {
            "k": np.asarray(flags[0]),
            "l": np.asarray(flags[1]),
            "x": np.asarray([3, 40000], np.float32),
        }
        _check_run(typed, feeds)


def test_a_pinned_model_with_bodies_is_the_original(tmp_path: Path) -> None:
    path = write_model(tmp_path, NESTED)
    typed = make_typed(path, pinned=["a", "b", "y"])
    assert list(typed.model.graph.node) == list(typed.graph.model.graph.node)


def test_sibling_bodies_share_names(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (bool k, float[2] x) => (float[2] y, float[2] z) {
            a = Relu(x)
            y = If (k) <
                then_branch = t () => (float[2] o) <float[2] c = {1, 2}> { m = Add(a, c) o = Mul(m, m) },
                else_branch = e () => (float[2] o) { m = Sub(a, x) o = Neg(m) }
            >
            z = Exp(a)
        }""",
    )
    typed = make_typed(path)
    inner = {node.output[0]: list(node.input) for node in all_nodes(typed.model.graph)}
    assert inner["m"] == ["a__fp32", "x"]
    assert inner["o"] == ["m"]
    for flag in (True, False):
        _check_run(typed, {"k": np.asarray(flag), "x": np.asarray([3, 4], np.float32)})


def test_names_that_a_body_shadows_stay_its_own(tmp_path: Path) -> None:
    """An inner body has an input of the name of a tensor that a sibling body reads."""
    path = write_model(
        tmp_path,
        """g (int64 n, bool k, float[2] x) => (float[2] y) {
            m = Exp(x)
            y = If (k) <
                then_branch = t () => (float[2] q) {
                    q = Loop (n, k, x) <
                        body = b (int64 i, bool c, float[2] m) => (bool d, float[2] o) { d = Identity(c) o = Mul(m, m) }
                    >
                },
                else_branch = e () => (float[2] p) { p = Neg(m) }
            >
        }""",
    )
    typed = make_typed(path)
    inner = {node.output[0]: list(node.input) for node in all_nodes(typed.model.graph)}
    assert (inner["o"], inner["p"]) == (["m", "m"], ["m__fp32"])
    for flag in (True, False):
        _check_run(typed, {"n": np.asarray(2), "k": np.asarray(flag), "x": np.asarray([1, 2], np.float32)})


def test_loop_and_scan_keep_state_and_captures_in_fp32(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[2] x, float[3,2] rows) => (float[2] y, float[3,2] kept, float[3,2] sums)
        <int64 three = {3}, bool on = {1}, float[2] w = {1.0001, 2}> {
            a = Mul(x, w)
            y, kept = Loop (three, on, a) <
                body = step (int64 i, bool c, float[2] s) => (bool d, float[2] n, float[2] o) {
                    d = Identity(c) t = Add(s, a) n = Mul(t, w) o = Neg(t)
                }
            >
            r = Abs(rows)
            last, sums = Scan (a, r) <num_scan_inputs: int = 1, body = add (float[2] p, float[2] q) => (float[2] u, float[2] v) {
                u = Add(p, q) v = Identity(u)
            }>
            unused = Neg(last)
        }""",
    )
    typed = make_typed(path)
    assert {kept.op_type for kept in typed.artifact.kept} == {"Loop", "Scan"}
    inner = {node.output[0]: list(node.input) for node in all_nodes(typed.model.graph)}
    assert inner["t"] == ["s", "a__fp32"]
    assert inner["n"] == ["t", "w"]
    feeds = {"x": np.asarray([3, 4], np.float32), "rows": np.ones((3, 2), np.float32)}
    _check_run(typed, feeds)


def test_the_body_of_integers_is_not_touched(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (bool k, float[2] x) => (int64[1] y, float[2] z) {
            a = Relu(x) s = Shape(a)
            y = If (k) <
                then_branch = t () => (int64[1] o) { o = Add(s, s) },
                else_branch = e () => (int64[1] o) { o = Identity(s) }
            >
            z = Neg(a)
        }""",
    )
    typed = make_typed(path)
    assert typed.artifact.kept == ()
    _check_run(typed, {"k": np.asarray(True), "x": np.asarray([3, 4], np.float32)})


# ---------------------------------------------------------------- other types


def test_sequences_stay_in_fp32(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[2] x, seq(float[2]) given) => (float[M] y, float[2] z, seq(float[2]) items) <int64 zero = {0}> {
            a = Relu(x) b = Neg(a)
            items = SequenceConstruct(a, b) at = SequenceAt(items, zero) y = ConcatFromSequence <axis: int = 0> (items)
            g = SequenceAt(given, zero) z = Mul(at, g)
        }""",
    )
    typed = make_typed(path)
    reasons = {kept.op_type for kept in typed.artifact.kept}
    assert reasons == {"SequenceAt", "ConcatFromSequence"}
    assert list(typed.node_of("items").input) == ["a__fp32", "b__fp32"]
    found = _check_run(
        typed, {"x": np.asarray([3, 4], np.float32), "given": [np.asarray([2, 2], np.float32)]}
    )
    assert found["items"][0].dtype == np.float32


def test_optionals_stay_in_fp32(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[2] x) => (float[2] y) {
            a = Relu(x) o = Optional(a) e = OptionalGetElement(o) y = Add(e, a)
        }""",
    )
    typed = make_typed(path)
    assert [kept.op_type for kept in typed.artifact.kept] == ["OptionalGetElement"]
    assert list(typed.node_of("o").input) == ["a__fp32"]
    assert_same(typed.run({"x": np.asarray([1.0001, 3], np.float32)})["y"], np.asarray([2, 6], np.float32))


def test_sequence_inputs_keep_their_type_when_inputs_become_fp16(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (seq(float[2]) given, float[2] x) => (float[2] y) <int64 zero = {0}> {
            a = SequenceAt(given, zero) y = Add(a, x)
        }""",
    )
    typed = make_typed(path, io_types="fp16")
    kinds = [info.type.WhichOneof("value") for info in typed.model.graph.input]
    assert kinds == ["sequence_type", "tensor_type"]
    feeds = {"given": [np.asarray([1, 2], np.float32)], "x": np.asarray([1, 2], np.float32)}
    assert typed.run(feeds)["y"].dtype == np.float16


def test_double_bf16_and_fp16_tensors_are_left_alone(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[2] x, double[2] d, float16[2] h) => (double[2] e, float16[2] i, float[2] y) <double[2] w = {1.0001, 2}> {
            e = Mul(d, w)
            i = Neg(h)
            b = Cast <to: int = 16> (x) c = Cast <to: int = 1> (b)
            f = Cast <to: int = 1> (e) j = Cast <to: int = 1> (i)
            k = Add(f, j) y = Add(k, c)
        }""",
    )
    typed = make_typed(path, io_types="fp16")
    kinds = {
        "e": "tensor(double)",
        "i": FLOAT16,
        "b": "tensor(bfloat16)",
        "w": "tensor(double)",
        "f": FLOAT16,
    }
    assert {name: typed.types[name] for name in kinds} == kinds
    assert set(typed.artifact.fp16_nodes) == {f"node_of_{name}" for name in ("c", "f", "j", "k", "y")}
    feeds = {
        "x": np.asarray([3, 4], np.float32),
        "d": np.asarray([3.00001, 4]),
        "h": np.asarray([3, 4], np.float16),
    }
    found = typed.run(feeds)
    assert_same(found["e"], np.asarray([3.00001 * 1.0001, 8]))
    assert_same(found["y"], np.asarray([3, 8], np.float16))


def test_functions_are_inlined(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        "g (float[N,4] x) => (float[N,4] y) { a = local.norm(x) y = local.norm(a) }",
        functions='<domain: "local", opset_import: ["" : 17]> norm (x) => (y) '
        "{ c = Constant <value = float {2.0001}> () square = Mul(x, x) d = Add(square, c) y = Sqrt(d) }",
    )
    typed = make_typed(path)
    assert not typed.model.functions
    assert set(typed.ops()) == {"Cast", "Mul", "Add", "Sqrt"}
    assert [a.dtype.name for a in typed.initializers.values()] == ["float16", "float16"]
    _check_run(typed)


def test_what_the_model_says_of_itself_is_kept(tmp_path: Path) -> None:
    model = onnx.load(write_model(tmp_path, "g (float[N,4] x) => (float[N,4] y) { y = Neg(x) }"))
    model.producer_name, model.model_version, model.doc_string = "exporter", 7, "words"
    model.metadata_props.add(key="names", value="cat")
    model.graph.doc_string = "graph"
    model.graph.metadata_props.add(key="g", value="1")
    model.graph.node[0].doc_string = "node"
    model.graph.node[0].metadata_props.add(key="n", value="2")
    model.graph.input[0].type.denotation = "IMAGE"
    result = make_typed(save(tmp_path, model)).model
    assert (result.producer_name, result.model_version, result.doc_string) == ("exporter", 7, "words")
    props = {entry.key: entry.value for entry in result.metadata_props}
    assert props.pop("names") == "cat"
    assert set(props) == {f"overflow_fixer.{key}" for key in ("model_sha256", "version", "plan_sha256")}
    assert (result.graph.doc_string, result.graph.metadata_props) == ("graph", model.graph.metadata_props)
    assert result.graph.input[0].type == model.graph.input[0].type
    (negation,) = [node for node in result.graph.node if node.op_type == "Neg"]
    assert (negation.doc_string, negation.metadata_props[0].value) == ("node", "2")
    assert result.opset_import == model.opset_import


def test_every_tensor_inside_is_declared_with_the_dimensions_that_are_numbers(tmp_path: Path) -> None:
    """A name of a dimension may not hold where a tensor is declared anew."""
    text = "g (float[N,4] x) => (float[N,4] y, float[N,4] z) { y = Neg(x) z = Exp(y) }"
    graph = make_typed(write_model(tmp_path, text), pinned=["z"]).model.graph
    declared = {info.name: info.type.tensor_type for info in graph.value_info}
    outputs = {info.name for info in graph.output}
    assert declared.keys() == {name for node in graph.node for name in node.output} - outputs
    assert "y__fp16" in declared
    for kind in declared.values():
        assert [(dim.dim_param, dim.dim_value) for dim in kind.shape.dim] == [("", 0), ("", 4)]


def test_a_name_that_is_taken_twice_over_is_made_another(tmp_path: Path) -> None:
    text = """g (float[N,4] x, float[N,4] x__fp16) => (float[N,4] y) {
        x__fp16_ = Neg(x__fp16) a = Relu(x) y = Add(a, x__fp16_)
    }"""
    typed = make_typed(write_model(tmp_path, text))
    assert ("x", "x__fp16__") in _casts(typed)
    _check_run(typed, {"x": X, "x__fp16": X})


@pytest.mark.parametrize(
    ("declared", "expected"), [([-1, 4], [-1, 4]), ([3], [3, 4]), ([3, 5], [3, 4]), ([3, None], [3, 0])]
)
def test_an_output_keeps_the_dimensions_that_do_not_contradict_what_is_inferred(
    tmp_path: Path, declared: list[int | None], expected: list[int]
) -> None:
    text = "g (float[3,4] x) => (float[3,4] y) { y = Neg(x) }"
    path = write_model(tmp_path, text)
    model = onnx.load(path)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, declared))
    onnx.save(model, path)
    (output,) = make_typed(path).model.graph.output
    assert [dim.dim_value for dim in output.type.tensor_type.shape.dim] == expected
