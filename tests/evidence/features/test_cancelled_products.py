"""Products by constant matrices whose terms take nearly all of one another away."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import floats, make_model, node, pinned_by, scan

from overflow_fixer.evidence.features.cancelled_products import find_cancelled_products
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

RNG = np.random.default_rng(0)
DEVIATIONS = np.logspace(1, -3, 6)
TURNED = np.linalg.qr(RNG.normal(size=(6, 6)))[0]
FEATURES = ((RNG.normal(size=(256, 6)) * DEVIATIONS) @ TURNED.T + 3).astype(np.float32)
PAIR = np.float32([[1], [-1]])
CONSTANTS = {
    "mean": np.full(6, 3, np.float32),
    "turned": TURNED.astype(np.float32),
    "deviations": DEVIATIONS.astype(np.float32),
    "rows": (TURNED / DEVIATIONS).T.astype(np.float32),
    "w": PAIR,
    "across": PAIR.T.copy(),
    "stacked": PAIR[None],
    "half": PAIR / 2,
    "two": floats(2),
    "tenth": PAIR / 10,
    "none": floats(0),
    "dead": np.float32([[1], [0]]),
    "some": np.float32([[0.001], [-1]]),
}


def _scan(
    folder: Path, nodes: list[onnx.NodeProto], *batches: np.ndarray, **constants: np.ndarray
) -> tuple[Graph, RangeTable]:
    used = {read for one in nodes for read in one.input}
    known = {name: value for name, value in (CONSTANTS | constants).items() if name in used}
    model = make_model(nodes, {"x": [None, batches[0].shape[1]]}, "y", known)
    return scan(model, folder, *({"x": x} for x in batches))


def _pair(left: float) -> np.ndarray:
    """Two of which that much is left, at 1024 and more, where FP16's steps are 1."""
    return np.float32([[1024.125 + left, 1024.125]])


WHITENINGS = {
    "as scikit-learn has it": [
        node("Sub", "x mean", "d"),
        node("MatMul", "d turned", "p"),
        node("Div", "p deviations", "y"),
    ],
    "as one matrix": [node("Sub", "x mean", "d"), node("Gemm", "d rows", "y", transB=1)],
}


@pytest.mark.parametrize("form", WHITENINGS)
def test_a_whitening_is_pinned_and_right_with_the_pins(form: str, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, WHITENINGS[form], FEATURES)
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert pinned == ["Sub_d", WHITENINGS[form][1].name]
    kept = {one.outputs[0] for one in graph.nodes if one.label in pinned}
    assert measure_snr_db(tmp_path / "model.onnx", {"x": FEATURES}, {"d"}) < 15
    assert measure_snr_db(tmp_path / "model.onnx", {"x": FEATURES}, kept) > 60


def test_the_numbers_are_those_of_the_product(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [node("MatMul", "x w", "y")], _pair(3), _pair(5.5))
    (found,) = find_cancelled_products(graph, ranges)
    assert (found.tensor, found.batch, found.value, found.limit) == ("y", "batch_1", 5.5, 32)
    assert found.reason == (
        "y is 5.5 at most, and is what MatMul MatMul_y leaves of products with weights of 1 and more for each element of x, up "
        "to 1029.62, which lose much: FP16's steps are 1 there, and 1 behind the weights"
    )


@pytest.mark.parametrize(("left", "is_found"), [(31.875, True), (32.0, False), (1e-3, False)])
def test_less_than_32_steps_are_lost_and_none_that_fp32_rounds_too(
    left: float, is_found: bool, tmp_path: Path
) -> None:
    graph, ranges = _scan(tmp_path, [node("MatMul", "x w", "y")], _pair(left))
    assert bool(list(find_cancelled_products(graph, ranges))) == is_found


@pytest.mark.parametrize(
    ("nodes", "pins"),
    [
        ([node("Gemm", "x w", "y")], ["Gemm_y"]),
        ([node("Gemm", "x across two", "y", transB=1, alpha=0.5)], ["Gemm_y"]),
        ([node("Gemm", "x tenth none", "y", alpha=10.0)], ["Gemm_y"]),
        ([node("Mul", "half two", "made"), node("MatMul", "x made", "y")], ["MatMul_y"]),
        ([node("MatMul", "x half", "h"), node("Mul", "h two", "y")], ["MatMul_h"]),
        ([node("Mul", "x two", "a"), node("MatMul", "a w", "y")], ["Mul_a", "MatMul_y"]),
        ([node("MatMul", "x some", "y")], []),
        ([node("MatMul", "x dead", "y")], []),  # the largest may be of the feature that is read by none
        ([node("MatMul", "x stacked", "y")], []),
        ([node("MatMul", "across x", "y")], []),
        ([node("Round", "x", "i"), node("MatMul", "i w", "y")], []),  # held
        ([node("Transpose", "x", "t"), node("MatMul", "x t", "y")], []),  # computed of data
    ],
)
def test_products_and_what_they_read(nodes: list[onnx.NodeProto], pins: list[str], tmp_path: Path) -> None:
    rows = 2 if "across" in nodes[0].input[0] else 1
    graph, ranges = _scan(tmp_path, nodes, np.repeat(_pair(7), rows, axis=0))
    found = [one.label for lost in find_cancelled_products(graph, ranges) for one in lost.nodes]
    assert sorted(found) == sorted(pins)


@pytest.mark.parametrize("x", [
    np.float32([[math.nan, 1]]), np.float32([[math.inf, 1]]), np.float32([[70000.3, 70007.6]]), np.float32([[0, 0]]), _pair(7)[:0],
])  # fmt: skip
def test_nothing_is_concluded(x: np.ndarray, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [node("MatMul", "x w", "y")], x)
    assert list(find_cancelled_products(graph, ranges)) == []


def test_layers_of_a_healthy_network_have_none(tmp_path: Path) -> None:
    """One of 16 channels is a thousand times the others; the layer reads little of it."""
    weights = RNG.normal(size=(16, 16)).astype(np.float32)
    weights[3] *= 1e-3
    x: Any = RNG.normal(size=(64, 16)).astype(np.float32)
    x[:, 3] *= 1000
    graph, ranges = _scan(tmp_path, [node("MatMul", "x v", "y")], x, v=weights)
    assert list(find_cancelled_products(graph, ranges)) == []
