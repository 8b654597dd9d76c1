"""Which operators stay in FP32 whatever the plan says, and which inputs do on nodes that run in FP16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import run_typed
from typed_models import FLOAT, FLOAT16, NEWEST_OPSET, assert_same, is_supported, make_typed, write_model

from overflow_fixer.backends.mixed_onnx.operators import KEPT_OPS, input_follows, output_follows, schema_of
from overflow_fixer.graph.model import load_graph

X = np.asarray([[1.0002, -3, 5, 300], [0.1, 65519, -2, 7]], np.float32)
IMAGE = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)

KEPT = {
    "LayerNormalization": (17, "b = LayerNormalization(a, w)"),
    "RMSNormalization": (23, "b = RMSNormalization(a, w)"),
    "GroupNormalization": (
        21,
        "r = Unsqueeze(a, two) q = GroupNormalization <num_groups: int = 2> (r, w, w) b = Squeeze(q, two)",
    ),
    "InstanceNormalization": (
        17,
        "r = Unsqueeze(a, two) q = InstanceNormalization(r, w, w) b = Squeeze(q, two)",
    ),
    "MeanVarianceNormalization": (17, "b = MeanVarianceNormalization <axes: ints = [1]> (a)"),
    "LpNormalization": (17, "b = LpNormalization(a)"),
    "LRN": (
        17,
        "r = Unsqueeze(a, two) s = Unsqueeze(r, two) q = LRN <size: int = 3> (s) t = Squeeze(q, two) b = Squeeze(t, two)",
    ),
    "LpPool": (17, "r = Unsqueeze(a, two) q = LpPool <kernel_shape: ints = [1]> (r) b = Squeeze(q, two)"),
    "GlobalLpPool": (17, "r = Unsqueeze(a, two) b = GlobalLpPool(r)"),
    "ReduceL2": (17, "b = ReduceL2(a)"),
    "ReduceSumSquare": (17, "b = ReduceSumSquare(a)"),
    "CumSum": (17, "i = Constant <value_int: int = 1> () b = CumSum(a, i)"),
    "CumProd": (26, "i = Constant <value_int: int = 1> () b = CumProd(a, i)"),
    "AffineGrid": (
        20,
        "k = Constant <value_ints: ints = [0, 1, 2]> () u = Unsqueeze(a, nought) t = Gather <axis: int = 2> (u, k) "
        "z = Constant <value_ints: ints = [1, 1, 2, 2]> () q = AffineGrid(t, z) b = ReduceSum <keepdims: int = 0> (q)",
    ),
    "Range": (17, "s = ReduceMax <keepdims: int = 0> (w) b = Range(zero, s, one)"),
    "Celu": (17, "b = Celu(a)"),
    "Upsample": (9, 'b = Upsample <mode: string = "nearest"> (a, scales)'),
    "HannWindow": (17, "q = HannWindow(four) b = Mul(a, q)"),
    "HammingWindow": (17, "q = HammingWindow(four) b = Mul(a, q)"),
    "BlackmanWindow": (17, "q = BlackmanWindow(four) b = Mul(a, q)"),
    "NonMaxSuppression": (
        17,
        "u = Unsqueeze(a, nought) t = Transpose(u) r = Squeeze(t, two) s = Unsqueeze(r, nought) "
        "q = NonMaxSuppression(u, scores) b = Cast <to: int = 1> (q)",
    ),
    "QuantizeLinear": (17, "q = QuantizeLinear(a, one) b = Cast <to: int = 1> (q)"),
    "DequantizeLinear": (17, "q = Cast <to: int = 2> (a) b = DequantizeLinear(q, one)"),
    "DynamicQuantizeLinear": (17, "q, s, z = DynamicQuantizeLinear(a) b = Identity(s)"),
    "CastLike": (17, "q = Cast <to: int = 7> (a) b = CastLike(q, a)"),
    "BitCast": (26, "q = BitCast <to: int = 6> (a) b = Cast <to: int = 1> (q)"),
    "EyeLike": (17, "b = EyeLike(a)"),
    "MelWeightMatrix": (
        17,
        "q = MelWeightMatrix(four, eight, rate, low, high) b = ReduceSum <keepdims: int = 0> (q)",
    ),
    "Multinomial": (17, "q = Multinomial(a) b = Cast <to: int = 1> (q)"),
    "Bernoulli": (17, "p = Sigmoid(a) b = Bernoulli(p)"),
    "RandomNormal": (17, "q = RandomNormal <shape: ints = [4]> () b = Mul(a, q)"),
    "RandomNormalLike": (17, "b = RandomNormalLike(a)"),
    "RandomUniform": (17, "q = RandomUniform <shape: ints = [4]> () b = Mul(a, q)"),
    "RandomUniformLike": (17, "b = RandomUniformLike(a)"),
}
"""For each operator an opset that has it and a body that leads from `a` through it to `b`."""

WEIGHTS = """float[4] w = {1, 2, 3, 4}, int64[1] nought = {0}, int64[1] two = {2}, int64 four = {4}, int64 eight = {8},
    int64 rate = {16}, float low = {1}, float high = {7}, float zero = {0}, float one = {1}, float[2] scales = {1, 2},
    float[1,1,2] scores = {0.5, 0.25}"""


def test_every_kept_operator_is_tried() -> None:
    assert set(KEPT) == set(KEPT_OPS)


@pytest.mark.parametrize("op_type", KEPT)
def test_kept_operators_run_in_fp32_with_their_reason(tmp_path: Path, op_type: str) -> None:
    opset, body = KEPT[op_type]
    if not is_supported(opset):
        pytest.skip(f"this ONNX Runtime has no opset {opset}")
    text = f"g (float[2,4] x) => (float y) <{WEIGHTS}> {{ a = Abs(x) {body} c = Neg(b) y = ReduceSum <keepdims: int = 0> (c) }}"
    path = write_model(tmp_path, text, opset=opset)
    typed = make_typed(path)
    (label,) = (node.label for node in typed.graph.nodes if node.op_type == op_type)
    node = typed.node_of(typed.graph.by_label[label].writes[0])
    assert FLOAT16 not in {typed.types[name] for name in (*node.input, *node.output) if name}
    writes_float = FLOAT in {typed.types[name] for name in node.output}
    assert [(kept.node, kept.reason) for kept in typed.artifact.kept if kept.op_type == op_type] == (
        [(label, KEPT_OPS[op_type])] if writes_float else []
    )
    assert typed.types["c"] == FLOAT16
    typed.run({"x": X})


@pytest.mark.parametrize(
    ("node", "kept"),
    [
        ("b = Gemm <alpha: float = 0.5> (a, w)", True),
        ("b = Gemm <beta: float = 2.0> (a, w, c)", True),
        ("b = Gemm <alpha: float = 1.0, transA: int = 0> (a, w, c)", False),
        ("b = Gemm(a, w)", False),
        ("m = IsInf <detect_negative: int = 0> (a) b = Where(m, c, a)", True),
        ("m = IsInf <detect_positive: int = 0> (a) b = Where(m, c, a)", True),
        ("m = IsInf(a) b = Where(m, c, a)", False),
        ('b = ScatterElements <axis: int = 1, reduction: string = "add"> (a, p, a)', True),
        ('b = ScatterElements <axis: int = 1, reduction: string = "none"> (a, p, a)', False),
        ("b = ScatterElements <axis: int = 1> (a, p, a)", False),
        ('b = ScatterND <reduction: string = "max"> (a, o, v)', True),
        ("b = ScatterND(a, o, v)", False),
        ("u = Unsqueeze(a, n) b, q = RNN <hidden_size: int = 1> (u, i, i1)", True),
        ('u = Unsqueeze(a, n) b, q = RNN <hidden_size: int = 1> (u, i, i1, "", "", h)', False),
        ("u = Unsqueeze(a, n) b, q = GRU <hidden_size: int = 1> (u, g, g1)", True),
        ('u = Unsqueeze(a, n) b, q = GRU <hidden_size: int = 1> (u, g, g1, "", "", h)', False),
        ('u = Unsqueeze(a, n) b, q = GRU <hidden_size: int = 1> (u, g, g1, "", "", "")', True),
        ('u = Unsqueeze(a, n) b, q = LSTM <hidden_size: int = 1> (u, l, l1, "", "", h)', True),
        ('u = Unsqueeze(a, n) b, q = LSTM <hidden_size: int = 1> (u, l, l1, "", "", h, h)', False),
    ],
)
def test_attributes_and_inputs_that_the_parser_types_in_fp32(tmp_path: Path, node: str, kept: bool) -> None:
    text = f"""g (float[2,4] x) => (float y) <float[4,4] w = {{{", ".join("1" * 16)}}}, float[4] c = {{1, 2, 3, 4}},
        int64[1] n = {{0}}, float[1,1,4] i = {{1, 2, 3, 4}}, float[1,1,1] i1 = {{1}}, float[1,2,1] h = {{1, 1}},
        float[1,3,4] g = {{{", ".join("1" * 12)}}}, float[1,3,1] g1 = {{1, 1, 1}},
        int64[2,4] p = {{0, 1, 2, 3, 3, 2, 1, 0}}, int64[1,1] o = {{1}}, float[1,4] v = {{1, 2, 3, 4}},
        float[1,4,4] l = {{{", ".join("1" * 16)}}}, float[1,4,1] l1 = {{1, 1, 1, 1}}>
        {{ a = Abs(x) {node} d = Neg(b) y = ReduceSum <keepdims: int = 0> (d) }}"""
    typed = make_typed(write_model(tmp_path, text, opset=20 if is_supported(20) else 17))
    checked = typed.graph.nodes[1 if typed.graph.nodes[1].op_type != "Unsqueeze" else 2]
    found = typed.node_of(checked.writes[0])
    assert typed.types[found.input[0]] == (FLOAT if kept else FLOAT16)
    listed = {label.node for label in typed.artifact.kept}
    assert listed == ({checked.label} if kept and checked.op_type != "IsInf" else set())
    assert_same(typed.run({"x": X})["y"], run_typed(typed.artifact.path, {"x": X})["y"])


@pytest.mark.parametrize("opset", [10, 11, 13, 18])
def test_resize_reads_scales_and_roi_in_fp32_and_x_in_fp16(tmp_path: Path, opset: int) -> None:
    roi = "" if opset == 10 else "roi, "
    text = f"""g (float[1,1,4,4] x) => (float[1,1,M,N] y)
        <float[4] scales = {{1, 1, 1.3749, 1.3749}}, float[8] roi = {{0, 0, 0.1, 0.1, 1, 1, 0.9001, 0.9001}}>
        {{ a = Neg(x) b = Mul(scales, scales) y = Resize (a, {roi}b) }}"""
    if opset > 10:
        text = text.replace(
            "Resize",
            'Resize <coordinate_transformation_mode: string = "tf_crop_and_resize", mode: string = "linear">',
        )
    typed = make_typed(write_model(tmp_path, text, opset=opset))
    found = typed.node_of("y")
    kinds = [typed.types[name] for name in found.input]
    assert kinds == ([FLOAT16, FLOAT] if opset == 10 else [FLOAT16, FLOAT, FLOAT])
    assert typed.types[found.output[0]] == FLOAT16
    assert_same(typed.run({"x": IMAGE})["y"], run_typed(typed.artifact.path, {"x": IMAGE})["y"])


def test_one_hot_reads_depth_and_indices_in_fp32_and_values_in_fp16(tmp_path: Path) -> None:
    """In FP16, 3001 classes would be 3000, and index 2049 the one before."""
    text = """g (float[2] x) => (float[2,3001] y) <float depth = {3001}, float[2] values = {0.25, 1.5}, float one = {1}>
        { i = Mul(x, one) h = OneHot (i, depth, values) y = Neg(h) }"""
    typed = make_typed(write_model(tmp_path, text), pinned=["i"])
    kinds = [typed.types[name] for name in (*typed.node_of("h").input, "h")]
    assert kinds == [FLOAT, FLOAT, FLOAT16, FLOAT16]
    expected = np.full((2, 3001), -0.25, np.float32)
    expected[[0, 1], [3000, 2049]] = -1.5
    assert_same(typed.run({"x": np.float32([3000, 2049])})["y"], expected)


def test_operators_of_other_domains_stay_in_fp32(tmp_path: Path) -> None:
    path = write_model(
        tmp_path, "g (float[2,4] x) => (float[2,4] y) { a = Abs(x) b = com.microsoft.Gelu(a) y = Neg(b) }"
    )
    model = onnx.load(path)
    model.opset_import.add(domain="com.microsoft", version=1)
    path.write_bytes(model.SerializeToString())
    typed = make_typed(path)
    (kept,) = typed.artifact.kept
    assert (kept.node, "com.microsoft" in kept.reason) == ("node_of_b", True)
    assert_same(typed.run({"x": X})["y"], run_typed(typed.artifact.path, {"x": X})["y"])


def test_an_operator_without_fp16_is_kept(tmp_path: Path) -> None:
    text = """g (float[2,4] x) => (float[2,2] y) {
        a = Abs(x) q = Cast <to: int = 6> (a)
        b = TfIdfVectorizer <max_gram_length: int = 1, max_skip_count: int = 0, min_gram_length: int = 1,
            mode: string = "TF", ngram_counts: ints = [0], ngram_indexes: ints = [0, 1], pool_int64s: ints = [2, 3]> (q)
        y = Neg(b) }"""
    typed = make_typed(write_model(tmp_path, text, opset=17))
    assert [kept.reason for kept in typed.artifact.kept] == ["ONNX opset 17 has no FP16 TfIdfVectorizer"]


def test_slots_beyond_the_schema_follow_the_variadic_one(tmp_path: Path) -> None:
    text = "g (float[2,4] x) => (float[8,4] y, float[2,4] z) { a = Abs(x) y = Concat <axis: int = 0> (a, a, a, a) z = Split(a) }"
    path = write_model(tmp_path, text)
    concat = load_graph(path).producers["y"]
    assert all(input_follows(concat, 17, slot) for slot in range(4))
    assert output_follows(concat, 17, 0)


def test_an_unknown_operator_has_no_schema() -> None:
    assert schema_of("NoSuchOperator", NEWEST_OPSET) is None
    assert schema_of("LayerNormalization", 16) is None
    assert schema_of("LayerNormalization", 17) is not None
