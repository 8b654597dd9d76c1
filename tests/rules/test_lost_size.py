"""Floats that decide a shape or an index, and what they are computed from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto
from typed_models import Typed, plan_of, run_plain

from overflow_fixer.backends.mixed_onnx import emit
from overflow_fixer.graph.model import Graph
from overflow_fixer.rules.lost_size import find_lost_sizes

INT64 = TensorProto.INT64
CONSTANTS = {
    "zero": scalar(0),
    "one": scalar(1),
    "two": scalar(2),
    "three": scalar(3),
    "far": scalar(300),
    "half": scalar(0.5),
    "depth": scalar(3001),
    "single": floats(1),
    "wide": floats(800),
    "pair": floats(0.25, 1.5),
    "most": ints(8),
    "boxes": floats(0, 0, 1, 1, 3, 3, 4, 4).reshape(1, 2, 4),
    "scores": floats(0.66655, 0.9).reshape(1, 1, 2),
}
FEEDS: dict[str, Any] = {
    "a": scalar(1),
    "n": ints(1333),
    "ids": ints(1, 3000),
    "x": np.ones((1, 1, 2, 800), np.float32),
}
TO_FLOAT = node("Cast", "n", "f", to=TensorProto.FLOAT)
SCALES = [TO_FLOAT, node("Div", "f wide", "q"), node("Concat", "single single single q", "s", axis=0)]
SHARE = [node("Mul", "a two", "b"), node("Div", "b three", "d")]


@dataclass(frozen=True)
class Case:
    """Nodes that lead from FEEDS to "y", and those that are to be pinned."""

    nodes: list[onnx.NodeProto]
    pins: str
    opset: int = 17

    def make(self) -> tuple[onnx.ModelProto, dict[str, Any]]:
        read = {name for at in self.nodes for name in at.input}
        feeds = {name: value for name, value in FEEDS.items() if name in read}
        inputs = {
            name: (onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for name, value in feeds.items()
        }
        constants = {name: value for name, value in CONSTANTS.items() if name in read}
        return make_model(self.nodes, inputs, "y", constants, self.opset), feeds


CASES = {
    "Range": Case([*SHARE, node("Range", "zero far d", "y")], "Mul_b Div_d Range_y"),
    "Resize": Case([*SCALES, node("Resize", "x - s", "y")], "Cast_f Div_q Concat_s", 13),
    "Resize of opset 10": Case([*SCALES, node("Resize", "x s", "y")], "Cast_f Div_q Concat_s", 10),
    "Upsample": Case([*SCALES, node("Upsample", "x s", "y")], "Cast_f Div_q Concat_s", 9),
    "NonMaxSuppression": Case(
        [
            *SHARE,
            node("NonMaxSuppression", "boxes scores most half d", "chosen"),
            node("Cast", "chosen", "y", to=TensorProto.FLOAT),
        ],
        "Mul_b Div_d",
    ),
    "OneHot": Case([node("OneHot", "ids depth pair", "y")], "OneHot_y"),
}


def test_what_fp16_makes_of_scales_steps_and_thresholds() -> None:
    half = np.float16
    assert (math.floor(800 * (1333 / 800)), math.floor(800 * float(half(1333 / 800)))) == (1333, 1332)
    assert (math.ceil(300 / (2 / 3)), math.ceil(300 / float(half(2 / 3)))) == (450, 451)
    assert float(half(2 / 3)) < 0.66655 < 2 / 3
    assert half(3001) == 3000


@pytest.mark.parametrize("name", CASES)
def test_the_typed_model_has_the_shape(name: str, tmp_path: Path) -> None:
    model, feeds = CASES[name].make()
    graph, ranges = scan(model, tmp_path, feeds)
    pins = pinned_by(find_lost_sizes, graph, ranges)
    assert pins == CASES[name].pins.split()
    expected = run_plain(graph.path, feeds)["y"].shape
    assert _shape_in_fp16(graph, tmp_path, pins, feeds) == expected
    assert (_shape_in_fp16(graph, tmp_path, [], feeds) == expected) == (name == "OneHot")


def _shape_in_fp16(
    graph: Graph, folder: Path, pins: Sequence[str], feeds: Mapping[str, Any]
) -> tuple[int, ...]:
    """Of the typed model's output, every node in FP16 that is not pinned."""
    artifact = emit(graph, plan_of(graph, pins), folder / f"{len(pins)}.fp16.onnx")
    shape: tuple[int, ...] = Typed(graph, artifact, frozenset(pins)).run(feeds)["y"].shape
    return shape


def test_the_evidence(tmp_path: Path) -> None:
    model, feeds = CASES["Resize"].make()
    graph, ranges = scan(model, tmp_path, {**feeds, "n": ints(800)}, feeds)
    found = ask(find_lost_sizes, graph, ranges)
    assert {(at.tensor, at.value, at.limit, at.batch, at.action) for at in found} == {
        ("q", np.float32(1333 / 800), np.float16(1333 / 800), "batch_1", "pin")
    }
    assert found[0].reason == (
        "Resize Resize_y takes its scales from s, and FP16 is not known to hold every value of q, up to 1.66624999"
    )


@pytest.mark.parametrize(
    ("n", "divisor", "pins"),
    [
        (1600, 800, []),
        (800, 1600, []),
        (801, 800, ["Cast_f", "Div_q", "Concat_s"]),
        (4098, 1366, ["Cast_f", "Div_q", "Concat_s"]),
    ],
)
def test_what_fp16_holds_all_the_way_is_none(n: int, divisor: int, pins: list[str], tmp_path: Path) -> None:
    """4098 / 1366 is 3, but 4096 / 1366 is not."""
    constants = {**CONSTANTS, "wide": floats(divisor)}
    nodes = [*SCALES, node("Resize", "x - s", "y")]
    model = make_model(nodes, {"n": (INT64, [1]), "x": [1, 1, 2, 4]}, "y", constants)
    feeds = {"n": ints(n), "x": np.ones((1, 1, 2, 4), np.float32)}
    graph, ranges = scan(model, tmp_path, feeds)
    assert pinned_by(find_lost_sizes, graph, ranges) == pins


@pytest.mark.parametrize(
    ("slots", "pins"),
    [
        ("d three one", ["Mul_b", "Div_d", "Range_y"]),
        ("zero d one", ["Mul_b", "Div_d", "Range_y"]),
        ("zero three one", []),
        ("a far two", []),
    ],
)
def test_start_limit_and_delta(slots: str, pins: list[str], tmp_path: Path) -> None:
    model = make_model([*SHARE, node("Range", slots, "y")], {"a": []}, "y d", CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"a": scalar(1)})
    assert pinned_by(find_lost_sizes, graph, ranges) == pins


@pytest.mark.parametrize(
    ("value", "is_found"), [([1.0, 2047.0], False), ([1.0, 2049.0], True), ([0.7, 1.9], True)]
)
def test_indices_that_are_floats(value: list[float], is_found: bool, tmp_path: Path) -> None:
    nodes = [node("Relu", "i", "ids"), node("OneHot", "ids depth pair", "y")]
    constants = {"depth": scalar(3000), "pair": CONSTANTS["pair"]}
    graph, ranges = scan(make_model(nodes, {"i": [2]}, "y", constants), tmp_path, {"i": floats(*value)})
    assert pinned_by(find_lost_sizes, graph, ranges) == (["Relu_ids", "OneHot_y"] if is_found else [])


@pytest.mark.parametrize(("mode", "is_found"), [("tf_crop_and_resize", True), ("half_pixel", False)])
def test_a_roi_counts_in_the_mode_that_reads_it(mode: str, is_found: bool, tmp_path: Path) -> None:
    nodes = [
        node("Mul", "region third", "roi"),
        node("Resize", "x roi scales", "y", coordinate_transformation_mode=mode, mode="linear"),
    ]
    constants = {"third": scalar(1 / 3), "scales": floats(1, 1, 2, 2)}
    model = make_model(nodes, {"x": [1, 1, 4, 4], "region": [8]}, "y", constants)
    feeds = {"x": np.ones((1, 1, 4, 4), np.float32), "region": floats(0, 0, 0, 0, 3, 3, 2, 2)}
    graph, ranges = scan(model, tmp_path, feeds)
    assert pinned_by(find_lost_sizes, graph, ranges) == (["Mul_roi"] if is_found else [])


def test_the_way_ends_at_integers_and_at_data(tmp_path: Path) -> None:
    nodes = [
        node("Sigmoid", "x", "weights"),
        node("ReduceMax", "weights", "share", keepdims=0),
        node("Mul", "whole third", "part"),
        node("Cast", "part", "rounded", to=INT64),
        node("Cast", "rounded", "steps", to=TensorProto.FLOAT),
        node("Mul", "steps third", "start"),
        node("Add", "share three", "limit"),
        node("Range", "start limit one", "y"),
    ]
    inputs = {"x": [2], "whole": []}
    constants = {"third": scalar(1 / 3), "three": scalar(3), "one": scalar(1)}
    feeds = {"x": floats(0.3, 0.7), "whole": scalar(4)}
    graph, ranges = scan(make_model(nodes, inputs, "y", constants), tmp_path, feeds)
    assert pinned_by(find_lost_sizes, graph, ranges) == ["Cast_steps", "Mul_start", "Add_limit", "Range_y"]


@pytest.mark.parametrize("elem_type", [TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_what_is_computed_in_another_type_is_not_lost(elem_type: int, tmp_path: Path) -> None:
    """1333 / 800 in double stays what it is in FP16, and its floor comes back as 1."""
    nodes = [
        node("Cast", "n", "d", to=elem_type),
        node("Div", "d wide", "q"),
        node("Floor", "q", "whole"),
        node("Cast", "whole", "f", to=TensorProto.FLOAT),
        node("Concat", "single single single f", "s", axis=0),
        node("Resize", "x - s", "y"),
    ]
    constants = {"wide": np.asarray([800], onnx.helper.tensor_dtype_to_np_dtype(elem_type))}
    inputs = {"n": (INT64, [1]), "x": [1, 1, 2, 800]}
    model = make_model(nodes, inputs, "y", {**constants, "single": floats(1)})
    feeds = {name: FEEDS[name] for name in inputs}
    graph, ranges = scan(model, tmp_path, {**feeds, "n": ints(800)}, feeds)
    assert ask(find_lost_sizes, graph, ranges) == []
    assert _shape_in_fp16(graph, tmp_path, [], feeds) == run_plain(graph.path, feeds)["y"].shape


def test_what_comes_from_double_is_rounded_there(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "n", "d", to=TensorProto.DOUBLE),
        node("Div", "d wide", "q"),
        node("Cast", "q", "f", to=TensorProto.FLOAT),
        node("Concat", "single single single f", "s", axis=0),
        node("Resize", "x - s", "y"),
    ]
    inputs = {"n": (INT64, [1]), "x": [1, 1, 2, 800]}
    model = make_model(nodes, inputs, "y", {"wide": np.asarray([800.0]), "single": floats(1)})
    feeds = {name: FEEDS[name] for name in inputs}
    graph, ranges = scan(model, tmp_path, feeds)
    pins = pinned_by(find_lost_sizes, graph, ranges)
    assert pins == ["Cast_f", "Concat_s"]
    right = run_plain(graph.path, feeds)["y"].shape
    assert _shape_in_fp16(graph, tmp_path, [], feeds) != right
    assert _shape_in_fp16(graph, tmp_path, pins, feeds) == right


def test_a_size_that_a_constant_node_holds(tmp_path: Path) -> None:
    """It is no batch's, and the Constant is not pinned."""
    nodes = [node("Constant", "", "depth", value_float=3001.0), node("OneHot", "ids depth pair", "y")]
    model = make_model(nodes, {"ids": (INT64, [2])}, "y", {"pair": CONSTANTS["pair"]})
    graph, ranges = scan(model, tmp_path, {"ids": FEEDS["ids"]})
    found = {(at.node, at.tensor, at.value, at.limit, at.batch) for at in ask(find_lost_sizes, graph, ranges)}
    assert found == {("OneHot_y", "depth", 3001, 3000, None)}


def test_integers_that_decide_are_no_floats(tmp_path: Path) -> None:
    nodes = [
        node("Range", "start limit delta", "r"),
        node("OneHot", "r depth pair", "y"),
    ]
    constants = {
        name: np.asarray(value, np.int64) for name, value in (("start", 0), ("delta", 1), ("depth", 3001))
    }
    model = make_model(nodes, {"limit": (INT64, [])}, "y", {**constants, "pair": CONSTANTS["pair"]})
    graph, ranges = scan(model, tmp_path, {"limit": np.asarray(3, np.int64)})
    assert ask(find_lost_sizes, graph, ranges) == []


def test_edges_of_mel_bins(tmp_path: Path) -> None:
    nodes = [node("Mul", "top third", "high"), node("MelWeightMatrix", "bins fft rate low high", "y")]
    constants: dict[str, np.ndarray] = {
        name: np.asarray(n, np.int64) for name, n in (("bins", 4), ("fft", 64), ("rate", 8000))
    }
    constants |= {"low": scalar(0), "third": scalar(1 / 3)}
    graph, ranges = scan(make_model(nodes, {"top": []}, "y", constants), tmp_path, {"top": scalar(10001)})
    assert pinned_by(find_lost_sizes, graph, ranges) == ["Mul_high", "MelWeightMatrix_y"]


def test_what_many_sizes_are_made_of_is_told_once(tmp_path: Path) -> None:
    """Each step of a chain is the limit of a Range, and is made of all before it."""
    steps = [node("Add", f"f{i} k", f"f{i + 1}") for i in range(200)]
    sizes = [node("Range", f"zero f{i + 1} one", f"r{i}") for i in range(200)]
    totals = [node("ReduceSum", f"r{i}", f"s{i}", keepdims=0) for i in range(200)]
    nodes = [node("Mul", "x k", "f0"), *steps, *sizes, *totals]
    nodes.append(node("Sum", " ".join(f"s{i}" for i in range(200)), "y"))
    constants = {"k": scalar(0.0003), "zero": scalar(0), "one": scalar(1)}
    graph, ranges = scan(make_model(nodes, {"x": []}, "y", constants), tmp_path, {"x": scalar(3)})
    found = [one.node for one in ask(find_lost_sizes, graph, ranges)]
    assert sorted(found) == sorted({"Mul_f0", *(one.name for one in (*steps, *sizes))})


def test_no_weights_are_read_for_what_decides_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("Conv", "x w", "c"), node("Resize", "c - scales", "y")]
    constants = {"w": floats(*np.linspace(-1, 1, 9)).reshape(1, 1, 3, 3), "scales": floats(1, 1, 1.5, 2)}
    model = make_model(nodes, {"x": [1, 1, 8, 8]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": np.ones((1, 1, 8, 8), np.float32)})
    read: list[str] = []
    original = Graph.read_constant

    def watch(graph: Graph, tensor: str) -> np.ndarray | None:
        read.append(tensor)
        return original(graph, tensor)

    monkeypatch.setattr(Graph, "read_constant", watch)
    assert pinned_by(find_lost_sizes, graph, ranges) == []
    assert "scales" in read
    assert "w" not in read


def test_a_size_that_is_fed_is_told_as_it_is(tmp_path: Path) -> None:
    model = make_model([node("Range", "zero a one", "y")], {"a": []}, "y", CONSTANTS)
    graph, ranges = scan(model, tmp_path, {"a": scalar(1.1)})
    assert [(found.node, found.tensor) for found in ask(find_lost_sizes, graph, ranges)] == [("Range_y", "a")]
