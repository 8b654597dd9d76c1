"""Differences of values over 1024 that are a few of FP16's steps."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.rules.lost_difference import find_lost_differences


@pytest.mark.parametrize(
    ("low", "high", "is_found"),
    [
        ([3000.3, 1], [3004.8, 2], True),
        ([3000, 1.5], [3127.5, 2], True),
        ([3000, 1.5], [3128, 2], False),
        ([3000.3, 1], [300.1, 2], False),
        ([1000.3, 1], [1004.8, 2], False),
        ([1020.3, 1], [1024.5, 2], True),
        ([3000.3, 1], [3000.3, 1], False),
        ([3000.3, math.nan], [3004.8, math.nan], False),
        ([3000.3, math.inf], [3004.8, 1], False),
        (3000.3, 3004.8, True),
        ([], [], False),
    ],
)
@pytest.mark.parametrize(("op", "sign"), [("Sub", 1), ("Add", -1), ("Sum", -1)])
def test_sides(op: str, sign: int, low: Any, high: Any, is_found: bool, tmp_path: Path) -> None:
    """A difference of less than 64 steps: 128 pixels at 3000, where FP16's steps are 2; none that is given out."""
    nodes = [
        node("Mul", "low one", "a"),
        node("Mul", "high one", "b"),
        node(op, "b a", "d"),
        node("Sigmoid", "d", "y"),
    ]
    model = make_model(nodes, {"low": None, "high": None}, "y", {"one": scalar(1)})
    feeds = {"low": sign * np.asarray(low, np.float32), "high": np.asarray(high, np.float32)}
    graph, ranges = scan(model, tmp_path, feeds)
    found = set(pinned_by(find_lost_differences, graph, ranges))
    assert ({f"{op}_d"} <= found <= {"Mul_a", "Mul_b", f"{op}_d"}) if is_found else not found


PLACES = np.arange(0, 256, 4, dtype=np.float32)
VARIANCE = [
    node("MatMul", "x w", "h"),
    node("Softmax", "h", "p", axis=1),
    node("Mul", "p places", "px"),
    node("ReduceSum", "px last", "m"),
    node("Mul", "px places", "pxx"),
    node("ReduceSum", "pxx last", "e"),
    node("Mul", "m m", "mm"),
    node("Sub", "e mm", "y"),
]


def test_what_is_small_before_it_is_squared_stays_too(tmp_path: Path) -> None:
    """The variance of a heatmap's places, of up to 252: the mean is no more than that, and loses as much. Its layer may stay."""
    x = np.float32([[-((at - PLACES) ** 2) / 8] for at in (60, 130, 190)]).reshape(3, 64)
    constants = {"w": np.eye(64, dtype=np.float32), "places": PLACES, "last": ints(1)}
    model = make_model(VARIANCE, {"x": [3, 64]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": x})
    pinned = set(pinned_by(find_lost_differences, graph, ranges))
    assert pinned == {one.label for one in graph.nodes} - {"MatMul_h"}
    right = run_fp32(tmp_path / "model.onnx", {"x": x})["y"]
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    for names, least, most in (({"y", "e", "pxx", "mm", "m"}, 0.3, math.inf), (fp32, 0, 0.02)):
        found = run_fp16(tmp_path / "model.onnx", {"x": x}, names)["y"]
        assert least <= float(np.max(np.abs(found / right - 1))) <= most


def test_what_is_small_between_differences_stays_too(tmp_path: Path) -> None:
    """Sums of 5 by 5 by a table of sums up to 3700: the first difference, of two rows, is 250 at most, of terms as large."""
    nodes = [
        node("CumSum", "x down", "c"),
        node("CumSum", "c along", "t"),
        node("Slice", "t low low2 axes", "a"),
        node("Slice", "t high low3 axes", "b"),
        node("Slice", "t low4 high2 axes", "f"),
        node("Slice", "t zero high3 axes", "g"),
        node("Sub", "a b", "d"),
        node("Sub", "d f", "e"),
        node("Add", "e g", "y"),
    ]
    ends = {
        "low": (5, 5),
        "low2": (90, 90),
        "high": (0, 5),
        "low3": (85, 90),
        "low4": (5, 0),
        "high2": (90, 85),
    }
    ends |= {"zero": (0, 0), "high3": (85, 85), "axes": (0, 1)}
    constants = {name: ints(*values) for name, values in ends.items()} | {"down": ints(0), "along": ints(1)}
    x = np.random.default_rng(7).uniform(0, 1, (90, 90)).astype(np.float32)
    graph, ranges = scan(make_model(nodes, {"x": [90, 90]}, "y", constants), tmp_path, {"x": x})
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert pinned == [one.label for one in graph.nodes]
    assert ranges.by_tensor["d"].max_abs < 300
    fp32 = {name for one in graph.nodes for name in one.writes}
    right = run_fp32(tmp_path / "model.onnx", {"x": x})["y"]
    for names, least, most in ((fp32 - {"a", "b", "d"}, 0.5, math.inf), (fp32, 0, 0.2)):
        found = run_fp16(tmp_path / "model.onnx", {"x": x}, names)["y"]
        assert least <= float(np.max(np.abs(found - right))) <= most


def test_what_sums_over_1024_are_of_stays_too(tmp_path: Path) -> None:
    """Energies less those of the atoms apart: FP16 rounds each of 600 by up to 1/4, and what is left of the sums is 1 or so."""
    nodes = [
        node("Add", "x apart", "each"),
        node("ReduceSum", "each axis", "whole"),
        node("ReduceSum", "apart axis", "parts"),
        node("Sub", "whole parts", "y"),
    ]
    x = np.random.default_rng(3).uniform(-0.2, 0.2, (8, 12)).astype(np.float32)
    constants = {"apart": np.linspace(600, 605, 12, dtype=np.float32)[None], "axis": ints(1)}
    graph, ranges = scan(make_model(nodes, {"x": [None, 12]}, "y", constants), tmp_path, {"x": x})
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert set(pinned) >= {"Add_each", "ReduceSum_whole", "Sub_y"}
    right = run_fp32(tmp_path / "model.onnx", {"x": x})["y"]
    for names, least, most in (({"whole", "parts", "y"}, 0.1, 2), ({"each", "whole", "parts", "y"}, 0, 1e-3)):
        found = run_fp16(tmp_path / "model.onnx", {"x": x}, names)["y"]
        assert least <= float(np.max(np.abs(found - right))) <= most


POINTS = np.random.default_rng(2).uniform(-4, 4, (2, 16, 3)).astype(np.float32)
SQUARED = [
    node("Mul", "x x", "xx"),
    node("ReduceSum", "xx last", "a", keepdims=1),
    node("Mul", "p p", "pp"),
    node("ReduceSum", "pp last", "b", keepdims=1),
]
DISTANCES = {
    "added": [
        node("Transpose", "b", "bt"),
        node("Transpose", "p", "pt"),
        node("MatMul", "x pt", "c"),
        node("Mul", "c minus", "m"),
        node("Add", "a bt", "s"),
        node("Add", "s m", "d"),
    ],
    "as one product": [
        node("Mul", "x minus", "m"),
        node("Concat", "m a ones", "left", axis=1),
        node("Concat", "p ones b", "joined", axis=1),
        node("Transpose", "joined", "right"),
        node("MatMul", "left right", "d"),
    ],
}


@pytest.mark.parametrize("form", DISTANCES)
@pytest.mark.parametrize("shift", [60, 100])
def test_of_distances_over_1024_all_that_is_squared_or_joined_stays_too(
    shift: float, form: str, tmp_path: Path
) -> None:
    """Under a kernel they are neither chosen nor given out. 100 from zero squares are of 10,000 each, where FP16's steps are 8."""
    nodes = [*SQUARED, *DISTANCES[form], node("Mul", "d scale", "k"), node("Exp", "k", "y")]
    constants = {"last": ints(1), "minus": scalar(-2), "scale": scalar(-0.02)}
    model = make_model(
        nodes, {"x": [16, 3], "p": [16, 3]}, "y", constants | {"ones": np.ones((16, 1), np.float32)}
    )
    feeds = dict(zip("xp", POINTS + np.float32(shift), strict=True))
    graph, ranges = scan(model, tmp_path, feeds)
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert pinned == [one.label for one in graph.nodes[:-2]]
    right = run_fp32(tmp_path / "model.onnx", feeds)["y"]
    fp32 = {name for one in graph.nodes for name in one.writes}
    for names, least, most in ((fp32 - {"xx", "pp"}, 0.03, 1), (fp32 - {"k", "y"}, 0, 2e-3)):
        found = run_fp16(tmp_path / "model.onnx", feeds, names)["y"]
        assert least <= float(np.max(np.abs(found - right)) / np.max(right)) <= most


@pytest.mark.parametrize(
    ("far", "there"), [(65510, "FP16's steps are 32 there"), (65530, "FP16 ends at 65504")]
)
def test_what_fp16_cannot_hold_has_no_steps(far: float, there: str, tmp_path: Path) -> None:
    nodes = [node("Mul", "x one", "a"), node("Sub", "a far", "y")]
    model = make_model(nodes, {"x": [None]}, "y", {"one": scalar(1), "far": scalar(far)})
    graph, ranges = scan(model, tmp_path, {"x": floats(far - 20.5, far)})
    assert {found.reason.rpartition(": ")[2] for found in ask(find_lost_differences, graph, ranges)} == {
        there
    }


def test_integers_are_another_rules(tmp_path: Path) -> None:
    nodes = [node("Cast", "ids", "p", to=TensorProto.FLOAT), node("Sub", "p far", "y")]
    model = make_model(nodes, {"ids": (TensorProto.INT64, [2])}, "y", {"far": scalar(3001)})
    graph, ranges = scan(model, tmp_path, {"ids": ints(3003, 3010)})
    assert ask(find_lost_differences, graph, ranges) == []
