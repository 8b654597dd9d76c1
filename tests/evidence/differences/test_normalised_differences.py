"""What a normalisation takes its mean from, where FP16 leaves a few steps of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scan

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

MEAN = 300.1
"""FP16's steps are 1/4 there."""
CONSTANTS = {
    "scale": floats(1, 1, 1, 1),
    "bias": floats(0, 0, 0, 0),
    "mean": floats(MEAN),
}
NORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "LayerNormalization": ("x scale bias", {}),
    "InstanceNormalization": ("x scale bias", {}),
    "GroupNormalization": ("x scale bias", {"num_groups": 2}),
    "MeanVarianceNormalization": ("x", {"axes": [1, 2]}),
}


def _norm(op: str, source: str = "x") -> onnx.NodeProto:
    inputs, attributes = NORMS[op]
    return node(op, inputs.replace("x", source), "y", **attributes)


def _alternate(deviation: float, mean: float = MEAN) -> np.ndarray:
    """[2, 4, 4] of which every row, channel and group has the mean, and is as far from it."""
    signs = np.where(np.indices((2, 4, 4)).sum(axis=0) % 2, -1, 1)
    return np.asarray(mean + deviation * signs, np.float32)


def _scan(folder: Path, nodes: list[onnx.NodeProto], *batches: Any) -> tuple[Graph, RangeTable]:
    model = make_model(nodes, {"x": ["n", 4, 4]}, "y", CONSTANTS, 21)
    return scan(model, folder, *({"x": batch} for batch in batches))


@pytest.mark.parametrize("op", NORMS)
@pytest.mark.parametrize(("deviation", "is_found"), [(7.99, True), (8.01, False)])
def test_less_than_32_steps_are_lost(op: str, deviation: float, is_found: bool, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [_norm(op)], _alternate(deviation))
    assert pinned_by(find_lost_differences, graph, ranges) == [f"{op}_y"] * is_found


def test_the_evidence_is_of_the_worst_batch(tmp_path: Path) -> None:
    batches = (_alternate(4), _alternate(0.5), _alternate(100))
    graph, ranges = _scan(tmp_path, [_norm("LayerNormalization")], *batches)
    (found,) = ask(find_lost_differences, graph, ranges)
    assert (found.tensor, found.batch) == ("x", "batch_1")
    x = batches[1].astype(np.float64)
    assert found.value == pytest.approx(np.abs(x - x.mean(axis=-1, keepdims=True)).max(), rel=1e-5)
    assert found.limit == 32 / 4
    assert found.reason == (
        "x is 0.5 at most from its mean in that batch, and, up to 300.6, loses much: FP16's steps are 0.25 there, and "
        "LayerNormalization LayerNormalization_y scales it up"
    )


def test_what_writes_it_stays_too_up_to_what_is_small(tmp_path: Path) -> None:
    nodes = [
        node("Sigmoid", "x", "s"),
        node("Add", "s mean", "a"),
        node("Relu", "a", "r"),
        _norm("LayerNormalization", "r"),
    ]
    graph, ranges = _scan(tmp_path, nodes, _alternate(1, 0))
    assert pinned_by(find_lost_differences, graph, ranges) == ["Add_a", "Relu_r", "LayerNormalization_y"]


@pytest.mark.parametrize("inputs", ["x scale", "x scale bias", "x scale moved", "x scale fed"])
@pytest.mark.parametrize("epsilon", [0.06, 0.07])
def test_beside_a_larger_epsilon_a_bias_hides_it(inputs: str, epsilon: float, tmp_path: Path) -> None:
    """A square of 0.0625 is below the second."""
    nodes = [
        node("ReduceMean", "x", "fed", axes=[0, 1], keepdims=0),
        node("LayerNormalization", inputs, "y", epsilon=epsilon),
    ]
    model = make_model(nodes, {"x": ["n", 4, 4]}, "y", CONSTANTS | {"moved": floats(0, 0.1, 0, 0)}, 17)
    graph, ranges = scan(model, tmp_path, {"x": _alternate(0.25)})
    found = ask(find_lost_differences, graph, ranges)
    assert bool(found) == (epsilon < 0.0625 or inputs in ("x scale", "x scale bias"))


def test_what_fp32_itself_rounds_is_none(tmp_path: Path) -> None:
    """With an epsilon that would not hide it."""
    norm = node("LayerNormalization", "x scale bias", "y", epsilon=1e-12)
    graph, ranges = _scan(tmp_path, [norm], _alternate(MEAN * 2.0**-21))
    assert ask(find_lost_differences, graph, ranges) == []


@pytest.mark.parametrize(
    "x",
    [
        _alternate(0, 300),
        _alternate(1, 300),  # held by FP16
        _alternate(0.5) * np.float32(math.nan),
        np.where(_alternate(0.5) > MEAN, math.inf, _alternate(0.5)),
        np.where(np.arange(4) == 0, math.nan, _alternate(0.5)),
        np.ones((0, 4, 4)),
    ],
)
def test_nothing_is_concluded(x: np.ndarray, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [_norm("LayerNormalization")], x.astype(np.float32))
    assert ask(find_lost_differences, graph, ranges) == []


def test_an_empty_batch_changes_nothing(tmp_path: Path) -> None:
    graph, ranges = _scan(
        tmp_path, [_norm("LayerNormalization")], np.ones((0, 4, 4), np.float32), _alternate(0.5)
    )
    assert [found.batch for found in ask(find_lost_differences, graph, ranges)] == ["batch_1"]


@pytest.mark.parametrize("op", ["RMSNormalization", "LpNormalization"])
def test_a_norm_without_a_mean_subtracts_nothing(op: str, tmp_path: Path) -> None:
    inputs = "x scale" if op == "RMSNormalization" else "x"
    model = make_model([node(op, inputs, "y")], {"x": [2, 4, 4]}, "y", CONSTANTS, 23)
    graph, ranges = scan(model, tmp_path, {"x": _alternate(0.5)})
    assert ask(find_lost_differences, graph, ranges) == []
