"""Places in the order of an input, of which FP16 makes many equal."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scan

from overflow_fixer.rules.lost_comparison import find_lost_comparisons

CONSTANTS = {"k": ints(4), "zero": ints(0), "one": ints(1), "all": ints(0, 1, 2, 3)}
SORT = [node("TopK", "x k", "v i", axis=1)]
PLACES = node("Cast", "i", "y", to=1)
NEAR = [[2000.0, 2000.3, 1.0, 5.0]]
"""Of three neighbours in order one is made equal to the next."""


def _scan(
    folder: Path, nodes: list[onnx.NodeProto], *batches: Any, end: onnx.NodeProto = PLACES, opset: int = 13
) -> tuple[Any, Any]:
    model = make_model([*nodes, end], {"x": [None, None]}, "y", CONSTANTS, opset)
    return scan(model, folder, *({"x": np.asarray(one, np.float32)} for one in batches))


@pytest.mark.parametrize(
    ("nodes", "end", "pins"),
    [
        (SORT, PLACES, ["TopK_v"]),
        ([node("TopK", "x k", "v i", axis=-1, largest=0)], PLACES, ["TopK_v"]),
        ([node("Neg", "x", "m"), node("TopK", "m k", "v i", axis=1)], PLACES, ["Neg_m", "TopK_v"]),
        (SORT, node("Neg", "v", "y"), []),  # its values alone: they are no more than rounded
        ([node("TopK", "x k", "v i", axis=1, sorted=0)], PLACES, []),
        ([node("TopK", "x k", "v i")], PLACES, ["TopK_v"]),
        ([node("Gather", "x all", "m", axis=1), node("TopK", "m k", "v i")], PLACES, ["Gather_m", "TopK_v"]),
        ([node("Abs", "x", "m"), node("TopK", "m k", "v i", axis=1)], PLACES, []),  # computed
    ],
    ids=[
        "an order",
        "the least first",
        "moved",
        "values",
        "in no order",
        "the last axis",
        "gathered",
        "computed",
    ],
)
def test_forms(nodes: list[onnx.NodeProto], end: onnx.NodeProto, pins: list[str], tmp_path: Path) -> None:
    batch = [[7.0, 7.001, 1.0, 5.0]]
    assert pinned_by(find_lost_comparisons, *_scan(tmp_path, nodes, batch, end=end)) == pins


@pytest.mark.parametrize(
    ("batches", "is_found"),
    [
        ([NEAR], True),
        ([[[2000.0, 2000.0, 1.0, 5.0]]], False),  # equal as they are fed
        ([[[2000.0, 2001.0, 1.0, 5.0]]], False),
        ([[[70000.0, 80000.0, 1.0, 5.0]]], True),  # infinity, both
        ([NEAR, np.zeros((0, 4))], True),
        ([np.zeros((0, 4))], False),
        ([[[2000.0, math.nan, 1.0, 5.0]]], False),
    ],
)
def test_boundary(batches: list[Any], is_found: bool, tmp_path: Path) -> None:
    assert pinned_by(find_lost_comparisons, *_scan(tmp_path, SORT, *batches)) == ["TopK_v"] * is_found


@pytest.mark.parametrize(("rows", "pins"), [(334, []), (333, ["TopK_v"])])
def test_one_in_a_thousand(rows: int, pins: list[str], tmp_path: Path) -> None:
    """Each row has three neighbours, and of one row two are made equal."""
    x = np.tile(np.array([[1.0, 2, 3, 4]], np.float32), (rows, 1))
    x[0] = NEAR[0]
    assert pinned_by(find_lost_comparisons, *_scan(tmp_path, SORT, x)) == pins


def test_what_compares_no_floats_tells_nothing(tmp_path: Path) -> None:
    assert pinned_by(find_lost_comparisons, *_scan(tmp_path, SORT, NEAR, opset=10)) == []


def test_the_evidence(tmp_path: Path) -> None:
    (found,) = ask(find_lost_comparisons, *_scan(tmp_path, SORT, [[1.0, 2.0, 3.0, 4.0]], NEAR))
    assert (found.rule, found.tensor, found.limit, found.batch) == ("lost_comparison", "x", 1e-3, "batch_1")
    assert found.value == pytest.approx(1 / 6)
    assert found.reason == (
        "TopK TopK_v tells places in the order of x, which is fed in FP32: FP16 makes 0.167 of its elements equal to the next, "
        "which they are not"
    )


def test_the_order_is_right_with_the_pin(tmp_path: Path) -> None:
    x = np.random.default_rng(0).uniform(0, 2500, (50, 4)).astype(np.float32)
    x[:, 1] = x[:, 0] + np.float32(0.1)
    _scan(tmp_path, SORT, x)
    path = tmp_path / "model.onnx"
    right = run_fp32(path, {"x": x})["i"]
    assert (run_fp16(path, {"x": x}, {"y"})["i"] != right).any()
    assert (run_fp16(path, {"x": x}, {"v", "y"})["i"] == right).all()


def test_columns_of_a_table_are_fed(tmp_path: Path) -> None:
    nodes = [node("Slice", "x zero one one", "t"), node("Squeeze", "t one", "s"), node("TopK", "s k", "v i")]
    x = np.array(NEAR, np.float32).T.repeat(2, axis=1)
    assert pinned_by(find_lost_comparisons, *_scan(tmp_path, nodes, x)) == ["Slice_t", "Squeeze_s", "TopK_v"]
