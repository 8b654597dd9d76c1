"""Producer and consumers of what is over the threshold, until values fit again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto, helper

from overflow_fixer.records import PlanPolicy
from overflow_fixer.rules.threshold import find_over_threshold

X = {"x": floats(1, -2)}


def test_pins_the_producer_and_every_consumer_and_nothing_else(tmp_path: Path) -> None:
    model = make_model(
        [
            node("Abs", "x", "a"),
            node("Mul", "a big", "over"),
            node("Mul", "over small", "left"),
            node("Tanh", "over", "right"),
            node("Neg", "left", "y"),
            node("Neg", "right", "z"),
        ],
        {"x": [2]},
        "y z",
        {"big": scalar(9000), "small": scalar(1e-3)},
    )
    graph, ranges = scan(model, tmp_path, X)
    assert pinned_by(find_over_threshold, graph, ranges) == ["Mul_over", "Mul_left", "Tanh_right"]


def test_goes_on_through_nodes_that_move_elements_until_values_fit(tmp_path: Path) -> None:
    model = make_model(
        [
            node("Mul", "x big", "over"),
            node("Reshape", "over shape", "moved"),
            node("Transpose", "moved", "turned"),
            node("Concat", "turned turned", "joined", axis=0),
            node("Slice", "joined start end", "cut"),
            node("Neg", "cut", "y"),
            node("Mul", "joined small", "back"),
            node("Neg", "back", "z"),
        ],
        {"x": [2]},
        "y z",
        {
            "big": floats(20000, 1),
            "shape": ints(2, 1),
            "start": ints(0, 1),
            "end": ints(9, 2),
            "small": scalar(1e-3),
        },
    )
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 1)})
    expected = ["Mul_over", "Reshape_moved", "Transpose_turned", "Concat_joined", "Slice_cut", "Mul_back"]
    assert pinned_by(find_over_threshold, graph, ranges) == expected
    assert ranges.by_tensor["cut"].max_abs == 1


@pytest.mark.parametrize(
    ("value", "is_over"), [(10000, False), (np.nextafter(np.float32(10000), np.inf), True), (-10000.5, True)]
)
def test_the_threshold_itself_is_not_over_it(value: float, is_over: bool, tmp_path: Path) -> None:
    graph, ranges = scan(make_model([node("Neg", "x", "y")], {"x": [1]}, "y"), tmp_path, {"x": floats(value)})
    assert pinned_by(find_over_threshold, graph, ranges) == (["Neg_y"] if is_over else [])


def test_the_users_threshold_and_the_evidence(tmp_path: Path) -> None:
    model = make_model([node("Neg", "x", "y")], {"x": [2]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2)}, {"x": floats(-300, 5)})
    assert ask(find_over_threshold, graph, ranges) == []
    read, written = sorted(
        ask(find_over_threshold, graph, ranges, PlanPolicy(threshold=299)), key=lambda f: f.tensor
    )
    assert (read.tensor, read.value, read.limit, read.batch, read.node) == ("x", 300, 299, "batch_1", "Neg_y")
    assert read.reason.startswith("reads x, whose max |x| of 300 is over the threshold of 299")
    assert written.reason.startswith("writes y")


def test_a_graph_input_pins_its_readers(tmp_path: Path) -> None:
    model = make_model([node("Tanh", "x", "t"), node("Neg", "t", "y")], {"x": [1]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats(50000)})
    assert pinned_by(find_over_threshold, graph, ranges) == ["Tanh_t"]


@pytest.mark.parametrize("value", [10001, 65504, -65504])
def test_a_constant_over_the_threshold_pins_its_readers_though_fp16_holds_it(
    value: float, tmp_path: Path
) -> None:
    model = make_model([node("Div", "x c", "y")], {"x": [2]}, "y", {"c": scalar(value)})
    graph, ranges = scan(model, tmp_path, X)
    (found,) = ask(find_over_threshold, graph, ranges)
    assert (found.node, found.tensor, found.value, found.batch) == ("Div_y", "c", abs(value), None)


def test_a_constant_node_is_found_as_an_initializer_is(tmp_path: Path) -> None:
    model = make_model(
        [node("Constant", "", "c", value_float=20000.0), node("Div", "x c", "y")], {"x": [2]}, "y"
    )
    graph, ranges = scan(model, tmp_path, X)
    assert {f.node for f in ask(find_over_threshold, graph, ranges)} == {"Constant_c", "Div_y"}


@pytest.mark.parametrize(
    ("op", "inputs", "constants"),
    [
        ("Clip", "x low high", {"low": scalar(-60000), "high": scalar(3e38)}),
        ("Clip", "x - high", {"high": scalar(65504)}),
        ("Max", "x low", {"low": scalar(-3.4e38)}),
        ("Min", "high x", {"high": floats(20000, 65504)}),
    ],
)
def test_a_constant_that_is_only_a_bound_is_no_reason(
    op: str, inputs: str, constants: dict[str, np.ndarray], tmp_path: Path
) -> None:
    graph, ranges = scan(make_model([node(op, inputs, "y")], {"x": [2]}, "y", constants), tmp_path, X)
    assert ask(find_over_threshold, graph, ranges) == []


@pytest.mark.parametrize(
    ("op", "inputs", "constants"),
    [
        ("Clip", "x low", {"low": scalar(20000)}),
        ("Max", "x low", {"low": floats(20000, -20000)}),
        ("Min", "x high", {"high": scalar(-20000)}),
        ("Clip", "c low high", {"c": floats(-70000), "low": scalar(-1), "high": scalar(1)}),
    ],
)
def test_a_constant_that_shows_is_one(
    op: str, inputs: str, constants: dict[str, np.ndarray], tmp_path: Path
) -> None:
    model = make_model([node(op, inputs, "a"), node("Add", "a x", "y")], {"x": [2]}, "y", constants)
    graph, ranges = scan(model, tmp_path, X)
    assert f"{op}_a" in pinned_by(find_over_threshold, graph, ranges)


def test_nan_and_infinity_are_left_to_the_rule_that_counts_them(tmp_path: Path) -> None:
    model = make_model([node("Neg", "x", "y")], {"x": [3]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats(np.nan, np.inf, 1)})
    assert ask(find_over_threshold, graph, ranges) == []


def test_what_is_not_nan_is_judged_beside_nan(tmp_path: Path) -> None:
    model = make_model([node("Neg", "x", "y")], {"x": [3]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats(1, np.nan, 20000)}, {"x": floats(np.nan, 1, 1)})
    assert pinned_by(find_over_threshold, graph, ranges) == ["Neg_y"]


def test_empty_tensors_and_all_nan_are_no_reason(tmp_path: Path) -> None:
    model = make_model([node("Neg", "x", "y")], {"x": ["n"]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats()}, {"x": floats(np.nan)})
    assert ask(find_over_threshold, graph, ranges) == []


def test_what_a_body_captures_is_read(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Tanh", ["over"], ["inner"])],
        "body",
        [],
        [helper.make_tensor_value_info("inner", TensorProto.FLOAT, [2])],
    )
    model = make_model(
        [node("Mul", "x big", "over"), node("If", "c", "y", then_branch=body, else_branch=body)],
        {"x": [2], "c": (TensorProto.BOOL, [])},
        "y",
        {"big": scalar(30000)},
    )
    graph, ranges = scan(model, tmp_path, {**X, "c": np.asarray(True)})
    assert pinned_by(find_over_threshold, graph, ranges) == ["Mul_over", "If_y"]
