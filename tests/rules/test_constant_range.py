"""Constants that FP16 cannot hold, and everything downstream that can carry their value."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto, helper, numpy_helper

from overflow_fixer.rules.constant_range import find_constants_out_of_range

MIN = float(np.finfo(np.float32).min)
BOOL = TensorProto.BOOL


def _pins(folder: Path, nodes: list[onnx.NodeProto], constants: dict[str, Any], **changes: Any) -> list[str]:
    """What the rule pins in a model of x [2, 3], and a switch c that is off in all calibration data."""
    inputs = {"x": [2, 3], "c": (BOOL, [2, 3]), "m": [2, 3], "i": (TensorProto.INT64, [1])}
    model = make_model(nodes, inputs, nodes[-1].output[0], constants, **changes)
    used = {name for n in nodes for name in n.input}
    del model.graph.input[:]
    model.graph.input.extend(
        helper.make_tensor_value_info(k, *(v if isinstance(v, tuple) else (TensorProto.FLOAT, v)))
        for k, v in inputs.items()
        if k in used
    )
    feeds = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "c": np.zeros((2, 3), bool),
        "m": np.zeros((2, 3), np.float32),
        "i": ints(0),
    }
    graph, ranges = scan(model, folder, {k: v for k, v in feeds.items() if k in used})
    return pinned_by(find_constants_out_of_range, graph, ranges)


@pytest.mark.parametrize("value", [MIN, -1e9, -65520])
def test_a_mask_that_no_sample_used_pins_up_to_softmax(value: float, tmp_path: Path) -> None:
    nodes = [
        node("Mul", "m mask", "masked"),
        node("Unsqueeze", "masked axes", "moved"),
        node("Add", "x moved", "scores"),
        node("Softmax", "scores", "p"),
        node("Neg", "p", "y"),
    ]
    pins = _pins(tmp_path, nodes, {"mask": scalar(value), "axes": ints(0)})
    assert pins == ["Mul_masked", "Unsqueeze_moved", "Add_scores", "Softmax_p"]


def test_an_infinity_is_one_in_fp16_too(tmp_path: Path) -> None:
    nodes = [
        node("Where", "c mask x", "masked"),
        node("Unsqueeze", "masked axes", "moved"),
        node("Add", "x moved", "scores"),
        node("Softmax", "scores", "p"),
        node("Mul", "p small", "q"),
        node("Mul", "moved tiny", "r"),  # -inf x 0 is a NaN, and FP32 has none
        node("Add", "q r", "y"),
    ]
    constants = {"mask": scalar(-math.inf), "axes": ints(0), "small": scalar(2**-24), "tiny": scalar(2**-25)}
    assert _pins(tmp_path, nodes, constants) == ["Mul_r"]


BOUNDED = {
    "Max": [node("Max", "a least", "b")],
    "Max, the other way round": [node("Max", "least a", "b")],
    "Clip": [node("Clip", "a least", "b")],
    "behind a sum": [node("Add", "a x", "s"), node("Max", "s least", "b")],
}


@pytest.mark.parametrize("form", BOUNDED)
def test_an_infinity_behind_a_finite_bound_is_that_number(form: str, tmp_path: Path) -> None:
    """torch.max(scores, finfo.min): a row that is masked as a whole is uniform in FP32, and NaN in FP16."""
    nodes = [node("Where", "c mask x", "a"), *BOUNDED[form], node("Softmax", "b", "y")]
    pins = _pins(tmp_path, nodes, {"mask": scalar(-math.inf), "least": scalar(MIN)})
    assert pins[-2:] == [nodes[-2].name, "Softmax_y"]


@pytest.mark.parametrize(
    ("factor", "is_pinned"), [(2.0**-25, True), (2.0**-24, False), (0, False), (-(2.0**-26), True)]
)
@pytest.mark.parametrize(
    "product",
    [
        node("Mul", "a k", "y"),
        node("Mul", "k a", "y"),
        node("PRelu", "a k", "y"),
        node("Einsum", "a one k", "y", equation="ij,ij,ij->ij"),
        node("BatchNormalization", "a k zero zero one1", "y"),
    ],
)
def test_a_product_with_what_fp16_rounds_to_zero_is_no_infinity(
    product: onnx.NodeProto, factor: float, is_pinned: bool, tmp_path: Path
) -> None:
    shape = (3,) if product.op_type == "BatchNormalization" else (2, 3)
    k = np.full(shape, factor, np.float32)
    constants = {"mask": scalar(-math.inf), "k": k, "one": np.ones((2, 3), np.float32)}
    constants |= {"zero": np.zeros(3, np.float32), "one1": np.ones(3, np.float32)}
    nodes = [node("Where", "c mask x", "a"), product, node("Sigmoid", "y", "z")]
    pins = _pins(tmp_path, nodes, {name: constants[name] for name in ("mask", *{*product.input} - {"a"})})
    assert pins == [f"{product.op_type}_y"] * is_pinned


def test_of_a_factor_whose_smallest_was_not_taken_the_worst_is_assumed(tmp_path: Path) -> None:
    nodes = [node("Where", "c mask x", "a"), node("Tanh", "x", "t"), node("Mul", "a t", "y")]
    assert _pins(tmp_path, nodes, {"mask": scalar(-math.inf)}) == ["Mul_y"]


def test_an_infinity_that_is_cast_to_integers_is_some_number(tmp_path: Path) -> None:
    nodes = [
        node("Where", "c mask x", "a"),
        node("Cast", "a", "n", to=TensorProto.INT64),
        node("Cast", "n", "f", to=TensorProto.FLOAT),
        node("Pow", "x a", "p"),
        node("Add", "f p", "y"),
    ]
    assert _pins(tmp_path, nodes, {"mask": scalar(-math.inf)}) == ["Cast_n", "Cast_f", "Pow_p", "Add_y"]


def test_an_infinity_beside_a_number_out_of_range_is_pinned(tmp_path: Path) -> None:
    nodes = [node("Where", "c low x", "a"), node("Tanh", "a", "y")]
    assert _pins(tmp_path, nodes, {"low": floats(-math.inf, 1, MIN)}) == ["Where_a", "Tanh_y"]


@pytest.mark.parametrize(
    ("value", "is_out"),
    [(65519.996, False), (65520, True), (-65504, False), (-65520, True), (math.inf, False), (1e38, True)],
)
def test_the_range_ends_where_rounding_gives_infinity(value: float, is_out: bool, tmp_path: Path) -> None:
    pins = _pins(tmp_path, [node("Where", "c big x", "a"), node("Tanh", "a", "y")], {"big": scalar(value)})
    assert pins == (["Where_a", "Tanh_y"] if is_out else [])


def test_the_evidence(tmp_path: Path) -> None:
    model = make_model(
        [node("Where", "c big x", "a"), node("Abs", "a", "y")],
        {"x": [2], "c": (BOOL, [2])},
        "y",
        {"big": floats(5, -1e6)},
    )
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2), "c": np.zeros(2, bool)})
    first, second = ask(find_constants_out_of_range, graph, ranges)
    assert (first.tensor, first.value, first.limit, first.batch) == ("big", -1e6, 65504, None)
    assert first.reason == "reads it: the constant big holds -1e+06, which FP16 cannot"
    assert (second.node, second.tensor) == ("Abs_y", "big")
    assert second.reason.startswith("a can carry it")


def test_constant_nodes_and_filled_tensors_are_constants(tmp_path: Path) -> None:
    tensor = numpy_helper.from_array(floats(-1e9))
    nodes = [
        node("Constant", "", "a", value_float=-1e9),
        node("ConstantOfShape", "shape", "b", value=tensor),
        node("Where", "c a x", "d"),
        node("Where", "c b d", "e"),
        node("Sigmoid", "e", "y"),
    ]
    pins = _pins(tmp_path, nodes, {"shape": ints(2, 3)})
    assert pins == ["ConstantOfShape_b", "Where_d", "Where_e", "Sigmoid_y"]


@pytest.mark.parametrize("op", ["Conv", "MatMul", "Gemm", "Mul", "Div", "Add"])
def test_a_weight_pins_its_node_and_what_comes_out_is_judged_by_the_data(op: str, tmp_path: Path) -> None:
    """The products and sums are seen in every sample: here they fit, the constant notwithstanding."""
    weight = np.full((3, 3), 1e-3, np.float32)
    weight[0, 0] = 70000  # x[:, 0] is 0 in one row and 3 in the other, so scaled down to fit
    shape = {"Conv": (3, 2, 1), "Mul": (2, 3), "Div": (2, 3), "Add": (2, 3)}.get(op, (3, 3))
    weight = np.resize(weight, shape).astype(np.float32)
    nodes = [
        node("Mul", "x tiny", "t"),
        *([node("Unsqueeze", "t axes", "u")] if op == "Conv" else []),
        node(op, ("u" if op == "Conv" else "t") + " w", "a"),
        node("Sub", "a a", "zero"),
        node("Neg", "zero", "y"),
    ]
    pins = _pins(tmp_path, nodes, {"w": weight, "tiny": scalar(1e-6), "axes": ints(0)})
    assert pins == ([f"{op}_a", "Sub_zero"] if op == "Add" else [f"{op}_a"])


def test_a_variance_pins_its_batch_normalization_alone(tmp_path: Path) -> None:
    nodes = [node("BatchNormalization", "x one zero zero var", "a"), node("Relu", "a", "y")]
    constants = {"one": floats(1, 1, 1), "zero": floats(0, 0, 0), "var": floats(1, 9.8e7, 2)}
    assert _pins(tmp_path, nodes, constants) == ["BatchNormalization_a"]


def test_a_bias_that_is_taken_away_again_pins_only_up_to_there(tmp_path: Path) -> None:
    nodes = [
        node("Add", "x big", "a"),
        node("Transpose", "a", "b"),
        node("Sub", "b big", "d"),
        node("MatMul", "d d2", "y"),
    ]
    constants = {"big": scalar(70000), "d2": np.ones((2, 2), np.float32)}
    assert _pins(tmp_path, nodes, constants) == ["Add_a", "Transpose_b", "Sub_d"]


@pytest.mark.parametrize(
    ("op", "inputs"),
    [("Softmax", "a"), ("Sigmoid", "a"), ("LayerNormalization", "a one"), ("Div", "one a"), ("Erf", "a")],
)
def test_the_value_ends_at_bounded_operators(op: str, inputs: str, tmp_path: Path) -> None:
    nodes = [node("Where", "c big x", "a"), node(op, inputs, "b"), node("Abs", "b", "y")]
    pins = _pins(tmp_path, nodes, {"big": scalar(-1e9), "one": floats(1, 1, 1)})
    assert pins == ["Where_a", f"{op}_b"]


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("MatMul", "a w"),
        ("LeakyRelu", "a"),
        ("ReduceMax", "a"),
        ("ReduceSum", "a"),
        ("TopK", "a k"),
        ("Pad", "a pads"),
        ("ScatterND", "x at a"),
        ("Sqrt", "a"),
        ("Pow", "a two"),
        ("PRelu", "a slope"),
        ("LayerNormalization", "x a1 b1"),
        ("Gelu", "a"),
    ],
)
def test_the_value_goes_through_what_can_show_it(op: str, inputs: str, tmp_path: Path) -> None:
    outputs = "b k2" if op == "TopK" else "b"
    domain = {"domain": "com.microsoft"} if op == "Gelu" else {}
    nodes = [
        node("Where", "c big x", "a"),
        node("ReduceMax", "a", "a1", axes=[0], keepdims=0, name="top"),
        node("Neg", "a1", "b1", name="minus"),
        node(op, inputs, outputs, **domain),
        node("Abs", "b", "y"),
    ]
    constants = {
        "big": scalar(-1e9),
        "w": np.eye(3, dtype=np.float32),
        "k": ints(2),
        "pads": ints(0, 1, 0, 1),
        "at": ints(1, 0).reshape(2, 1),
        "two": scalar(2),
        "slope": scalar(0.1),
    }
    pins = _pins(tmp_path, nodes, constants)
    assert f"{op}_b" in pins
    assert "Abs_y" in pins


def test_a_negative_value_ends_at_relu_elu_and_max_but_its_opposite_does_not(tmp_path: Path) -> None:
    for index, last in enumerate((node("Relu", "b", "d"), node("Elu", "b", "d"), node("Max", "b x", "d"))):
        for op, is_carried in (("Identity", False), ("Neg", True)):
            nodes = [node("Where", "c big x", "a"), node(op, "a", "b"), last, node("Tan", "d", "y")]
            folder = tmp_path / f"{index}{op}"
            folder.mkdir()
            pins = _pins(folder, nodes, {"big": scalar(-1e9)})
            assert ("Tan_y" in pins) is is_carried, (last.op_type, op)


@pytest.mark.parametrize("op", ["Exp", "Sinh", "Cosh"])
@pytest.mark.parametrize(
    ("between", "is_carried"),
    [
        *((node(op, "a", "b"), False) for op in ("Neg", "Abs", "Relu", "Identity")),
        (node("Sub", "x a", "b"), False),
        (node("ReduceMax", "a", "b"), False),
        (node("Mul", "a small", "b"), True),
        (node("Mul", "a third", "b"), False),
        (node("Div", "a three", "b"), False),
        (node("Div", "a large", "b"), True),
        (node("Mul", "a gaps", "b"), True),
        (node("Sqrt", "a", "b"), True),
        (node("ReduceMean", "a", "b"), True),
        (node("LeakyRelu", "a", "b"), True),
    ],
    ids=lambda given: given.op_type if isinstance(given, onnx.NodeProto) else "",
)
def test_behind_exp_fp32_has_infinity_too(
    op: str, between: onnx.NodeProto, is_carried: bool, tmp_path: Path
) -> None:
    """Of 1e9; but 1e9 * 1e-7 has an exponential that FP32 alone holds."""
    nodes = [node("Where", "c big x", "a"), between, node(op, "b", "d"), node("Tan", "d", "y")]
    pins = _pins(tmp_path, nodes, {"big": scalar(1e9), **FACTORS})
    assert f"{op}_d" in pins
    assert ("Tan_y" in pins) is is_carried


@pytest.mark.parametrize(
    ("scaling", "is_carried"),
    [
        (node("Mul", "a more", "b"), True),
        (node("Mul", "a less", "b"), False),
        (node("Mul", "less a", "b"), False),
        (node("Div", "a few", "b"), True),
        (node("Div", "a many", "b"), False),
        (node("Div", "a mixed", "b"), True),
        (node("Mul", "a mixed", "b"), True),
        (node("Mul", "a m", "b"), True),
        (node("Sqrt", "a", "b"), True),
    ],
    ids=lambda given: f"{given.op_type} {' '.join(given.input)}" if isinstance(given, onnx.NodeProto) else "",
)
def test_what_is_scaled_down_by_constants_ends(
    scaling: onnx.NodeProto, is_carried: bool, tmp_path: Path
) -> None:
    """Of 1e6, 110 is still of the constant, and of 90 FP16 has the sine."""
    nodes = [node("Where", "c big x", "a"), scaling, node("Neg", "b", "d"), node("Sin", "d", "y")]
    pins = _pins(tmp_path, nodes, {"big": scalar(1e6), **FACTORS})
    assert {"Where_a", f"{scaling.op_type}_b"} <= set(pins)
    assert ("Sin_y" in pins) is is_carried


@pytest.mark.parametrize(
    "behind",
    [
        [node("Mul", "a shrink", "b"), node("Mul", "b grow", "d")],
        [node("Mul", "a a", "b"), node("Mul", "b shrink", "d")],
        [node("ReduceSum", "a axes", "b"), node("Mul", "b shrink", "d")],
        [node("CumSum", "a axis", "b"), node("Mul", "b shrink", "d")],
        [node("Add", "a a", "b"), node("Mul", "b sixth", "d")],
        [node("Mul", "a shrink", "b"), node("Exp", "b", "e"), node("Mul", "e e", "d")],
        [node("Mul", "a shrink", "b"), node("Mul", "b x", "e"), node("Mul", "e e", "d")],
        [node("Sub", "a near", "b"), node("Exp", "b", "d")],
        [node("Div", "a nothing", "d")],
    ],
    ids=lambda given: " ".join(n.op_type for n in given),
)
def test_what_may_be_large_again_is_followed(behind: list[onnx.NodeProto], tmp_path: Path) -> None:
    """1e6: scaled down and up, squared, added up, near to another number."""
    nodes = [node("Where", "c big x", "a"), *behind, node("Tanh", "d", "y")]
    constants = {
        "big": scalar(1e6),
        "shrink": scalar(1e-5),
        "grow": scalar(1e5),
        "sixth": scalar(6e-5),
        "axes": ints(1),
        "axis": ints(1),
        "near": scalar(999990),
        "nothing": scalar(0),
    }
    assert "Tanh_y" in _pins(tmp_path, nodes, constants)


def test_the_remainder_of_a_large_number_is_a_share_of_it(tmp_path: Path) -> None:
    """x - 604800 floor(x / 604800), over 604800; the floor was 0 or 1 in all data, like a switch."""
    nodes = [
        node("Mul", "x period", "t"),
        node("Div", "t twice", "d"),
        node("Floor", "d", "whole"),
        node("Mul", "whole period", "w"),
        node("Sub", "t w", "rest"),
        node("Div", "rest period", "share"),
        node("Sin", "share", "y"),
    ]
    constants = {"period": scalar(604800), "twice": scalar(3 * 604800)}
    pins = _pins(tmp_path, nodes, constants)
    assert {"Mul_w", "Sub_rest", "Div_share"} <= set(pins)
    assert "Sin_y" not in pins


FACTORS = {
    "small": scalar(8e-8),
    "third": scalar(1 / 3),
    "three": scalar(3),
    "large": scalar(1e7),
    "gaps": np.asarray([[0, 1, 1]], np.float32),
    "more": scalar(11e-5),
    "less": scalar(-9e-5),
    "few": scalar(9e3),
    "many": scalar(11e3),
    "mixed": np.asarray([[-1e-3, 9e4, 11e4]], np.float32),
    "nothing": scalar(0),
}


@pytest.mark.parametrize(
    ("reduction", "is_carried"), [("none", False), ("max", False), ("add", False), ("mul", True)]
)
def test_the_start_of_what_is_scattered_ends_at_a_lower_bound(
    reduction: str, is_carried: bool, tmp_path: Path
) -> None:
    """-1e9 times an update below zero is far above it."""
    for last in (node("Max", "b low", "d"), node("Relu", "b", "d"), node("Clip", "b low", "d")):
        scatter = [
            node("Expand", "i shape", "at"),
            node("ScatterElements", "big at x", "b", reduction=reduction),
        ]
        constants = {"big": np.full((2, 3), -1e9, np.float32), "shape": ints(2, 3), "low": scalar(-1)}
        folder = tmp_path / last.op_type
        folder.mkdir()
        pins = _pins(folder, [*scatter, last, node("Tan", "d", "y")], constants, opset=18)
        assert "ScatterElements_b" in pins
        assert ("Tan_y" in pins) is is_carried


def test_max_of_two_masks_carries(tmp_path: Path) -> None:
    nodes = [
        node("Where", "c big x", "a"),
        node("Where", "c other m", "b"),
        node("Max", "a b", "d"),
        node("Tan", "d", "y"),
    ]
    assert "Tan_y" in _pins(tmp_path, nodes, {"big": scalar(-1e9), "other": scalar(-2e9)})


def test_a_softmax_written_out_ends_the_mask(tmp_path: Path) -> None:
    nodes = [
        node("Where", "c big x", "a"),
        node("ReduceMax", "a", "top", axes=[-1]),
        node("Sub", "a top", "down"),
        node("Exp", "down", "e"),
        node("ReduceSum", "e axes", "total"),
        node("Div", "e total", "y"),
    ]
    pins = _pins(tmp_path, nodes, {"big": scalar(MIN), "axes": ints(-1)})
    assert pins == ["Where_a", "ReduceMax_top", "Sub_down", "Exp_e"]


def test_max_pooling_takes_padding_away(tmp_path: Path) -> None:
    """Which elements are padding is no matter of the data, so the measured maximum tells."""
    nodes = [
        node("Reshape", "x shape", "r"),
        node("Pad", "r pads low", "p"),
        node("MaxPool", "p", "q", kernel_shape=[3, 3]),
        node("Relu", "q", "y"),
    ]
    constants = {"shape": ints(1, 1, 2, 3), "pads": ints(0, 0, 1, 1, 0, 0, 1, 1), "low": scalar(-math.inf)}
    assert _pins(tmp_path, nodes, {**constants, "low": scalar(MIN)}) == ["Pad_p", "MaxPool_q"]
    (tmp_path / "infinite").mkdir()
    assert _pins(tmp_path / "infinite", nodes, constants) == []


def test_what_indices_of_the_data_may_pick_is_carried(tmp_path: Path) -> None:
    table = np.asarray([[1, 2, 3], [4, 1e9, 6]], np.float32)
    nodes = [node("Gather", "table i", "a"), node("Neg", "a", "b"), node("Sigmoid", "b", "y")]
    assert _pins(tmp_path, nodes, {"table": table}) == ["Gather_a", "Neg_b", "Sigmoid_y"]
    (tmp_path / "fixed").mkdir()
    nodes = [node("Gather", "table first", "a"), node("Mul", "a x", "b"), node("Sigmoid", "b", "y")]
    assert _pins(tmp_path / "fixed", nodes, {"table": table, "first": ints(0)}) == ["Gather_a"]


@pytest.mark.parametrize(("op", "rows"), [("MatMul", "m"), ("Gemm", "m")])
def test_what_a_one_hot_product_may_pick_is_carried(op: str, rows: str, tmp_path: Path) -> None:
    table = np.asarray([[1, 2], [4, 1e9], [5, 6]], np.float32)
    nodes = [node(op, f"{rows} table", "a"), node("Neg", "a", "b"), node("Sigmoid", "b", "y")]
    assert _pins(tmp_path, nodes, {"table": table}) == [f"{op}_a", "Neg_b", "Sigmoid_y"]


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Clip", "x low high", "a")], {"low": scalar(MIN), "high": scalar(-MIN)}),
        ([node("Max", "x low", "a")], {"low": scalar(-math.inf)}),
        ([node("Min", "x high", "a")], {"high": floats(1e9, 7e4, 3e38)}),
        ([node("IsInf", "x", "f"), node("Where", "f high x", "a")], {"high": scalar(-MIN)}),
    ],
)
def test_bounds_are_recorded_and_pin_nothing(
    nodes: list[onnx.NodeProto], constants: dict[str, Any], tmp_path: Path
) -> None:
    model = make_model([*nodes, node("Neg", "a", "y")], {"x": [3]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2, 3)})
    found = ask(find_constants_out_of_range, graph, ranges)
    assert [f.action for f in found] == ["none"] * len(constants)
    assert all("only a bound" in f.reason for f in found)


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Clip", "x low", "a")], {"low": scalar(1e9)}),
        ([node("Max", "x low", "a")], {"low": floats(-1e9, 1e9, 0)}),
        ([node("Min", "x high", "a")], {"high": scalar(-1e9)}),
        ([node("Max", "x low", "n"), node("Add", "n low", "a")], {"low": scalar(-1e9)}),
    ],
)
def test_what_looks_like_a_bound_and_shows_pins(
    nodes: list[onnx.NodeProto], constants: dict[str, Any], tmp_path: Path
) -> None:
    model = make_model([*nodes, node("Neg", "a", "y")], {"x": [3]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2, 3)})
    assert pinned_by(find_constants_out_of_range, graph, ranges)[-1] == "Neg_y"


SIGMOID = node("Sigmoid", "b", "y")
REPLACED = {
    "its own infinities": [
        node("Exp", "x", "e"),
        node("IsInf", "e", "f"),
        node("Where", "f big e", "a"),
    ],
    "as PyTorch's older exporter writes it": [
        node("Exp", "x", "e"),
        node("Cast", "e", "d", to=TensorProto.DOUBLE),
        node("IsInf", "d", "f"),
        node("Greater", "e zero", "g"),
        node("Cast", "f", "f2", to=BOOL),
        node("Cast", "g", "g2", to=BOOL),
        node("And", "f2 g2", "h"),
        node("Where", "h big e", "a"),
    ],
    "once NaN is replaced": [
        node("Exp", "x", "e"),
        node("IsNaN", "e", "n"),
        node("Where", "n zero e", "e2"),
        node("IsInf", "e", "f"),
        node("Where", "f big e2", "a"),
    ],
    "of an input, by what FP32 does not bear either": [
        node("IsInf", "x", "f"),
        node("Where", "f most x", "a"),
    ],
}
SHOWN = {
    "of an input": [node("IsInf", "x", "f"), node("Where", "f big x", "a")],
    "of another tensor": [node("Exp", "x", "e"), node("IsInf", "m", "f"), node("Where", "f big e", "a")],
    "of another computed tensor": [
        node("Exp", "x", "e"),
        node("Exp", "m", "o"),
        node("IsInf", "o", "f"),
        node("Where", "f big e", "a"),
    ],
    "where there is none": [node("Exp", "x", "e"), node("IsInf", "e", "f"), node("Where", "f e big", "a")],
    "that a logarithm makes of zero": [
        node("Log", "x", "l"),
        node("Mul", "l x", "e"),
        node("IsInf", "e", "f"),
        node("Where", "f most e", "a"),
    ],
    "that a reciprocal makes of zero": [
        node("Reciprocal", "x", "e"),
        node("IsInf", "e", "f"),
        node("Where", "f big e", "a"),
    ],
    "that a constant brings": [
        node("Exp", "x", "e"),
        node("Where", "c low e", "masked"),
        node("IsInf", "masked", "f"),
        node("Where", "f big masked", "a"),
    ],
    "what was put there before": [
        node("Exp", "x", "e"),
        node("Where", "c big e", "chosen"),
        node("IsInf", "chosen", "f"),
        node("Where", "f zero chosen", "a"),
    ],
}


@pytest.mark.parametrize("name", REPLACED)
def test_what_replaces_infinities_that_fp32_has_not_pins_nothing(name: str, tmp_path: Path) -> None:
    constants = {"big": scalar(1e6), "most": scalar(-MIN), "zero": scalar(0)}
    nodes = [*REPLACED[name], node("Neg", "a", "b"), SIGMOID]
    assert _pins(tmp_path, nodes, constants) == []


@pytest.mark.parametrize("name", SHOWN)
def test_what_may_be_put_in_the_place_of_infinities_pins_what_can_carry_it(name: str, tmp_path: Path) -> None:
    constants = {"big": scalar(1e6), "most": scalar(MIN), "low": scalar(-math.inf), "zero": scalar(0)}
    nodes = [*SHOWN[name], node("Neg", "a", "b"), SIGMOID]
    assert {"Where_a", "Neg_b", "Sigmoid_y"} <= set(_pins(tmp_path, nodes, constants))


@pytest.mark.parametrize(
    ("scale", "is_carried"),
    [(1000.0, True), (257.0, True), (256.0, True), (39.25, True), (39.0, False), (0.5, False)],
)
@pytest.mark.parametrize("between", [[], [node("Reshape", "q shape", "r")]], ids=["", "Reshape"])
def test_what_is_quantized_is_carried_as_far_as_its_steps_reach(
    scale: float, is_carried: bool, between: list[onnx.NodeProto], tmp_path: Path
) -> None:
    nodes = [
        node("Where", "c big x", "a"),
        node("QuantizeLinear", "a scale point", "q"),
        *between,
        node("DequantizeLinear", f"{'r' if between else 'q'} scale point", "d"),
        node("Sigmoid", "d", "y"),
    ]
    constants = {"big": scalar(1e5), "scale": scalar(scale), "point": np.int8(0), "shape": ints(-1)}
    pins = _pins(tmp_path, nodes, constants)
    told = [name for name in pins if name in ("Where_a", "DequantizeLinear_d", "Sigmoid_y")]
    behind = [*(["DequantizeLinear_d"] if scale > 256 else []), "Sigmoid_y"] if is_carried else []
    assert told == ["Where_a", *behind]


def test_what_is_quantized_goes_on_as_large_as_its_steps_reach(tmp_path: Path) -> None:
    """51,000 times ten."""
    nodes = [
        node("Where", "c big x", "a"),
        node("QuantizeLinear", "a scale point", "q"),
        node("DequantizeLinear", "q scale point", "d"),
        node("Mul", "d ten", "t"),
        node("Mul", "t hundredth", "y"),
    ]
    constants = {
        "big": scalar(1e5),
        "scale": scalar(200),
        "point": np.int8(0),
        "ten": scalar(10),
        "hundredth": scalar(0.01),
    }
    assert _pins(tmp_path, nodes, constants)[-2:] == ["Mul_t", "Mul_y"]


def test_a_quantized_bias_is_no_number_that_fp16_holds_or_not(tmp_path: Path) -> None:
    nodes = [node("DequantizeLinear", "bias scale", "b"), node("Add", "x b", "y")]
    constants = {"bias": np.array([100000, -90000, 5], np.int32), "scale": scalar(1e-4)}
    assert _pins(tmp_path, nodes, constants) == []


@pytest.mark.parametrize("count", [40, 400])
def test_conditions_of_many_parts(count: int, tmp_path: Path) -> None:
    """As deep as that, and each twice."""
    nodes = [node("Exp", "x", "e"), node("IsInf", "e", "f0")]
    nodes += [node("And", f"f{i} f{i}", f"f{i + 1}") for i in range(count)]
    nodes += [node("Where", f"f{count} big e", "a"), node("Sigmoid", "a", "y")]
    assert _pins(tmp_path, nodes, {"big": scalar(1e6)}) == []


def test_a_clip_ends_the_value(tmp_path: Path) -> None:
    nodes = [node("Where", "c big x", "a"), node("Clip", "a low", "b"), node("Neg", "b", "y")]
    assert _pins(tmp_path, nodes, {"big": scalar(-1e9), "low": scalar(-50)}) == ["Where_a", "Clip_b"]


@pytest.mark.parametrize("opset", [10, 17])
@pytest.mark.parametrize("value", [-1e9, 1e9])
@pytest.mark.parametrize("bounds", [(-1e8, 1e8), (-65504.0, 65520.0), (-65520.0, 65504.0)])
def test_a_clip_ends_the_value_where_fp16_holds_its_bound(
    bounds: tuple[float, float], value: float, opset: int, tmp_path: Path
) -> None:
    low, high = bounds
    clip = node("Clip", "a", "b", min=low, max=high) if opset < 11 else node("Clip", "a low high", "b")
    nodes = [node("Where", "c big x", "a"), clip, node("Neg", "b", "y")]
    constants = {"big": scalar(value), **({} if opset < 11 else {"low": scalar(low), "high": scalar(high)})}
    with np.errstate(over="ignore"):
        is_held = bool(np.isfinite(np.float16(np.clip(value, low, high))))
    pins = _pins(tmp_path, nodes, constants, opset=opset)
    assert pins == ["Where_a", "Clip_b", *([] if is_held else ["Neg_y"])]


@pytest.mark.parametrize("turn", [node("Neg", "a", "b"), node("Sub", "x a", "b")], ids=["Neg", "Sub"])
def test_a_positive_value_turned_negative_ends_at_relu(turn: onnx.NodeProto, tmp_path: Path) -> None:
    nodes = [node("Where", "c big x", "a"), turn, node("Relu", "b", "d"), node("Tan", "d", "y")]
    assert _pins(tmp_path, nodes, {"big": scalar(1e9)}) == ["Where_a", turn.name, "Relu_d"]


def test_what_the_data_decide_is_carried_beside_the_constant_itself(tmp_path: Path) -> None:
    """2 big - big: with the switch on it is out of range, and no sample shows that."""
    nodes = [
        node("Where", "c big x", "a"),
        node("Add", "a big", "b"),
        node("Sub", "b big", "d"),
        node("Neg", "d", "y"),
    ]
    pins = _pins(tmp_path, nodes, {"big": scalar(-1e9)})
    assert pins == ["Where_a", "Add_b", "Sub_d", "Neg_y"]


@pytest.mark.parametrize(("op", "inputs"), [("Cast", "masked"), ("CastLike", "masked x")])
def test_an_integer_mask_pins_from_its_cast_on(op: str, inputs: str, tmp_path: Path) -> None:
    nodes = [
        node("Cast", "c", "on", to=TensorProto.INT64),
        node("Mul", "on big", "masked"),
        node(op, inputs, "f", **({"to": TensorProto.FLOAT} if op == "Cast" else {})),
        node("Add", "x f", "a"),
        node("Softmax", "a", "y"),
    ]
    assert _pins(tmp_path, nodes, {"big": ints(-1000000000)}) == [f"{op}_f", "Add_a", "Softmax_y"]


def test_integers_that_only_steer_pin_nothing(tmp_path: Path) -> None:
    nodes = [
        node("Concat", "end end", "ends", axis=0),
        node("Slice", "x start ends", "a"),
        node("Gather", "a first", "b", axis=0),
        node("Greater", "i end", "late"),
        node("Where", "late b x", "y"),
    ]
    constants = {"start": ints(0, 0), "end": ints(2**63 - 1), "first": ints(0, 1)}
    assert _pins(tmp_path, nodes, constants) == []


def test_the_end_of_a_slice_from_where_the_data_say_pins_nothing(tmp_path: Path) -> None:
    nodes = [node("Slice", "x i end", "a"), node("Neg", "a", "y")]
    assert _pins(tmp_path, nodes, {"end": ints(2**63 - 1)}) == []


def test_what_a_loop_starts_from_comes_out_where_it_does_not_run(tmp_path: Path) -> None:
    """It ran once in the sample, which took the constant away."""
    turn, go, go_on = (
        helper.make_tensor_value_info(name, kind, [])
        for name, kind in (("turn", TensorProto.INT64), ("go", BOOL), ("go_on", BOOL))
    )
    before, after = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("v", "next"))
    steps = [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Identity", ["x"], ["next"])]
    body = helper.make_graph(steps, "body", [turn, go, before], [go_on, after])
    nodes = [
        node("Add", "i one", "turns"),
        node("Loop", "turns - big", "a", body=body),
        node("Add", "a x", "y"),
    ]
    constants = {"big": np.full((2, 3), -1e9, np.float32), "one": ints(1)}
    assert _pins(tmp_path, nodes, constants) == ["Loop_a", "Add_y"]


def test_a_sequence_carries(tmp_path: Path) -> None:
    nodes = [
        node("Where", "c big x", "a"),
        node("SequenceConstruct", "a x", "s"),
        node("SequenceAt", "s i0", "b"),
        node("Sigmoid", "b", "y"),
    ]
    pins = _pins(tmp_path, nodes, {"big": scalar(-1e9), "i0": np.asarray(1, np.int64)})
    assert pins == ["Where_a", "SequenceConstruct_s", "SequenceAt_b", "Sigmoid_y"]


def test_a_body_that_captures_the_value_carries_it(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info("inner", TensorProto.FLOAT, None)
    then = helper.make_graph([helper.make_node("Where", ["c", "big", "x"], ["inner"])], "then", [], [info])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["inner"])], "else", [], [info])
    nodes = [
        node("ReduceMax", "m", "level", keepdims=0),
        node("Cast", "level", "any", to=BOOL),
        node("Identity", "c", "c_again"),
        node("If", "any", "a", then_branch=then, else_branch=other),
        node("Identity", "x", "x_again"),
        node("Add", "a x_again", "y"),
    ]
    assert _pins(tmp_path, nodes, {"big": scalar(-1e9)}) == ["If_a", "Add_y"]


def test_float64_and_large_values_of_it(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "big", "b", to=TensorProto.FLOAT),
        node("Where", "c b x", "a"),
        node("Tanh", "a", "y"),
    ]
    assert _pins(tmp_path, nodes, {"big": np.asarray(-1e300)}) == ["Cast_b", "Where_a", "Tanh_y"]
