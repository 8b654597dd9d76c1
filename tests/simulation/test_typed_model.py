"""The simulation is FP16 hardware: its rounding, its weights, its failures on models that truly fail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32, run_typed
from onnx import TensorProto, helper, numpy_helper
from typed_models import assert_same, is_supported, make_typed, open_plain, plan_of, save, write_model

from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.graph.model import load_graph
from overflow_fixer.native import LIBRARY
from overflow_fixer.records import Artifact, Batch
from overflow_fixer.sessions.session import SessionRunner, open_session
from overflow_fixer.sessions.settings import has_native_probes
from overflow_fixer.simulation.typed_model import find_unsimulated, simulate

CALIB_DATA = Path(__file__).resolve().parents[2] / "calib_data"
SAMPLES = ("needs_constraints", "conv_chain", "layernorm_transformer", "masked_attention")
every_sample = pytest.mark.parametrize("name", SAMPLES)
WRONG_DB = 10.0
needs_library = pytest.mark.skipif(not LIBRARY.exists(), reason="the library was not built")


def _run(path: Path, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """A typed model under the simulation, every output by name; the same with the native operator and without."""
    graph, batch = load_graph(path), Batch("batch", dict(feeds))
    found, *others = (
        SessionRunner(open_session(simulate(graph, is_native=is_native), path.parent)).run(batch)
        for is_native in {False, has_native_probes()}
    )
    for other in others:
        assert list(other) == list(found)
        for name, values in found.items():
            assert_same(other[name], values)
    return found


def _to_fp16(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return values.astype(np.float16)


# ---------------------------------------------------------------- rounding


def _all_halves() -> np.ndarray:
    return np.arange(65536, dtype=np.uint16).view(np.float16)


def _values_of_every_class() -> np.ndarray:
    """Each half, the midpoint to the next one, the FP32 neighbours of both, and all that is beyond."""
    halves = np.sort(_all_halves()[np.isfinite(_all_halves())].astype(np.float32))
    ends = np.concatenate([halves, np.asarray([-65520, 65520], np.float32)])
    middles = (halves[:-1] + halves[1:]) / 2
    near = np.concatenate([ends, middles])
    limit = np.linspace(65504, 65520, 4097, dtype=np.float32)
    special = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)
    up, down = np.float32(np.inf), np.float32(-np.inf)
    return np.concatenate([near, np.nextafter(near, up), np.nextafter(near, down), limit, -limit, special])


def _random_floats() -> np.ndarray:
    bits = np.random.RandomState(0).randint(0, 2**32, 500_000, dtype=np.uint64)
    return bits.astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("make", [_values_of_every_class, _random_floats])
def test_what_is_read_is_rounded_as_numpy_rounds_it(tmp_path: Path, make: Any) -> None:
    path = write_model(tmp_path, "g (float[N] x) => (float[N] y) { y = Identity(x) }")
    typed = make_typed(path)
    values = make()
    assert_same(typed.run({"x": values})["y"], _to_fp16(values).astype(np.float32))


def test_what_a_node_computes_is_rounded_as_numpy_rounds_it(tmp_path: Path) -> None:
    """Products and sums of two halves; the product is exact in FP32."""
    path = write_model(
        tmp_path,
        """g (float[N] x, float[M,1] w) => (float[M,N] p, float[M,N] s, float[M,N] q) {
            p = Mul(x, w) s = Add(x, w) q = Div(x, w)
        }""",
    )
    typed = make_typed(path)
    x = _all_halves().astype(np.float32)
    w = np.asarray([[1], [1.0009765625], [-0.3332520], [2**-14], [2**-24], [1023.5], [0]], np.float32)
    w = w.astype(np.float16).astype(np.float32)
    found = typed.run({"x": x, "w": w})
    with np.errstate(all="ignore"):
        expected = {"p": x * w, "s": x + w, "q": x / w}
    for name, values in expected.items():
        assert_same(found[name], _to_fp16(values).astype(np.float32))


def test_fp16_inputs_and_outputs_keep_their_bits(tmp_path: Path) -> None:
    path = write_model(tmp_path, "g (float16[N] x) => (float16[N] y, float16[N] x) { y = Identity(x) }")
    found = _run(path, {"x": _all_halves()})
    assert_same(found["y"], _all_halves())
    assert_same(found["x"], _all_halves())


# ---------------------------------------------------------------- what overflows, and where


def test_an_overflow_between_nodes_becomes_infinite_and_then_nan(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        "g (float[3] x) => (float[3] y, float[3] z) { a = Mul(x, x) y = Sqrt(a) z = Sub(a, a) }",
    )
    typed = make_typed(path)
    found = typed.run({"x": np.asarray([2, 256, -300], np.float32)}, ["a"])
    assert found["a"].tolist() == [4, np.inf, np.inf]
    assert found["y"].tolist() == [2, np.inf, np.inf]
    assert np.isnan(found["z"]).tolist() == [False, True, True]


def test_sums_inside_a_node_stay_fp32(tmp_path: Path) -> None:
    path = write_model(tmp_path, "g (float[3] x) => (float[1] y) { y = ReduceSum(x) }")
    found = make_typed(path).run({"x": np.asarray([60000, 60000, -60000], np.float32)})
    assert found["y"].tolist() == [60000]


def test_weights_are_the_bits_that_ship(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[2] x) => (float[2] y, float[2] z) <float[2] w = {1.0001, 70000}> {
            c = Constant <value = float[2] {1.0001, 1e-8}> () y = Mul(x, w) z = Mul(x, c)
        }""",
    )
    typed = make_typed(path)
    found = typed.run({"x": np.ones(2, np.float32)}, ["w", "c"])
    assert (found["y"].tolist(), found["z"].tolist()) == ([1, np.inf], [1, 0])
    assert_same(found["w"], np.asarray([1, np.inf], np.float16))
    assert_same(found["c"], np.asarray([1, 0], np.float16))


def test_a_pinned_node_keeps_its_weights_whole(tmp_path: Path) -> None:
    path = write_model(
        tmp_path, "g (float[1] x) => (float[1] y) <float[1] w = {70000}> { a = Mul(x, w) y = Div(a, w) }"
    )
    found = make_typed(path, pinned=["a", "y"]).run({"x": np.asarray([1.0001], np.float32)})
    assert found["y"][0] == pytest.approx(1.0001, abs=1e-6)


# ---------------------------------------------------------------- what needs no rounding


def _ops(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


_MOVING = """g (float16[N] x, bool[N] k, float16[2,M] m) => (
    float16[A] a, float16[B] b, float16[C] c, float16[D] d, float16[E] e, float16[F] f, float16[G] h,
    float16[H] i, float16[I] j, float16[J] l, float16[K] n, float16[L] o
) <float16 low = {0xD640}, float16 high = {0x7C00}, float16[1] pad = {0x3555}, int64[2] pads = {1, 2}> {
    a = Relu(x) b = Neg(x) c = Abs(x) rev = Neg(b) d = Max(x, b) e = Min(x, a)
    f = Where(k, x, b) h = Clip(x, low, high) i = Concat <axis: int = 0> (a, b)
    flat = Reshape(m, minus) j = Identity(flat) p, q = Split <axis: int = 0> (m)
    l = Squeeze(q) n = Pad(x, pads, pad) o = Transpose <perm: ints = [0]> (rev)
}"""


def test_what_is_moved_or_selected_equals_the_emulation_and_is_not_rounded(tmp_path: Path) -> None:
    text = _MOVING
    for bits in ("0xD640", "0x7C00", "0x3555"):
        text = text.replace(bits, str(int(bits, 16)))
    model = onnx.load(write_model(tmp_path, text))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([-1]), "minus"))
    path = save(tmp_path, model)
    x = _all_halves()
    feeds = {"x": x, "k": np.arange(x.size) % 3 == 0, "m": x.reshape(2, -1)}
    tensors = [name for node in model.graph.node for name in node.output]
    simulated = simulate(load_graph(path), tensors)
    assert _ops(simulated).count("Cast") == 2 + len(tensors), "two inputs widened, and the outputs stored"
    views = [f"{name}__wide" for name in tensors]
    simulated.graph.output.extend(onnx.ValueInfoProto(name=view) for view in views)
    session = open_plain(simulated, tmp_path)
    expected = run_typed(path, feeds)
    for name in tensors:
        found, view = session.run([name, f"{name}__wide"], feeds)
        assert_same(found, expected[name])
        assert_same(view, expected[name].astype(np.float32))


@pytest.mark.parametrize(
    "text",
    [
        "y = Clip(x)",
        "y = Clip(x, , high)",
        "a = Unsqueeze(x, ends) b = MaxPool <kernel_shape: ints = [1]> (a) y = Squeeze(b, ends)",
    ],
)
def test_what_can_make_a_value_of_its_own_is_rounded(tmp_path: Path, text: str) -> None:
    """The widest FP32 value stands in for a bound that is left out, and for a window of NaN."""
    graph = "g (float16[N] x) => (float[N] z) <float16 high = {19456}> {"
    model = onnx.load(write_model(tmp_path, f"{graph} {text} z = Cast <to: int = 1> (y) }}"))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([0, 1]), "ends"))
    path = save(tmp_path, model)
    feeds = {"x": _all_halves()}
    found = _run(path, feeds)["z"]
    assert_same(found, run_typed(path, feeds)["z"])
    assert np.isneginf(found).any()


@pytest.mark.parametrize(
    "node", ["Clip <min: float = 0.1, max: float = 1e5>", "Pad <pads: ints = [0, 1], value: float = 0.1>"]
)
def test_values_that_are_attributes_are_rounded(tmp_path: Path, node: str) -> None:
    text = f"g (float16[N] x) => (float[M] z) {{ y = {node} (x) z = Cast <to: int = 1> (y) }}"
    path = write_model(tmp_path, text, opset=9)
    feeds = {"x": _all_halves()}
    found = _run(path, feeds)["z"]
    assert_same(found, run_typed(path, feeds)["z"])
    assert np.float32(np.float16(0.1)) in found


# ---------------------------------------------------------------- constants


@pytest.mark.parametrize("ir_version", [3, 8])
def test_small_constants_are_widened_once_and_add_up_as_others(tmp_path: Path, ir_version: int) -> None:
    """ONNX Runtime packs a constant matrix, and adds up its products in another order then."""
    rng = np.random.default_rng(0)
    text = "g (float16[M,K] x) => (float16[M,N] y) { p = MatMul(x, w) y = Add(p, b) }"
    model = onnx.load(write_model(tmp_path, text, ir_version=ir_version))
    for name, shape in (("w", (800, 5)), ("b", (5,))):
        value = numpy_helper.from_array(rng.normal(size=shape).astype(np.float16), name)
        model.graph.initializer.append(value)
        if ir_version == 3:
            model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape))
    path = save(tmp_path, model)
    simulated = simulate(load_graph(path))
    assert _ops(simulated) == ["Cast", "MatMul", "Cast", "Cast", "Add", "Cast"]
    assert {tensor.data_type for tensor in simulated.graph.initializer} == {TensorProto.FLOAT}
    feeds = {"x": rng.normal(size=(2000, 800)).astype(np.float16)}
    assert_same(_run(path, feeds)["y"], run_typed(path, feeds)["y"])


def test_large_constants_are_no_larger_in_the_model(tmp_path: Path) -> None:
    """Weights are widened when they are read, and of a table only the rows that are looked up."""
    rng = np.random.default_rng(0)
    text = "g (int64[N] i) => (float16[N,M] y) { rows = Gather(table, i) y = MatMul(rows, w) }"
    model = onnx.load(write_model(tmp_path, text))
    for name, shape in (("table", (3000, 70)), ("w", (70, 70))):
        model.graph.initializer.append(
            numpy_helper.from_array(rng.normal(size=shape).astype(np.float16), name)
        )
    path = save(tmp_path, model)
    simulated = simulate(load_graph(path))
    assert {tensor.data_type for tensor in simulated.graph.initializer} == {TensorProto.FLOAT16}
    assert sorted(n.input[0] for n in simulated.graph.node if n.op_type == "Cast") == ["rows", "w", "y__raw"]
    feeds = {"i": np.asarray([0, 2999, 7, 7])}
    assert_same(_run(path, feeds)["y"], run_typed(path, feeds)["y"])


def test_a_cast_of_the_models_own_to_fp32_is_the_view(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float16[N] x) => (float[N] y, float[N] z, float16[N] v) {
            y = Cast <to: int = 1> (x) a = Neg(x) z = Cast <to: int = 1> (a) v = Mul(x, a)
        }""",
    )
    assert _ops(simulate(load_graph(path))) == ["Cast", "Neg", "Mul", "Cast"]
    feeds = {"x": _all_halves()}
    found, expected = _run(path, feeds), run_typed(path, feeds)
    for name in ("y", "z", "v"):
        assert_same(found[name], expected[name])


@needs_library
def test_a_node_rounds_what_another_writes_and_the_models_own_casts_are_the_views(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float[N] x, float[N] w) => (float[N] y, float[N] z, float16[N] h) {
            a = Cast <to: int = 10> (x) b = Cast <to: int = 10> (w) h = Mul(a, b)
            y = Cast <to: int = 1> (h) c = Add(h, a) z = Cast <to: int = 1> (c)
        }""",
    )
    rounded = ["RoundToHalf", "RoundToHalf", "Mul", "RoundToHalf", "Add", "RoundToHalf", "Cast"]
    assert _ops(simulate(load_graph(path), is_native=True)) == rounded
    values = np.resize(_values_of_every_class(), 100_003)
    feeds = {"x": values, "w": values[::-1].copy()}
    found = _run(path, feeds)
    with np.errstate(over="ignore", invalid="ignore"):
        half = _to_fp16(_to_fp16(feeds["x"]).astype(np.float32) * _to_fp16(feeds["w"]).astype(np.float32))
        total = _to_fp16(half.astype(np.float32) + _to_fp16(feeds["x"]).astype(np.float32))
    assert_same(found["h"], half)
    assert_same(found["y"], half.astype(np.float32))
    assert_same(found["z"], total.astype(np.float32))


# ---------------------------------------------------------------- the samples


def _batches(name: str) -> list[dict[str, np.ndarray]]:
    batches = []
    for file in sorted((CALIB_DATA / name / "data").glob("*.npz")):
        with np.load(file) as arrays:
            batches.append({key: arrays[key] for key in arrays.files})
    assert batches
    return batches


def _naive(name: str, folder: Path) -> Artifact:
    graph = load_graph(CALIB_DATA / name / "model.onnx")
    return emit(graph, plan_of(graph), folder / "naive.onnx")


def _snr_db(reference: np.ndarray, candidate: np.ndarray) -> float:
    """10 log10(sum ref^2 / sum (ref - cand)^2); -inf as soon as the candidate is not finite."""
    if not np.isfinite(candidate).all():
        return -np.inf
    noise = np.square(reference.astype(np.float64) - candidate).sum()
    return float(10 * np.log10(np.square(reference.astype(np.float64)).sum() / noise)) if noise else np.inf


@every_sample
def test_naive_samples_fail_as_under_the_emulation(tmp_path: Path, name: str) -> None:
    artifact = _naive(name, tmp_path)
    runner = open_runner(artifact)
    for feeds in _batches(name):
        reference = run_fp32(CALIB_DATA / name / "model.onnx", feeds)
        emulated = run_fp16(CALIB_DATA / name / "model.onnx", feeds)
        for output, values in runner.run(Batch("batch", feeds)).items():
            assert _snr_db(reference[output], emulated[output]) < WRONG_DB
            assert _snr_db(reference[output], values) < WRONG_DB
            assert np.isfinite(values).all() == np.isfinite(emulated[output]).all()


@every_sample
def test_every_tensor_of_the_naive_samples_equals_the_emulation(tmp_path: Path, name: str) -> None:
    artifact = _naive(name, tmp_path)
    tensors = [tensor for node in load_graph(artifact.path).nodes for tensor in node.writes]
    runner = open_runner(artifact, tensors)
    for feeds in _batches(name)[:2]:
        expected = run_typed(artifact.path, feeds)
        for tensor, values in runner.run(Batch("batch", feeds)).items():
            assert_same(values, expected[tensor])


def test_onnx_runtime_alone_does_not_show_the_overflow_of_the_conv_chain(tmp_path: Path) -> None:
    """Its CPU kernels keep FP32 between the nodes of an FP16 graph."""
    artifact = _naive("conv_chain", tmp_path)
    simulated, plain = open_runner(artifact), open_plain(artifact.path, optimize=True)
    names = [output.name for output in plain.get_outputs()]
    for feeds in _batches("conv_chain"):
        reference = run_fp32(CALIB_DATA / "conv_chain" / "model.onnx", feeds)
        for name, values in zip(names, plain.run(None, feeds), strict=True):
            assert np.isfinite(values).all()
            assert _snr_db(reference[name], values) > 40
            assert np.isnan(simulated.run(Batch("batch", feeds))[name]).any()


# ---------------------------------------------------------------- FP16 models made elsewhere


def test_names_like_the_simulations_own_are_not_taken(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (bool k, float16[2] x, float16[2] x__wide) => (float16[2] y, float16[2] y__raw, float16[2] z) {
            y = Add(x, x__wide) y__raw = Neg(y)
            z = If (k) <
                then_branch = t () => (float16[2] z__raw) { y__wide = Abs(y) z__raw = Identity(y__wide) },
                else_branch = e () => (float16[2] o) { o = Identity(y) }
            >
        }""",
    )
    x = np.asarray([1, 2], np.float16)
    found = _run(path, {"k": np.asarray(True), "x": x, "x__wide": x})
    assert [found[name].tolist() for name in ("y", "y__raw", "z")] == [[2, 4], [-2, -4], [2, 4]]


def test_control_flow_runs_as_it_stands(tmp_path: Path) -> None:
    """FP32 bodies compute in FP32 whatever is around them; FP16 bodies in ONNX Runtime's own way."""
    path = write_model(
        tmp_path,
        """g (bool k, float16[2] x) => (float16[2] y, float[2] z, float16[2] v) <int64 two = {2}> {
            w = Cast <to: int = 1> (x)
            z = If (k) <
                then_branch = t () => (float[2] a) { s = Mul(w, w) a = Sqrt(s) },
                else_branch = e () => (float[2] b) { b = Neg(w) }
            >
            y = If (k) <
                then_branch = tt () => (float16[2] c) { c = Neg(x) },
                else_branch = ee () => (float16[2] d) { d = Abs(x) }
            >
            v = Loop (two, k, x) <
                body = step (int64 i, bool g, float16[2] h) => (bool l, float16[2] m) { l = Identity(g) m = Neg(h) }
            >
        }""",
    )
    x = np.asarray([-3, 60000], np.float16)
    found = _run(path, {"k": np.asarray(True), "x": x})
    assert (found["z"].tolist(), found["y"].tolist()) == ([3, 60000 - 60000 % 32], [3, -float(x[1])])
    assert_same(found["v"], x)
    found = _run(path, {"k": np.asarray(False), "x": x})
    assert (found["z"].tolist(), found["y"].tolist()) == ([3, -float(x[1])], [3, float(x[1])])


def test_sequences_and_typed_generators_run_as_they_stand(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (float16[2] x) => (float16[2] y, float16[2] z, float16[2] r, seq(float16[2]) q) <int64 zero = {0}, int64[1] two = {2}> {
            q = SequenceConstruct(x, x) y = SequenceAt(q, zero)
            c = ConstantOfShape <value = float16[1] {16384}> (two) z = Mul(x, c)
            n = RandomUniform <dtype: int = 1, low: float = 5.0, high: float = 6.0, shape: ints = [2]> ()
            r = Cast <to: int = 10> (n)
        }""",
    )
    found = _run(path, {"x": np.asarray([3, 40000], np.float16)})
    assert (found["y"].tolist(), found["z"].tolist()) == ([3, 40000], [6, np.inf])
    assert [item.dtype.name for item in found["q"]] == ["float16", "float16"]
    assert ((found["r"] >= 5) & (found["r"] <= 6)).all()


def test_casts_between_types(tmp_path: Path) -> None:
    path = write_model(
        tmp_path,
        """g (int64[3] i, float16[3] h, float[3] f) => (float16[3] a, int64[3] b, float16[3] c, float[3] d, bool[3] e, float16[3] l) {
            a = Cast <to: int = 10> (i) b = Cast <to: int = 7> (h) c = Cast <to: int = 10> (h)
            d = Cast <to: int = 1> (h) e = Cast <to: int = 9> (h) l = CastLike(f, h)
        }""",
    )
    feeds = {
        "i": np.asarray([1, 2049, 70000]),
        "h": np.asarray([1.5, 0, 60000], np.float16),
        "f": np.asarray([1.0001, 65520, -0.0], np.float32),
    }
    found = _run(path, feeds)
    assert found["a"].tolist() == [1, 2048, np.inf]
    assert found["b"].tolist() == [1, 0, 60000]
    assert_same(found["c"], feeds["h"])
    assert_same(found["d"], feeds["h"].astype(np.float32))
    assert found["e"].tolist() == [True, False, True]
    assert_same(found["l"], np.asarray([1, np.inf, -0.0], np.float16))


def test_operators_of_other_domains_run_as_they_stand(tmp_path: Path) -> None:
    path = write_model(
        tmp_path, "g (float16[2] x) => (float16[2] y) { a = Neg(x) y = com.microsoft.Gelu(a) }"
    )
    model = onnx.load(path)
    model.opset_import.add(domain="com.microsoft", version=1)
    simulated = simulate(load_graph(save(tmp_path, model)))
    (gelu,) = [node for node in simulated.graph.node if node.op_type == "Gelu"]
    assert gelu == model.graph.node[1]


def test_bits_are_read_as_they_are(tmp_path: Path) -> None:
    if not is_supported(26):
        pytest.skip("this ONNX Runtime has no BitCast")
    text = "g (float16[2] x) => (int16[2] y) { a = Neg(x) y = BitCast <to: int = 5> (a) }"
    found = _run(
        write_model(tmp_path, text, opset=26, ir_version=10), {"x": np.asarray([-1, -2], np.float16)}
    )
    assert found["y"].tolist() == [0x3C00, 0x4000]


def test_scales_in_fp16(tmp_path: Path) -> None:
    if not is_supported(19):
        pytest.skip("this ONNX Runtime has no FP16 scales")
    text = """g (float16[2] x) => (float16[2] y) <float16 scale = {14336}> {
        q = QuantizeLinear(x, scale, zero) y = DequantizeLinear(q, scale, zero)
    }"""
    model = onnx.load(write_model(tmp_path, text, opset=19))
    model.graph.initializer.append(numpy_helper.from_array(np.uint8(3), "zero"))
    found = _run(save(tmp_path, model), {"x": np.asarray([1, 7.25], np.float16)})
    assert found["y"].tolist() == [1, 7]


def test_a_model_without_fp16_is_simulated_as_it_is(tmp_path: Path) -> None:
    path = write_model(tmp_path, "g (float[2] x) => (float[2] y) { a = Mul(x, x) y = Sqrt(a) }")
    assert list(simulate(load_graph(path)).graph.node) == list(onnx.load(path).graph.node)


def test_each_fp16_tensor_is_widened_once(tmp_path: Path) -> None:
    path = write_model(
        tmp_path, "g (float16[2] x) => (float16[2] y) { a = Mul(x, x) b = Add(x, a) y = Sub(a, b) }"
    )
    simulated = simulate(load_graph(path))
    casts = [
        (n.input[0], helper.get_attribute_value(n.attribute[0]))
        for n in simulated.graph.node
        if n.op_type == "Cast"
    ]
    assert len(casts) == len(set(casts))
    assert sum(kind == TensorProto.FLOAT16 for _, kind in casts) == 3


def test_a_small_constant_that_one_of_its_readers_could_pack_is_no_initializer(tmp_path: Path) -> None:
    text = """g (float[4,4] x) => (float[4,4] y, float[4,4] z) { y = MatMul(x, w) z = Mul(x, w) }"""
    model = onnx.load(write_model(tmp_path, text))
    weight = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    typed = make_typed(save(tmp_path, model))
    simulated = simulate(load_graph(typed.artifact.path))
    assert [info.name for info in simulated.graph.input] == ["x", "w__wide"]


def test_names_like_those_of_the_twins_are_left_alone(tmp_path: Path) -> None:
    text = """g (float[2] x) => (float[2] y, float[2] a__raw, float[2] a__raw_) {
        a__raw = Neg(x) a__raw_ = Abs(x) a = Exp(x) y = Add(a, a__raw)
    }"""
    typed = make_typed(write_model(tmp_path, text))
    x = np.asarray([0.5, -1.5], np.float32)
    expected = run_typed(typed.artifact.path, {"x": x})
    for name, found in typed.run({"x": x}).items():
        assert_same(found, expected[name])


# ---------------------------------------------------------------- what is not simulated

BODIES = {
    "weight": "<float16[2] c = {1, 2}> { d = Add(c, c) o = Cast <to: int = 1> (d) }",
    "declared": "<float16[2] d> { d = CastLike(x, h) o = CastLike(d, x) }",
    "constant": "{ d = Constant <value = float16[2] {1, 2}> () o = Cast <to: int = 1> (d) }",
    "cast": "{ d = Cast <to: int = 10> (x) o = Cast <to: int = 1> (d) }",
    "inside": """{ o = If (k) <
        then_branch = i () => (float[2] q) { d = Cast <to: int = 10> (x) q = Cast <to: int = 1> (d) },
        else_branch = j () => (float[2] r) { r = Neg(x) }
    > }""",
    "captured": "{ d = Mul(h, h) o = Cast <to: int = 1> (d) }",
    "captured inside": """{ o = If (k) <
        then_branch = i () => (float[2] q) { d = Mul(h, h) q = Cast <to: int = 1> (d) },
        else_branch = j () => (float[2] r) { r = Neg(x) }
    > }""",
    "none": "<float[2] c = {1, 2}> { o = Add(x, c) }",
    "only widened": "{ d = Cast <to: int = 1> (h) o = Mul(d, d) }",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_computes_in_fp16_is_told(tmp_path: Path, name: str) -> None:
    path = write_model(
        tmp_path,
        f"""g (bool k, float[2] x, float16[2] h) => (float[2] y, float16[2] z) {{
            z = Neg(h)
            y = If (k) <
                then_branch = t () => (float[2] o) {BODIES[name]},
                else_branch = e () => (float[2] p) {{ p = Neg(x) }}
            >
        }}""",
    )
    found = [node.op_type for node in find_unsimulated(load_graph(path))]
    assert found == ([] if name in ("none", "only widened") else ["If"])


def test_a_body_that_takes_fp16_and_does_not_say_so_is_told(tmp_path: Path) -> None:
    text = """g (int64 n, bool k, float16[2] h) => (float16[2] y) {
        y = Loop (n, k, h) <body = b (int64 i, bool c, d) => (bool e, o) { e = Identity(c) o = Mul(d, d) }>
    }"""
    (found,) = find_unsimulated(load_graph(write_model(tmp_path, text)))
    assert found.op_type == "Loop"


def test_an_operator_of_another_domain_that_touches_fp16_is_told(tmp_path: Path) -> None:
    """What it rounds inside is its kernel's own."""
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float16[2] h, float[2] x) => (float16[2] y, float[2] z) {
        y = com.microsoft.Gelu (h) z = com.microsoft.Gelu (x)
    }"""
    path = save(tmp_path, onnx.parser.parse_model(text))
    assert [node.outputs for node in find_unsimulated(load_graph(path))] == [("y",)]
