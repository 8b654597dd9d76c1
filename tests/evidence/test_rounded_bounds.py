"""Comparisons with a number that FP16 rounds to the largest or the least of what is compared."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.rounded_bounds import find_rounded_bounds
from overflow_fixer.rules.lost_comparison import find_lost_comparisons

MASK = [
    node("Sigmoid", "x", "m"),
    node("Greater", "m bound", "c"),
    node("Cast", "c", "y", to=TensorProto.FLOAT),
]
SATURATED = [20.0, 30.0, 0.5, -1.0]


def _scan(folder: Path, nodes: list, bound: float, values: list[float]) -> tuple:
    constants = {"bound": scalar(bound)}
    return scan(make_model(nodes, {"x": [None]}, "y", constants), folder, {"x": floats(*values)})


@pytest.mark.parametrize(
    ("bound", "values", "found"),
    [
        (0.9999, SATURATED, [1.0]),
        (0.999, SATURATED, []),
        (0.9999, [0.5, -1.0], []),
        (1 - 2.0**-22, SATURATED, []),
        (0.9999, [math.nan, 20.0], []),
        (0.9999, [], []),
    ],
)
def test_of_a_mask_up_to_one(bound: float, values: list[float], found: list[float], tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, MASK, bound, values)
    bounds = list(find_rounded_bounds(graph, ranges))
    assert [one.value for one in bounds] == pytest.approx(found)
    assert [[one.label for one in bound.nodes] for bound in bounds] == [["Sigmoid_m"]] * len(found)


def test_of_the_least(tmp_path: Path) -> None:
    nodes = [
        node("Tanh", "x", "m"),
        node("Less", "m bound", "c"),
        node("Cast", "c", "y", to=TensorProto.FLOAT),
    ]
    graph, ranges = _scan(tmp_path, nodes, -0.9999, [-20.0, 0.5])
    assert [one.value for one in find_rounded_bounds(graph, ranges)] == [-1.0]


def test_what_moves_it_by_as_much_is_told_too(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", "x", "s"), node("Add", "s bound", "m"), *MASK[1:]]
    graph, ranges = _scan(tmp_path, nodes, 2001.0, [0.0, *SATURATED])
    found = find_rounded_bounds(graph, ranges)
    assert [[one.label for one in bound.nodes] for bound in found] == [["Add_m"]]


def test_the_places_of_a_sample_decide_its_edge(tmp_path: Path) -> None:
    nodes = [
        node("Add", "flow pixels", "at"),
        node("Mul", "at scale", "ends"),
        node("Sub", "ends one", "grid"),
        node("GridSample", "image grid", "m", align_corners=1),
        *MASK[1:],
    ]
    pixels = np.stack(np.meshgrid(np.arange(160), np.arange(96)), -1)[None].astype(np.float32)
    constants = {
        "pixels": pixels,
        "scale": floats(2 / 159, 2 / 95),
        "one": scalar(1),
        "bound": scalar(0.9999),
    }
    constants["image"] = np.ones((1, 1, 96, 160), np.float32)
    flow = 3 * np.random.default_rng(0).normal(size=(1, 96, 160, 2)).astype(np.float32)
    model = make_model(nodes, {"flow": [1, 96, 160, 2]}, "y", constants, opset=16)
    graph, ranges = scan(model, tmp_path, {"flow": flow})
    assert pinned_by(find_lost_comparisons, graph, ranges) == [
        "Add_at",
        "Mul_ends",
        "Sub_grid",
        "GridSample_m",
    ]
    path, feeds = tmp_path / "model.onnx", {"flow": flow}
    assert measure_snr_db(path, feeds) == pytest.approx(0)
    assert 30 < measure_snr_db(path, feeds, {"m", "c"}) < 36
    assert measure_snr_db(path, feeds, {"at", "ends", "grid", "m", "c"}) == np.inf


def test_not_of_a_choice_between_two_that_are_computed(tmp_path: Path) -> None:
    nodes = [*MASK[:2], node("Where", "c m x", "y")]
    graph, ranges = _scan(tmp_path, nodes, 0.9999, SATURATED)
    assert not list(find_rounded_bounds(graph, ranges))


def test_the_mask_is_right_with_the_pin(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, MASK, 0.9999, SATURATED)
    path, feeds = tmp_path / "model.onnx", {"x": floats(*SATURATED)}
    assert pinned_by(find_lost_comparisons, graph, ranges) == ["Sigmoid_m"]
    assert measure_snr_db(path, feeds) == pytest.approx(0)
    assert measure_snr_db(path, feeds, {"m", "c"}) == np.inf


def test_the_finding_tells_both(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, MASK, 0.9999, SATURATED)
    found = ask(find_lost_comparisons, graph, ranges, "Sigmoid_m")
    assert [(one.value, one.limit) for one in found] == [(1.0, pytest.approx(0.9999))]
    assert "compares m with 0.999899983, and decides otherwise of all that is 1" in found[0].reason
