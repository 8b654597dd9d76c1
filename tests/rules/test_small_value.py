"""Tensors that are too small as a whole for FP16."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.zeros import shown_losses
from overflow_fixer.evidence.zeros.small_sources import LEAST_MAGNITUDE
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.small_value import find_small_values

ONE = {"one": scalar(1), "up": scalar(1e6)}
RUNS_SWISH = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 24)
BELOW = float(np.nextafter(np.float32(LEAST_MAGNITUDE), np.float32(0)))


def _pins(
    folder: Path, nodes: list[onnx.NodeProto], values: Any, constants: dict[str, Any] | None = None
) -> list[str]:
    model = make_model(nodes, {"x": None}, "y", {**ONE, **(constants or {})})
    graph, ranges = scan(model, folder, {"x": np.asarray(values, np.float32)})
    return pinned_by(find_small_values, graph, ranges)


@pytest.mark.parametrize(("largest", "is_under_35_db"), [(LEAST_MAGNITUDE, True), (2.0**-14, False)])
def test_where_rounding_nears_30_db(largest: float, is_under_35_db: bool) -> None:
    values = np.random.default_rng(0).normal(size=100_000) * largest / 4.5
    noise = values - values.astype(np.float16).astype(np.float64)
    snr_db = 10 * np.log10(np.square(values).sum() / np.square(noise).sum())
    assert bool(30 < snr_db < 35) == is_under_35_db


def test_of_less_than_half_a_step_none_is_held(tmp_path: Path) -> None:
    graph, ranges = scan(
        make_model([node("Neg", "x", "y")], {"x": [1]}, "y"), tmp_path, {"x": floats(2.35e-8)}
    )
    _, given = ask(find_small_values, graph, ranges)
    assert (
        given.reason == "y reaches 2.35e-08, of which FP16 holds no step of 2^-24, and the model gives it out"
    )


@pytest.mark.parametrize(
    ("values", "is_found"),
    [
        ([LEAST_MAGNITUDE, 0], False),
        ([BELOW, 0], True),
        ([-BELOW, 0], True),
        ([2.0**-24], True),
        ([1e-30], True),
        ([0, 0], False),
        (1e-7, True),
        ([1e-7, math.nan], False),
        ([1e-7, math.inf], False),
        ([], False),
    ],
)
def test_boundary(values: Any, is_found: bool, tmp_path: Path) -> None:
    nodes = [node("Neg", "x", "a"), node("Mul", "a up", "y")]
    assert _pins(tmp_path, nodes, values) == (["Neg_a", "Mul_y"] if is_found else [])


def test_the_evidence(tmp_path: Path) -> None:
    model = make_model([node("Neg", "x", "y")], {"x": [1]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats(1e-8)}, {"x": floats(-(2.0**-22))})
    own, given = ask(find_small_values, graph, ranges)
    assert (own.node, own.tensor, given.tensor, given.batch) == ("Neg_y", "x", "y", "batch_1")
    assert (given.value, given.limit) == (2.0**-22, LEAST_MAGNITUDE)
    assert (
        given.reason
        == "y reaches 2.38e-07, of which FP16 holds 4.0 steps of 2^-24, and the model gives it out"
    )


@pytest.mark.parametrize(
    ("nodes", "is_found"),
    [
        ([node("Mul", "a up", "y")], True),
        ([node("Tanh", "a", "b"), node("Mul", "b up", "y")], True),
        ([node("LayerNormalization", "a g", "y", epsilon=1e-20)], True),
        ([node("ArgMax", "a", "i", keepdims=0), node("Cast", "i", "y", to=1)], True),
        ([node("Softmax", "a", "y")], False),
        ([node("Sigmoid", "a", "y")], False),
        ([node("Exp", "a", "y")], False),
        ([node("Add", "a one", "y")], False),
        ([node("Max", "a one", "y")], False),
        ([node("Concat", "a h", "b", axis=0), node("Mul", "b g", "y")], True),
        ([node("Concat", "a h", "b", axis=0), node("Add", "b one", "y")], False),
        ([node("Concat", "a h", "b", axis=0), node("ReduceSum", "b", "y")], False),
        ([node("Where", "chosen a h", "b"), node("Add", "b one", "y")], False),
    ],
)
def test_where_it_shows(nodes: list[onnx.NodeProto], is_found: bool, tmp_path: Path) -> None:
    constants = {"g": np.full(4, 3, np.float32), "h": np.ones(0 if len(nodes) < 2 else 4, np.float32)}
    constants["chosen"] = np.asarray([True, False, True, True])
    if any(each.op_type == "Mul" and "g" in each.input for each in nodes):
        constants["g"] = np.full(8, 3, np.float32)
    pins = _pins(tmp_path, [node("Mul", "x one", "a"), *nodes], [1e-7, 2e-7, -3e-7, 0], constants)
    assert bool(pins) == is_found
    assert not pins or pins[:2] == ["Mul_a", f"{nodes[0].op_type}_{nodes[0].output[0]}"] or pins == ["Mul_a"]


SHOWN = [
    *(
        (op, "a", {}, 20)
        for op in """Abs Neg Relu LeakyRelu Elu Selu Celu Gelu Mish HardSwish Softsign Tanh Sin Tan Sinh Asin Atan
        Asinh Atanh Erf Sqrt Reciprocal Log Sign Ceil ReduceLogSum GlobalLpPool GlobalMaxPool Hardmax""".split()
    ),
    ("Floor", "a", {}, 20),
    ("Gelu", "a", {"approximate": "tanh"}, 20),
    ("ThresholdedRelu", "a", {"alpha": 0.0}, 20),
    ("Shrink", "a", {"lambd": 0.0}, 20),
    ("Shrink", "a", {"lambd": 0.0, "bias": 1.0}, 20),
    ("HardSigmoid", "a", {"beta": 0.0}, 20),
    ("PRelu", "a third", {}, 20),
    ("Mod", "a third", {"fmod": 1}, 20),
    ("Pow", "a third", {}, 20),
    ("Dropout", "a zero on", {}, 20),
    ("LRN", "a", {"size": 1}, 20),
    ("LpPool", "a", {"kernel_shape": [2, 2]}, 20),
    ("MaxPool", "a", {"kernel_shape": [2, 2]}, 20),
    ("ReduceProd", "a first", {}, 20),
    ("Resize", "a - twice", {}, 20),
    ("Upsample", "a twice", {}, 9),
    ("Where", "off third a", {}, 20),
    ("ScatterElements", "third4 places a", {}, 20),
    ("ScatterND", "third4 first2 a", {}, 20),
    ("Scatter", "a places a", {}, 9),
    ("CenterCropPad", "a size", {}, 20),
    ("Pad", "a pads", {}, 20),
    ("Trilu", "a", {}, 20),
    ("TopK", "a four", {}, 20),
    ("MaxUnpool", "a places", {"kernel_shape": [1, 1]}, 20),
    ("CastLike", "a third", {}, 20),
    pytest.param(
        "Swish", "a", {}, 24, marks=pytest.mark.skipif(not RUNS_SWISH, reason="opset 24 from 1.24 on")
    ),
]
HIDDEN = [
    *((op, "a", {}, 20) for op in "Sigmoid Softplus Exp Cos Cosh Acos Softmax LogSoftmax Round".split()),
    ("HardSigmoid", "a", {}, 20),
    ("ThresholdedRelu", "a", {}, 20),
    ("Shrink", "a", {}, 20),
    ("Max", "a third", {}, 20),
    ("ReduceLogSumExp", "a", {}, 20),
]
BESIDE = {
    "third": scalar(1 / 3),
    "zero": scalar(0),
    "down": scalar(1e-4),
    "up": scalar(1e4),
    "on": np.asarray(True),
    "off": np.asarray(False),
    "first": ints(0),
    "four": ints(4),
    "twice": floats(1, 1, 2, 2),
    "size": ints(1, 2, 4, 6),
    "pads": ints(*[1] * 8),
    "third4": np.full((1, 2, 4, 4), 1 / 3, np.float32),
    "places": np.zeros((1, 2, 4, 4), np.int64),
    "first2": ints(0)[None],
}


def _run(nodes: list[onnx.NodeProto], opset: int, **feeds: np.ndarray) -> np.ndarray:
    (name,) = feeds
    model = make_model(nodes, {name: None}, "y", BESIDE, opset)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    (found,) = session.run(None, feeds)
    return np.asarray(found, np.float64)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "opset", "shows"),
    [
        pytest.param(*getattr(case, "values", case), shows, marks=getattr(case, "marks", ()))
        for cases, shows in ((SHOWN, True), (HIDDEN, False))
        for case in cases
    ],
)
def test_what_operators_make_of_the_loss(
    op: str, inputs: str, attributes: dict[str, Any], opset: int, shows: bool, tmp_path: Path
) -> None:
    """Against the same network, run in FP32 but for the small tensor, of which FP16 makes zeros."""
    x = np.random.default_rng(0).uniform(0.5, 1.5, (1, 2, 4, 4)).astype(np.float32) * np.float32(1e-5)
    x = -x if op == "Floor" else x
    shrunk, rest = (
        node("Mul", "x down", "a"),
        [node(op, inputs, "b" if op != "TopK" else "b i", **attributes), node("Mul", "b up", "y")],
    )
    right = _run([shrunk, *rest], opset, x=x)
    rounded = (x * np.float32(1e-4)).astype(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore"):
        is_lost = not np.square(right - _run(rest, opset, a=rounded)).sum() <= 1e-3 * np.square(right).sum()
    assert is_lost == shows
    model = make_model([shrunk, *rest], {"x": None}, "y", BESIDE, opset)
    graph, ranges = scan(model, tmp_path, {"x": x})
    pins = pinned_by(find_small_values, graph, ranges)
    assert pins[:2] == (["Mul_a", f"{op}_b"] if shows else [])


def test_weights_and_a_bias(tmp_path: Path) -> None:
    w = np.ones((3, 2), np.float32)
    for name, inputs, pins in (("bias", "a w b", []), ("none", "a w", ["Neg_a", "Gemm_y"])):
        (tmp_path / name).mkdir()
        nodes = [node("Neg", "x", "a"), node("Gemm", inputs, "y")]
        values = np.full((2, 3), 1e-7)
        constants = {"w": w, "b": floats(0.5, 1)}
        assert _pins(tmp_path / name, nodes, values, constants) == pins


KERNEL = np.ones((2, 2, 1, 1), np.float32)
BIASED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "Conv": ("x w b", {}, {"w": KERNEL}),
    "ConvTranspose": ("x w b", {}, {"w": KERNEL}),
    "Gemm": ("rows w b", {}, {"w": np.eye(2, dtype=np.float32)}),
    "BatchNormalization": ("x s b m v", {}, {"s": floats(1, 1), "m": floats(0, 0), "v": floats(1, 1)}),
    "LayerNormalization": ("x s b", {}, {"s": floats(1, 1)}),
    "InstanceNormalization": ("x s b", {}, {"s": floats(1, 1)}),
    "GroupNormalization": ("x s b", {"num_groups": 1}, {"s": floats(1, 1)}),
}
"""The bias b is added to something."""


@pytest.mark.parametrize("op_type", BIASED)
@pytest.mark.parametrize(("largest", "is_found"), [(1.0, False), (0.0, True)])
def test_a_bias_is_a_term(op_type: str, largest: float, is_found: bool, tmp_path: Path) -> None:
    """Hidden beside what it is added to, and all there is where that is zero."""
    inputs, attributes, constants = BIASED[op_type]
    nodes = [node("Reshape", "x shape", "rows"), node(op_type, inputs, "y", **attributes)]
    values = largest * np.random.default_rng(0).uniform(-1, 1, (1, 2, 2, 2))
    given = {**constants, "b": floats(7e-8, -9e-8), "shape": ints(4, 2)}
    model = make_model(
        nodes, {"x": [1, 2, 2, 2]}, "y rows", given, 21 if op_type == "GroupNormalization" else 17
    )
    graph, ranges = scan(model, tmp_path, {"x": values.astype(np.float32)})
    found = ask(find_small_values, graph, ranges)
    assert [(one.node, one.tensor) for one in found] == [(f"{op_type}_y", name) for name in "by" if is_found]


@pytest.mark.parametrize(("beta", "is_found"), [(1.0, False), (-1e6, True), (0.0, False)])
def test_a_bias_that_is_scaled(beta: float, is_found: bool, tmp_path: Path) -> None:
    constants = {"w": np.eye(2, dtype=np.float32), "b": floats(7e-8, -9e-8)}
    pins = _pins(tmp_path, [node("Gemm", "x w b", "y", beta=beta)], np.ones((1, 2)), constants)
    assert pins == ["Gemm_y"] * is_found


@pytest.mark.parametrize(
    ("op_type", "shape", "attributes", "terms"),
    [
        ("Gemm", (3, 2), {}, 3),
        ("Gemm", (2, 3), {"transB": 1}, 3),
        ("Gemm", (3, 2), {"alpha": 4.0}, 3 * 16),
        ("Conv", (2, 3, 5, 5), {}, 75),
        ("Conv", (3, 1, 5, 5), {"group": 3}, 25),
        ("ConvTranspose", (3, 2, 5, 5), {}, 75),
        ("ConvTranspose", (3, 2, 5, 5), {"group": 3}, 25),
    ],
)
@pytest.mark.parametrize("is_weight", [True, False])
def test_noise_grows_by_the_root_of_the_terms(
    op_type: str,
    shape: tuple[int, ...],
    attributes: dict[str, Any],
    terms: float,
    is_weight: bool,
    tmp_path: Path,
) -> None:
    """Beside a bias that makes the output one number: of the small data, or of small weights."""
    is_image = len(shape) == 4
    tiny = 1e-7 * np.random.default_rng(0).uniform(0.5, 1, shape if is_weight else (1, 3, *(8, 8) * is_image))
    tiny.flat[0] = 1.5 * 2.0**-24
    largest = float(tiny.max())
    values, weight = (np.ones((1, 3, *(8, 8) * is_image)), tiny) if is_weight else (tiny, np.ones(shape))
    ratio = largest * math.sqrt(terms) * 2.0**11
    for factor, is_found in ((1.5, False), (1 / 1.5, True)):
        channels = attributes.get("group", 1) * shape[1] if op_type == "ConvTranspose" else shape[0]
        width = shape[0] if attributes.get("transB") else shape[1]
        bias = np.full(channels if is_image else width, factor * ratio * _share(tiny, is_weight))
        (tmp_path / str(factor)).mkdir()
        pins = _pins(
            tmp_path / str(factor),
            [node("Neg", "x", "a"), node(op_type, "a w b", "y", **attributes)],
            values,
            {"w": weight.astype(np.float32), "b": bias.astype(np.float32)},
        )
        assert (f"{op_type}_y" in pins) == is_found


def _share(tiny: np.ndarray, is_constant: bool) -> float:
    """What FP16 loses of it: noise for a constant, half a step of the largest value for data."""
    if not is_constant:
        return min(1.0, 2.0**-25 / float(np.float32(tiny.max())))
    value = tiny.astype(np.float32)
    return float(np.linalg.norm(value - value.astype(np.float16).astype(np.float64)) / np.linalg.norm(value))


def test_batch_normalization_makes_it_large_or_hides_it(tmp_path: Path) -> None:
    nodes = [node("Neg", "x", "a"), node("BatchNormalization", "a s b m v", "y", epsilon=1e-20)]
    for name, variance, bias, pins in (
        ("large", 1e-14, 0.0, ["Neg_a", "BatchNormalization_y"]),
        ("hidden", 1.0, 1.0, []),
    ):
        (tmp_path / name).mkdir()
        constants = {"s": floats(1), "b": floats(bias), "m": floats(0), "v": floats(variance)}
        assert _pins(tmp_path / name, nodes, np.full((1, 1, 2, 2), 1e-7), constants) == pins


@pytest.mark.parametrize(("slot", "is_found"), [("s", True), ("v", False), ("m", False)])
def test_small_parameters_of_a_batch_normalization(slot: str, is_found: bool, tmp_path: Path) -> None:
    """A scale is a factor of all; of a variance the epsilon is left, which another rule looks at; a mean is a term."""
    constants = {"s": floats(1, 1), "b": floats(0, 0), "m": floats(0, 0), "v": floats(1, 1)}
    constants[slot] = floats(7e-8, 9e-8)
    nodes = [node("BatchNormalization", "x s b m v", "y", epsilon=1e-3)]
    model = make_model(nodes, {"x": [1, 2, 2, 2]}, "y", constants)
    x = np.random.default_rng(0).uniform(1, 2, (1, 2, 2, 2)).astype(np.float32)
    graph, ranges = scan(model, tmp_path, {"x": x})
    assert (slot in {one.tensor for one in ask(find_small_values, graph, ranges)}) == is_found


@pytest.mark.parametrize("variance", [0.0, -1.0])
def test_a_batch_normalization_that_divides_by_zero_is_another_rules_matter(
    variance: float, tmp_path: Path
) -> None:
    nodes = [node("Neg", "x", "a"), node("BatchNormalization", "a s b m v", "y", epsilon=0.0)]
    constants = {"s": floats(1), "b": floats(0), "m": floats(0), "v": floats(variance)}
    pins = _pins(tmp_path, nodes, np.full((1, 1, 2, 2), 1e-7), constants)
    assert pins == []


def test_nothing_shows_behind_zeros(tmp_path: Path) -> None:
    """A divisor of 1e-6 under a numerator of zeros, and what comes after."""
    nodes = [
        node("Mul", "x zero", "nothing"),
        node("Div", "nothing x", "quotient"),
        node("Mul", "quotient up", "y"),
    ]
    assert _pins(tmp_path, nodes, [1e-6, 2e-6], {"zero": scalar(0)}) == []


@pytest.mark.parametrize(("sign", "is_found"), [(1, True), (-1, False)])
def test_of_negative_values_nothing_shows_behind_a_relu(sign: float, is_found: bool, tmp_path: Path) -> None:
    nodes = [node("Mul", "x sign", "a"), node("Relu", "a", "y")]
    pins = _pins(tmp_path, nodes, [1e-7, 2e-7], {"sign": scalar(sign)})
    assert pins == (["Mul_a", "Relu_y"] if is_found else [])


@pytest.mark.parametrize(
    ("factor", "is_found"), [(2.0**-20, False), (3 * 2.0**-24, False), (2.1e-7, True), (1e-9, False)]
)
def test_constants_that_fp16_holds_badly(factor: float, is_found: bool, tmp_path: Path) -> None:
    """Powers of two it holds; what vanishes is the rule vanishing_constant's."""
    nodes = [node("Mul", "x f", "y")]
    assert _pins(tmp_path, nodes, [3e5], {"f": scalar(factor)}) == (["Mul_y"] if is_found else [])


def test_an_empty_batch_beside_another(tmp_path: Path) -> None:
    model = make_model([node("Neg", "x", "a"), node("Mul", "a up", "y")], {"x": [None]}, "y", ONE)
    graph, ranges = scan(model, tmp_path, {"x": floats()}, {"x": floats(1e-7)})
    found = [f for f in ask(find_small_values, graph, ranges) if f.tensor == "a"]
    assert [(f.node, f.batch) for f in found] == [("Neg_a", "batch_1"), ("Mul_y", "batch_1")]


def test_an_empty_constant(tmp_path: Path) -> None:
    nodes = [node("Concat", "x none", "a", axis=0), node("Mul", "a up", "y")]
    pins = _pins(tmp_path, nodes, [1e-7], {"none": floats()})
    assert pins == ["Concat_a", "Mul_y"]


@pytest.mark.parametrize(
    ("value", "is_found"), [(LEAST_MAGNITUDE, False), (BELOW, True), (math.nan, False), (math.inf, False)]
)
def test_one_number(value: float, is_found: bool, tmp_path: Path) -> None:
    nodes = [node("Neg", "x", "a"), node("Mul", "a up", "y")]
    assert _pins(tmp_path, nodes, value) == (["Neg_a", "Mul_y"] if is_found else [])


def test_each_node_is_asked_once_however_long_a_chain_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tensor of the chain is small, grows on the way, and shows at its end."""
    asked, length = list[str](), 60
    plain = shown_losses._pass

    def note(graph: Graph, ranges: RangeTable, at: Node, *known: str) -> Any:
        asked.append(at.label)
        return plain(graph, ranges, at, *known)

    monkeypatch.setattr(shown_losses, "_pass", note)
    nodes = [node("Mul", f"t{i} a_little", f"t{i + 1}") for i in range(length)]
    model = make_model([*nodes, node("Neg", f"t{length}", "y")], {"t0": [1]}, "y", {"a_little": scalar(1.05)})
    graph, ranges = scan(model, tmp_path, {"t0": floats(1e-7)})
    assert pinned_by(find_small_values, graph, ranges) == [one.label for one in graph.nodes]
    assert len(asked) == 2 * length + 1


def test_what_many_nodes_make_and_many_read_is_asked_of_each_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried, count = list[float](), 40
    plain = shown_losses._carry_back

    def note(passed: Any, least: float) -> float | None:
        carried.append(least)
        return plain(passed, least)

    monkeypatch.setattr(shown_losses, "_carry_back", note)
    nodes = [node("Neg", "x", f"a{i}") for i in range(count)]
    nodes += [node("Concat", " ".join(f"a{i}" for i in range(count)), "c", axis=0)]
    nodes += [node("Mul", "c up", f"y{i}") for i in range(count)]
    model = make_model(nodes, {"x": [1]}, " ".join(f"y{i}" for i in range(count)), ONE)
    graph, ranges = scan(model, tmp_path, {"x": floats(1e-8)})
    assert pinned_by(find_small_values, graph, ranges) == [one.label for one in graph.nodes]
    assert len(carried) < 6 * count


def test_the_larger_of_two_losses_that_come_together_shows(tmp_path: Path) -> None:
    """Whichever way is looked at first: one of them is hidden beside the other."""
    for order in ("a b", "b a"):
        nodes = [
            node("Neg", "x", "a"),
            node("Mul", "x thousandth", "b"),
            node("Concat", order, "c", axis=0),
            node("Add", "c offset", "y"),
        ]
        offset = {"offset": scalar(1e-5), "thousandth": scalar(1e-3)}
        assert "Neg_a" in _pins(tmp_path, nodes, [1e-8], offset)


def test_an_infinite_tensor_on_the_way_hides_nothing(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x huge", "a"),
        node("Mul", "a huge", "b"),
        node("Add", "b one", "c"),
        node("Clip", "c one", "y"),
    ]
    assert "Mul_a" in _pins(tmp_path, nodes, [1e-8], {"huge": scalar(1e38)})
