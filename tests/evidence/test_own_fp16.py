"""What comes of an overflow in the model's own FP16, and what does not."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scan
from onnx import TensorProto

from overflow_fixer.evidence.own_fp16 import find_lost_in_own_fp16
from overflow_fixer.rules.non_finite import find_non_finite

X = floats(300, 2, 3, 1)
HALF = [
    node("Mul", "x x", "square"),
    node("Cast", "square", "half", to=TensorProto.FLOAT16),
    node("Cast", "half", "wide", to=TensorProto.FLOAT),
]


def _lost(nodes: list[onnx.NodeProto], folder: Path, x: np.ndarray = X, **constants: np.ndarray) -> dict:
    return dict(find_lost_in_own_fp16(*scan(make_model(nodes, {"x": [4]}, "y", constants), folder, {"x": x})))


@pytest.mark.parametrize(("largest", "is_lost"), [(255.0, False), (256.0, True)])
def test_it_begins_where_fp16_does_not_hold_a_value(largest: float, is_lost: bool, tmp_path: Path) -> None:
    """255 squared is 65025, 256 squared is 65536, over 65520."""
    nodes = [*HALF, node("ReduceMean", "wide", "mean"), node("Sub", "wide mean", "d"), node("Tanh", "d", "y")]
    found = _lost(nodes, tmp_path, floats(largest, 2, 3, 1))
    with np.errstate(over="ignore", invalid="ignore"):
        half = np.square(floats(largest, 2, 3, 1)).astype(np.float16).astype(np.float32)
        assert bool(np.isnan(np.tanh(half - half.mean())).any()) is is_lost
    names = ["half", "wide", "mean", "d", "y"] if is_lost else []
    assert found == dict.fromkeys(names, "half")


def test_what_fp32_makes_by_itself_is_its_own(tmp_path: Path) -> None:
    """The logarithm of a negative number, and what meets it."""
    nodes = [*HALF, node("Sub", "square big", "low"), node("Log", "low", "l"), node("Add", "l wide", "y")]
    assert _lost(nodes, tmp_path, big=floats(10, 10, 10, 10)).keys() == {"half", "wide"}


def test_an_infinity_that_comes_in_overflowed_nowhere(tmp_path: Path) -> None:
    """A mask of -inf that is FP16 in the model."""
    nodes = [
        node("Cast", "x", "half", to=TensorProto.FLOAT16),
        node("Add", "half mask", "s"),
        node("Softmax", "s", "p"),
        node("Cast", "p", "y", to=TensorProto.FLOAT),
    ]
    mask = np.array([0, 0, 0, -math.inf], np.float16)
    assert _lost(nodes, tmp_path, mask=mask) == {}


def test_it_pins_nothing_and_is_kept_for_the_record(tmp_path: Path) -> None:
    model = make_model([*HALF, node("Relu", "wide", "y")], {"x": [4]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": X})
    assert pinned_by(find_non_finite, graph, ranges) == []
    reasons = {f.tensor: f.reason for f in ask(find_non_finite, graph, ranges)}
    assert reasons["half"].endswith("; it is FP16 in the model itself, so no pin changes that")
    assert reasons["y"].endswith(
        "; half, from which they come, is FP16 in the model itself, so no pin changes that"
    )


def test_finite_values_beside_it_that_fp16_cannot_hold_pin(tmp_path: Path) -> None:
    """4 times 20000 is 80000, beside the infinity."""
    model = make_model(
        [*HALF, node("Mul", "wide big", "y")], {"x": [4]}, "y", {"big": floats(1, 20000, 1, 1)}
    )
    graph, ranges = scan(model, tmp_path, {"x": X})
    assert ranges.by_tensor["y"].over_fp16_count == 2
    assert pinned_by(find_non_finite, graph, ranges) == ["Mul_y"]
