"""Of how many elements a comparison decides otherwise, against an independent computation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import make_model, node, scalar, scan

CONSTANTS = {"near": scalar(0.05), "minus": scalar(-0.05), "zero": scalar(0), "two": scalar(2), "near_squared": scalar(0.0025)}  # fmt: skip
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(0, 100, (2, 500)).astype(np.float32)
Z = (X + GENERATOR.normal(0, 0.1, X.shape)).astype(np.float32)
DIFFERENCE = [node("Sub", "x z", "d"), node("Abs", "d", "a")]
END = node("Cast", "c", "y", to=1)


def _measure(
    folder: Path, nodes: list[onnx.NodeProto], *batches: tuple[Any, Any], opset: int = 13
) -> list[float]:
    model = make_model([*nodes, END], {"x": [None, None], "z": [None, None]}, "y", CONSTANTS, opset)
    feeds = ({"x": np.asarray(x, np.float32), "z": np.asarray(z, np.float32)} for x, z in batches)
    _, ranges = scan(model, folder, *feeds)
    found = [one for one in ranges.inner if one.quantity == "decided otherwise"]
    return [float(value) for one in found for value in one.batch_max_abs]


def _share(is_near: Any) -> float:
    rounded = [one.astype(np.float16).astype(np.float32) for one in (X, Z)]
    right, got = is_near(X, Z), is_near(*rounded)
    return float((right != got).sum() / min(right.sum(), (~right).sum()))


FORMS: dict[str, tuple[list[onnx.NodeProto], Any]] = {
    "less": ([*DIFFERENCE, node("Less", "a near", "c")], lambda x, z: np.abs(x - z) < np.float32(0.05)),
    "greater": ([*DIFFERENCE, node("Greater", "a near", "c")], lambda x, z: np.abs(x - z) > np.float32(0.05)),
    "turned": ([*DIFFERENCE, node("LessOrEqual", "near a", "c")], lambda x, z: np.float32(0.05) <= np.abs(x - z)),
    "one side": ([*DIFFERENCE[:1], node("GreaterOrEqual", "d minus", "c")], lambda x, z: x - z >= np.float32(-0.05)),
    "squares": (
        [*DIFFERENCE[:1], node("Mul", "d d", "a"), node("Less", "a near_squared", "c")],
        lambda x, z: np.square(x - z) < np.float32(0.0025),
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str, tmp_path: Path) -> None:
    nodes, is_near = FORMS[form]
    (found,) = _measure(tmp_path, nodes, (X, Z))
    assert found == pytest.approx(_share(is_near), rel=1e-5)
    assert 0.05 < found < 0.5


def test_batches_edges_and_no_numbers(tmp_path: Path) -> None:
    nodes, _ = FORMS["less"]
    exact = np.array([[1.0, 2.0]]), np.array([[1.0, 5.0]])
    one_side = np.array([[1.1, 2.1]]), np.array([[9.1, 5.1]])
    empty = np.zeros((0, 2)), np.zeros((0, 2))
    odd = np.array([[math.nan, math.inf, 1.0]]), np.array([[1.0, 1.0, 1.0]])
    found = _measure(tmp_path, nodes, exact, one_side, empty, odd)
    assert found[:2] == [0, 0]
    assert found[2] == 0 or math.isnan(found[2])
    assert found[3] == 0


@pytest.mark.parametrize(
    "nodes",
    [
        [*DIFFERENCE, node("Less", "a zero", "c")],
        [*DIFFERENCE, node("Less", "a z", "c")],
        [node("Less", "x near", "c")],
        [node("Sigmoid", "x", "s"), node("Less", "s near", "c")],
        [*DIFFERENCE, node("Equal", "a near", "c")],
        [node("ReduceMax", "x", "m", axes=[1]), node("Sub", "x m", "d"), node("Greater", "d minus", "c")],
    ],
    ids=["zero", "data", "no difference", "a function", "Equal", "a row less its largest"],
)
def test_others_are_not_measured(nodes: list[onnx.NodeProto], tmp_path: Path) -> None:
    assert _measure(tmp_path, nodes, (X, Z)) == []
