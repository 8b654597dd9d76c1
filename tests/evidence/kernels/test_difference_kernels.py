"""Constant kernels that add up to zero, and what FP16 leaves of what they make."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, floats, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.kernels.difference_kernels import find_kernels, read_kernels
from overflow_fixer.rules.lost_difference import find_lost_differences

CONSTANTS = {
    "detail": floats(-0.5, 1, -0.5).reshape(1, 1, 3),
    "mixed": np.stack([floats(-2, 2, 0), floats(9, 0, 0)])[:, None],
    "average": np.full((1, 1, 3), 1 / 3, np.float32),
    "nothing": np.zeros((1, 1, 3), np.float32),
    "endless": floats(-math.inf, math.inf, 0).reshape(1, 1, 3),
    "most": np.tile(floats(1, -1), 1 << 15).reshape(1, 1, -1),
    "large": np.tile(floats(1, -1), (1 << 15) + 1).reshape(1, 1, -1),
    "columns": np.stack([floats(1, -1, 0, 0), floats(0, 3, -3, 0)], axis=1),
    "rows": np.stack([floats(1, -1, 0, 0), floats(0, 3, -3, 0)]),
    "tiny": floats(1e-3, -1e-3, 0, 0).reshape(4, 1),
    "zero": floats(0),
    "two": scalar(2),
}
SIGNAL = np.random.default_rng(3).normal(size=(2, 1, 64)).astype(np.float32)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "norm"),
    [
        ("Conv", "s detail", {}, math.sqrt(1.5 / 2)),
        ("Conv", "s detail zero", {}, math.sqrt(1.5 / 2)),
        ("Conv", "s mixed", {}, 2),
        ("Conv", "s detail two", {}, None),
        ("Conv", "s average", {}, None),
        ("Conv", "s nothing", {}, None),
        ("Conv", "s endless", {}, None),
        ("Conv", "s most", {}, math.sqrt(1 << 15)),
        ("Conv", "s large", {}, None),
        ("MatMul", "m columns", {}, 3),
        ("MatMul", "rows m", {}, 3),
        ("MatMul", "m m", {}, None),
        ("Gemm", "m rows", {"transB": 1}, 3),
        ("ConvTranspose", "s detail", {}, None),
    ],
)
def test_which_kernels_there_are(
    op: str, inputs: str, attributes: dict[str, Any], norm: float | None, tmp_path: Path
) -> None:
    """Of [-1, 1] the norm is 1: an error of what it makes is as of a difference of two terms."""
    read = inputs.split()
    constants = {name: CONSTANTS[name] for name in read if name in CONSTANTS}
    shapes: dict[str, Any] = {
        name: {"s": [1, 1, CONSTANTS["large"].size], "m": [4, 4]}[name] for name in read if name in "sm"
    }
    feeds = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    if "two" in read or "zero" in read:
        constants[read[2]] = floats(2 if "two" in read else 0)
    graph, _ = scan(
        make_model([node(op, inputs, "y", **attributes)], shapes, "y", constants), tmp_path, feeds
    )
    assert find_kernels(graph).get(f"{op}_y") == (None if norm is None else pytest.approx(norm))
    assert [name for name, _ in read_kernels(graph, graph.nodes[0])] == ([] if norm is None else list(shapes))


FORMS = {
    "given out": ([node("Conv", "s detail", "y")], ["Conv_y"]),
    "computed before": ([node("Abs", "s", "a"), node("Conv", "a detail", "y")], ["Abs_a", "Conv_y"]),
    "divided by": (
        [node("Conv", "s detail", "d"), node("ReduceL2", "d", "n", axes=[2]), node("Div", "d n", "y")],
        ["Conv_d"],
    ),
}  # fmt: skip


def _scan(folder: Path, nodes: list[onnx.NodeProto], signal: np.ndarray) -> tuple[Any, Any]:
    model = make_model(nodes, {"s": [2, 1, 64]}, "y", {"detail": CONSTANTS["detail"]})
    return scan(model, folder, {"s": signal})


def _snr_db(folder: Path, signal: np.ndarray, fp32_nodes: set[str]) -> float:
    right = run_fp32(folder / "model.onnx", {"s": signal})["y"].astype(np.float64)
    error = run_fp16(folder / "model.onnx", {"s": signal}, fp32_nodes)["y"] - right
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(np.sum(right**2) / np.sum(error**2)))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_small_beside_what_it_is_made_of_is_told(form: str, tmp_path: Path) -> None:
    nodes, pinned = FORMS[form]
    near = SIGNAL + 900
    graph, ranges = _scan(tmp_path, nodes, near)
    assert pinned_by(find_lost_differences, graph, ranges) == pinned
    fp32 = {name for one in graph.nodes if one.label in pinned for name in one.writes}
    assert _snr_db(tmp_path, near, set()) < 25
    assert _snr_db(tmp_path, near, fp32) > 60


def test_a_trend_that_a_layer_takes_off_is_told(tmp_path: Path) -> None:
    """By a matrix of 100 by 100 that leaves what a straight line does not explain of pressures."""
    line = np.stack([np.ones(100), np.linspace(-1, 1, 100)], axis=1)
    residual = (np.eye(100) - line @ np.linalg.inv(line.T @ line) @ line.T).astype(np.float32)
    noise = np.random.default_rng(9).normal(0, 0.05, (4, 100))
    pressures = (1013 + 2 * np.linspace(0, 1, 100) + noise).astype(np.float32)
    model = make_model([node("MatMul", "s residual", "y")], {"s": [4, 100]}, "y", {"residual": residual})
    graph, ranges = scan(model, tmp_path, {"s": pressures})
    assert pinned_by(find_lost_differences, graph, ranges) == ["MatMul_y"]
    assert _snr_db(tmp_path, pressures, set()) < 5
    assert _snr_db(tmp_path, pressures, {"y"}) > 60


@pytest.mark.parametrize("form", FORMS)
def test_what_is_as_large_is_not(form: str, tmp_path: Path) -> None:
    assert pinned_by(find_lost_differences, *_scan(tmp_path, FORMS[form][0], SIGNAL)) == []
    assert _snr_db(tmp_path, SIGNAL, set()) > 50


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, FORMS["given out"][0], SIGNAL + 900)
    (found,) = ask(find_lost_differences, graph, ranges)
    most = ranges.by_tensor["s"].max_abs * math.sqrt(1.5 / 2)
    assert (found.tensor, found.value, found.limit) == ("y", ranges.by_tensor["y"].max_abs, 32 * 0.5)
    assert f"what its kernel subtracts loses as much as two terms of up to {most:.6g}: " in found.reason


def test_what_a_small_kernel_reads_is_followed_by_what_it_scales(tmp_path: Path) -> None:
    """Of the 0.002 that are left the kernel takes a thousandth of what FP16 takes from 300, and not of 2."""
    nodes = [node("Abs", "m", "a"), node("Add", "a far", "b"), node("MatMul", "b tiny", "y")]
    constants = {"tiny": CONSTANTS["tiny"], "far": scalar(300.3)}
    small = np.random.default_rng(4).uniform(0, 2, (8, 4)).astype(np.float32)
    graph, ranges = scan(make_model(nodes, {"m": [8, 4]}, "y", constants), tmp_path, {"m": small})
    assert pinned_by(find_lost_differences, graph, ranges) == ["Add_b", "MatMul_y"]


@pytest.mark.parametrize(
    ("op", "inputs", "shape", "weights", "attributes"),
    [
        ("MatMul", "x w", [2, 0], [0, 5], {}),
        ("MatMul", "w x", [4, 3], [0, 4], {}),
        ("Gemm", "x w", [2, 0], [0, 5], {}),
        ("Gemm", "x w", [2, 0], [5, 0], {"transB": 1}),
        ("Conv", "x w", [1, 3, 8], [0, 3, 1], {}),
    ],
)
def test_a_kernel_without_elements_is_none(
    op: str, inputs: str, shape: list[int], weights: list[int], attributes: dict[str, Any], tmp_path: Path
) -> None:
    constants = {"w": np.zeros(weights, np.float32)}
    graph, ranges = scan(
        make_model([node(op, inputs, "y", **attributes)], {"x": shape}, "y", constants),
        tmp_path,
        {"x": np.ones(shape, np.float32)},
    )
    assert find_kernels(graph) == {}
    assert not ask(find_lost_differences, graph, ranges)
