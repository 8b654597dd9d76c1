"""What is chosen of an input in FP16, and compared with the input."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scan

from overflow_fixer.rules.control_flow import find_inside_bodies
from overflow_fixer.rules.lost_comparison import find_lost_comparisons

CONSTANTS = {"k": ints(2), "one": ints(1), "two": ints(2)}
LARGEST = [node("ReduceMax", "x", "b", axes=[1]), node("Equal", "x b", "c")]
END = node("Cast", "c", "y", to=1)


def _scan(folder: Path, nodes: list[onnx.NodeProto], *batches: Any) -> tuple[Any, Any]:
    model = make_model([*nodes, END], {"x": [None, None]}, "y", CONSTANTS, 13)
    return scan(model, folder, *({"x": np.asarray(one, np.float32)} for one in batches))


@pytest.mark.parametrize(
    ("nodes", "pins"),
    [
        (LARGEST, ["ReduceMax_b"]),
        ([node("TopK", "x k", "v i", axis=1), node("Slice", "v one two one", "b"), node("Less", "x b", "c")], ["TopK_v", "Slice_b"]),
        ([node("Identity", "x", "a"), *LARGEST[:1], node("Equal", "a b", "c")], []),  # both are rounded
        ([node("Neg", "x", "a"), node("ReduceMax", "a", "b", axes=[1]), node("Equal", "a b", "c")], []),
    ],
    ids=["the largest", "the largest two", "both moved", "computed"],
)  # fmt: skip
def test_forms(nodes: list[onnx.NodeProto], pins: list[str], tmp_path: Path) -> None:
    assert pinned_by(find_lost_comparisons, *_scan(tmp_path, nodes, [[0.1, 0.7, 0.3]])) == pins


@pytest.mark.parametrize(
    ("batches", "is_found"),
    [
        ([[[0.1]]], True),
        ([[[0.1, 0.7]], np.zeros((0, 2))], True),
        ([np.zeros((0, 2))], False),
        ([[[0.1, math.nan]]], False),
        ([[[0.1, math.inf]]], False),
        ([[[1.0, 2.0, 2048.0]]], False),  # which FP16 holds
        ([[[1.0, 2.0, 2049.0]]], True),
    ],
)
def test_boundary(batches: list[Any], is_found: bool, tmp_path: Path) -> None:
    assert pinned_by(find_lost_comparisons, *_scan(tmp_path, LARGEST, *batches)) == ["ReduceMax_b"] * is_found


def test_the_evidence(tmp_path: Path) -> None:
    (found,) = ask(find_lost_comparisons, *_scan(tmp_path, LARGEST, [[0.1, 3.3]]))
    assert (found.rule, found.tensor, found.value, found.limit) == ("lost_comparison", "x", 2**-10, 0)
    assert found.reason == (
        "Equal Equal_c compares x, which is fed in FP32, with what was chosen of it, which FP16 rounds by up to 0.000977: none of "
        "its elements, mostly"
    )


def test_the_largest_is_found_with_the_pin(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(50, 30)).astype(np.float32)
    _scan(tmp_path, LARGEST, x)
    path = tmp_path / "model.onnx"
    right = run_fp32(path, {"x": x})["c"]
    assert run_fp16(path, {"x": x}, {"c"})["c"].sum() < 5
    assert (run_fp16(path, {"x": x}, {"b", "c"})["c"] == right).all()
    assert right.sum() == 50


def test_in_a_body_nothing_is_fed(tmp_path: Path) -> None:
    body = onnx.helper.make_graph(
        [*LARGEST, END],
        "body",
        [
            onnx.helper.make_tensor_value_info("n", onnx.TensorProto.INT64, []),
            onnx.helper.make_tensor_value_info("go_on", onnx.TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None),
        ],
        [
            onnx.helper.make_tensor_value_info("go_on", onnx.TensorProto.BOOL, []),
            onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None),
        ],
    )
    nodes = [node("Sigmoid", "x", "h"), node("Loop", "k - h", "y", body=body)]
    model = make_model(nodes, {"x": [None, None]}, "y", CONSTANTS, 13)
    graph, ranges = scan(model, tmp_path, {"x": np.ones((2, 3), np.float32)})
    assert ask(find_inside_bodies, graph, ranges) == []
