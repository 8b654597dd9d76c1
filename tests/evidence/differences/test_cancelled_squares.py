"""A variance as E[x²] − E[x]² of which a quiet row loses all, though the others are large."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.differences.cancelled_squares import find_cancelled
from overflow_fixer.rules.lost_difference import find_lost_differences

GENERATOR = np.random.default_rng(5)
ROWS = GENERATOR.normal(0, 3, (32, 200)) + np.where(GENERATOR.random((32, 1)) < 0.5, 6, -6)
LOUD = ROWS.astype(np.float32)
QUIET = LOUD.copy()
QUIET[3::8] = (6 + GENERATOR.normal(0, 0.1, (4, 200))).astype(np.float32)
VARIANCE = [
    node("Mul", "x x", "xx"),
    node("ReduceMean", "xx", "e", axes=[1]),
    node("ReduceMean", "x", "m", axes=[1]),
    node("Mul", "m m", "mm"),
    node("Sub", "e mm", "v"),
]
GIVEN = {
    "as it is": [node("Squeeze", "v", "y")],
    "its root": [node("Relu", "v", "r"), node("Sqrt", "r", "y")],
    "its root as a power": [node("Relu", "v", "r"), node("Pow", "r half", "y")],
    "scaled": [node("Mul", "v ten", "y")],
    "scaled from the left": [node("Mul", "ten v", "y")],
    "divided": [node("Div", "v ten", "y")],
    "in bounds": [node("Abs", "v", "a"), node("Clip", "a eps", "c"), node("Max", "eps c", "y")],
    "guarded": [node("Add", "v eps", "g"), node("Sqrt", "g", "y")],
}
DIVIDED = {
    "by the root": [node("Sqrt", "v", "s"), node("Div", "x s", "y")],
    "by the root with an epsilon": [
        node("Add", "v eps", "g"), node("Sqrt", "g", "s"), node("Reciprocal", "s", "q"), node("Mul", "x q", "y")
    ],
    "its logarithm": [node("Log", "v", "y")],
}  # fmt: skip
HIDDEN = {
    "a large epsilon": [node("Add", "v ten", "g"), node("Sqrt", "g", "y")],
    "a sum with others": [node("ReduceSum", "v", "y")],
    "a product with data": [node("Mul", "v e", "y")],
    "a quotient by data": [node("Div", "v e", "y")],
    "a layer": [node("MatMul", "v w", "y")],
}
CONSTANTS = {"eps": scalar(1e-5), "ten": scalar(10), "half": scalar(0.5), "w": floats(1, 2).reshape(1, 2)}


def _scan(folder: Path, behind: list[onnx.NodeProto], *batches: np.ndarray) -> tuple[Any, Any]:
    model = make_model([*VARIANCE, *behind], {"x": ["n", 200]}, "y", CONSTANTS, opset=12)
    return scan(model, folder, *({"x": batch} for batch in batches))


@pytest.mark.parametrize("form", GIVEN | DIVIDED)
def test_a_quiet_row_is_told_and_right_with_the_pins(form: str, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, (GIVEN | DIVIDED)[form], LOUD, QUIET)
    (found,) = find_cancelled(graph, ranges)
    assert (found.nodes[0].label, found.limit) == ("Sub_v", 32 if form in GIVEN else 128)
    pinned = pinned_by(find_lost_differences, graph, ranges)
    assert set(pinned) >= {"Sub_v", "ReduceMean_e", "Mul_mm"}
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    assert _quiet_error(tmp_path, set()) > 0.2
    assert _quiet_error(tmp_path, fp32) < 0.02


def _quiet_error(folder: Path, fp32_nodes: set[str]) -> float:
    """The largest error in the quiet rows, relative to the largest there; infinite for NaN."""
    right = run_fp32(folder / "model.onnx", {"x": QUIET})["y"].reshape(len(QUIET), -1)[3::8]
    found = run_fp16(folder / "model.onnx", {"x": QUIET}, fp32_nodes)["y"].reshape(len(QUIET), -1)[3::8]
    error = np.abs(found.astype(np.float64) - right).max() / np.abs(right).max()
    return math.inf if math.isnan(error) else float(error)


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, GIVEN["its root"], LOUD, QUIET)
    found = next(one for one in ask(find_lost_differences, graph, ranges) if one.node == "Sub_v")
    exact = QUIET.astype(np.float64)
    assert found.value == pytest.approx(((exact**2).mean(1) / exact.var(1)).max(), rel=1e-2)
    assert (found.tensor, found.batch, found.limit) == ("v", "batch_1", 32)
    assert f"of v an element is left of terms {found.value:.6g} times as large" in found.reason
    assert found.reason.endswith("over the limit of 32, and the output y tells it")


def test_where_no_row_is_quiet_nothing_is_told(tmp_path: Path) -> None:
    assert list(find_cancelled(*_scan(tmp_path, GIVEN["as it is"], LOUD))) == []


def test_rows_of_different_size_lose_nothing(tmp_path: Path) -> None:
    """The variance of a row is a millionth of another's, and its terms are, too."""
    scaled = LOUD * np.geomspace(1e-3, 1, 32, dtype=np.float32)[:, None]
    assert list(find_cancelled(*_scan(tmp_path, GIVEN["as it is"], scaled))) == []


@pytest.mark.parametrize("form", HIDDEN)
def test_where_it_does_not_show_nothing_is_told(form: str, tmp_path: Path) -> None:
    assert list(find_cancelled(*_scan(tmp_path, HIDDEN[form], QUIET))) == []


def test_a_row_of_one_number_is_what_fp32_rounds(tmp_path: Path) -> None:
    flat = LOUD.copy()
    flat[::8] = np.float32(7.3)
    assert list(find_cancelled(*_scan(tmp_path, GIVEN["as it is"], flat))) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_of_what_is_not_finite_nothing_is_concluded(value: float, tmp_path: Path) -> None:
    x = QUIET.copy()
    x[0, 0] = value
    assert list(find_cancelled(*_scan(tmp_path, GIVEN["as it is"], x))) == []


def test_a_difference_that_crosses_zero_is_small_by_chance(tmp_path: Path) -> None:
    """b² − 4ac, say: near zero somewhere, and as wrong there as anywhere."""
    nodes = [node("Mul", "b b", "bb"), node("Sub", "a bb", "y")]
    b = GENERATOR.normal(size=(1, 4000)).astype(np.float32)
    a = np.abs(GENERATOR.normal(size=(1, 4000))).astype(np.float32)
    model = make_model(nodes, {"a": [1, 4000], "b": [1, 4000]}, "y")
    graph, ranges = scan(model, tmp_path, {"a": a, "b": b})
    assert ranges.inner_of["Sub_y"]["cancellation"].seen.max_abs > 100
    assert list(find_cancelled(graph, ranges)) == []


@pytest.mark.parametrize(("times", "is_told"), [(31, False), (33, True)])
def test_the_limit(times: int, is_told: bool, tmp_path: Path) -> None:
    """Of e = times / 2 and m² = e − 1/2, exactly, e is `times` what is left."""
    e = floats(times / 2 + 2.0**-12)  # no multiple that FP16 is known to hold
    nodes = [
        node("Abs", "x", "e"),
        node("Sqrt", "s", "m"),
        node("Mul", "m m", "mm"),
        node("Sub", "e mm", "v"),
    ]
    model = make_model([*nodes, node("Relu", "v", "y")], {"x": [1], "s": [1]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": e, "s": e - floats(0.5)})
    assert ranges.inner_of["Sub_v"]["cancellation"].seen.max_abs == pytest.approx(times, rel=1e-3)
    assert bool(list(find_cancelled(graph, ranges))) == is_told
