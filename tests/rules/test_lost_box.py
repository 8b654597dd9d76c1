"""Boxes over 1024, where they are compared or cut by."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import (
    InMemoryCalibration,
    ask,
    floats,
    ints,
    make_model,
    node,
    pinned_by,
    scalar,
    scan,
)
from onnx import TensorProto

from overflow_fixer.backends.mixed_onnx import emit, open_runner
from overflow_fixer.evidence.integers.places import LARGEST_COORDINATE
from overflow_fixer.graph.model import Graph
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.records import PlanPolicy, PrecisionPlan, RangeTable
from overflow_fixer.rules.lost_box import find_lost_boxes

INT64 = TensorProto.INT64
LIMIT = LARGEST_COORDINATE
ABOVE = float(np.nextafter(np.float32(LIMIT), np.float32(2 * LIMIT)))
NMS = node("NonMaxSuppression", "boxes scores most overlap", "y")
SETTINGS = {"one": scalar(1), "most": ints(1000), "overlap": floats(0.5)}


def _scan(
    folder: Path,
    nodes: list[onnx.NodeProto],
    x: Any,
    constants: dict[str, Any] | None = None,
    **feeds: np.ndarray,
) -> tuple[Graph, RangeTable]:
    """Nodes that make `boxes` [1, n, 4] of x, and NMS of them."""
    x = np.asarray(x, np.float32)
    feeds = {"x": x, "scores": np.ones((1, 1, x.shape[1]), np.float32), **feeds}
    inputs = {name: (INT64 if value.dtype == np.int64 else 1, value.shape) for name, value in feeds.items()}
    model = make_model(
        [*nodes, NMS], inputs, "y", {**SETTINGS, **(constants or {})}, output_types={"y": INT64}
    )
    return scan(model, folder, feeds)


def _pins(
    folder: Path, nodes: list[onnx.NodeProto], x: Any, constants: Any = None, **feeds: Any
) -> list[str]:
    """The pins but that of the NMS, which is always the last."""
    pins = pinned_by(find_lost_boxes, *_scan(folder, nodes, x, constants, **feeds))
    assert not pins or pins[-1] == "NonMaxSuppression_y"
    return pins[:-1]


@pytest.mark.parametrize(
    ("corner", "is_found"),
    [
        (LIMIT, False),
        (ABOVE, True),
        (-ABOVE, True),
        (1500.25, True),
        (1500, True),
        (math.nan, False),
        (math.inf, False),
        (640.3, False),
        (0.9, False),
    ],
)
def test_boundary(corner: float, is_found: bool, tmp_path: Path) -> None:
    pins = _pins(tmp_path, [node("Mul", "x one", "boxes")], [[[0.5, 0.25, corner, corner]]])
    assert pins == (["Mul_boxes"] if is_found else [])


def test_no_boxes(tmp_path: Path) -> None:
    assert _pins(tmp_path, [node("Mul", "x one", "boxes")], np.zeros((1, 0, 4))) == []


def test_no_boxes_in_one_batch(tmp_path: Path) -> None:
    nodes = [node("Mul", "x one", "boxes"), NMS]
    inputs = {"x": [1, None, 4], "scores": [1, 1, None]}
    model = make_model(nodes, inputs, "y", SETTINGS, output_types={"y": INT64})
    feeds = [
        {"x": np.full((1, n, 4), 1500.25, np.float32), "scores": np.ones((1, 1, n), np.float32)}
        for n in (0, 2)
    ]
    graph, ranges = scan(model, tmp_path, *feeds)
    assert [found.batch for found in ask(find_lost_boxes, graph, ranges)] == ["batch_1", "batch_1"]


def test_pixels_that_fp16_holds_and_integers_that_it_loses(tmp_path: Path) -> None:
    """Integers over 2048 are the rule lost_integer's."""
    for largest in (2047, 2049, 4095):
        (tmp_path / str(largest)).mkdir()
        nodes = [node("Cast", "x", "i", to=INT64), node("Cast", "i", "boxes", to=TensorProto.FLOAT)]
        assert _pins(tmp_path / str(largest), nodes, [[[1, 2, 3, largest]]]) == []


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, [node("Mul", "x one", "boxes")], [[[1, 2, 3, 9600.5]]])
    mul, nms = ask(find_lost_boxes, graph, ranges)
    assert (mul.node, mul.tensor, mul.batch, mul.action) == ("Mul_boxes", "boxes", "batch_0", "pin")
    assert (nms.node, nms.value, nms.limit) == ("NonMaxSuppression_y", 9600.5, LIMIT)
    assert nms.reason == (
        "boxes holds boxes up to 9600.5, where FP16's steps are 8, and NonMaxSuppression NonMaxSuppression_y takes them"
    )
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert [pin.node for pin in plan.pins] == ["Mul_boxes"]
    assert [(found.node, found.action) for found in plan.considered] == [("NonMaxSuppression_y", "none")]


@pytest.mark.parametrize(
    ("offset", "pins"),
    [(480.0, ["Add_boxes"]), (481.0, ["Mul_offset", "Add_boxes"]), (485.51, ["Mul_offset", "Add_boxes"])],
)
def test_offsets_by_class_are_pinned_where_fp16_does_not_hold_them(
    offset: float, pins: list[str], tmp_path: Path
) -> None:
    nodes = [
        node("Cast", "classes", "c", to=TensorProto.FLOAT),
        node("Mul", "c far", "offset"),
        node("Add", "x offset", "boxes"),
    ]
    classes = np.asarray([[[0], [7], [19]]])
    x = np.random.default_rng(0).uniform(0, 480, (1, 3, 4))
    assert _pins(tmp_path, nodes, x, {"far": scalar(offset)}, classes=classes) == pins


def test_back_to_where_values_are_small_or_held(tmp_path: Path) -> None:
    """Anchors and distances at a stride of 32: a distance of up to 10 cells stays under 1024 pixels, a centre does not."""
    nodes = [
        node("Sigmoid", "x", "s"),
        node("Mul", "s ten", "distances"),
        node("Split", "distances", "low high", axis=2),
        node("Add", "anchors half", "centres"),
        node("Sub", "centres low", "from"),
        node("Add", "centres high", "to"),
        node("Concat", "from to", "cells", axis=2),
        node("Mul", "cells stride", "boxes"),
    ]
    anchors = np.arange(120, dtype=np.float32).reshape(1, 60, 2)
    constants = {"ten": scalar(10), "anchors": anchors, "half": scalar(0.3), "stride": scalar(32)}
    pins = _pins(tmp_path, nodes, np.zeros((1, 60, 4)), constants)
    assert pins == ["Add_centres", "Sub_from", "Add_to", "Concat_cells", "Mul_boxes"]


@pytest.mark.parametrize(("size", "pins"), [(4, ["Mul_p", "MatMul_boxes"]), (8, ["MatMul_boxes"])])
def test_a_product_with_a_small_matrix_is_a_conversion(size: int, pins: list[str], tmp_path: Path) -> None:
    """Centres and sides to corners; what a layer makes of features is not followed into them."""
    matrix = np.ones((size, 4), np.float32)
    nodes = [node("Mul", "x one", "p"), node("MatMul", "p matrix", "boxes")]
    assert _pins(tmp_path, nodes, np.full((1, 2, size), 700.1), {"matrix": matrix}) == pins


def test_zeros_and_what_is_not_known_end_the_way(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "x zero", "none"),
        node("Exp", "none", "ones"),
        node("Mul", "ones far", "places"),
        node("Add", "places none", "boxes"),
    ]
    pins = _pins(tmp_path, nodes, np.ones((1, 2, 4)), {"zero": floats(0), "far": floats(1, 2, 3, 1500.3)})
    assert pins == ["Mul_places", "Add_boxes"]


@pytest.mark.parametrize(("features", "boxes", "is_found"), [(5000, 1500.3, True), (5000, 900.3, False)])
@pytest.mark.parametrize("op", ["RoiAlign", "MaxRoiPool"])
def test_boxes_that_cut_features(
    op: str, features: float, boxes: float, is_found: bool, tmp_path: Path
) -> None:
    """How large the features are is no matter."""
    size = {"output_height": 1, "output_width": 1} if op == "RoiAlign" else {"pooled_shape": [1, 1]}
    batch = " batch" if op == "RoiAlign" else ""
    nodes = [
        node("Relu", "f", "large"),
        node("Mul", "x one", "boxes"),
        node(op, f"large boxes{batch}", "y", spatial_scale=1 / 512, **size),
    ]
    row = [0, 0, boxes, boxes] if op == "RoiAlign" else [0, 0, 0, boxes, boxes]
    feeds = {"f": np.full((1, 1, 4, 4), features, np.float32), "x": np.asarray([row], np.float32)}
    inputs = {name: list(value.shape) for name, value in feeds.items()}
    constants = {"one": scalar(1), "batch": ints(0)}
    graph, ranges = scan(make_model(nodes, inputs, "y", constants, 15), tmp_path, feeds)
    assert pinned_by(find_lost_boxes, graph, ranges) == (["Mul_boxes", f"{op}_y"] if is_found else [])


def _class_aware(largest: float) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """300 small boxes of 20 classes, each found twice, as torchvision's batched_nms takes them; y is what it keeps."""
    rng = np.random.default_rng(1)
    centres, sides = rng.uniform(0.1, 0.9, (1, 300, 2)) * largest, rng.uniform(4, 16, (1, 300, 2))
    boxes = np.concatenate([centres, sides], -1)
    x = np.concatenate([boxes, boxes + 0.8], 1).astype(np.float32) / np.float32(largest)
    classes = np.concatenate([rng.integers(0, 20, (1, 300, 1))] * 2, 1)
    nodes = [
        node("Mul", "x size", "scaled"),
        node("MatMul", "scaled corners", "found"),
        node("ReduceMax", "found", "end", keepdims=0),
        node("Add", "end one", "far"),
        node("Cast", "classes", "c", to=TensorProto.FLOAT),
        node("Mul", "c far", "offset"),
        node("Add", "found offset", "boxes"),
        NMS,
    ]
    corners = np.asarray([[1, 0, 1, 0], [0, 1, 0, 1], [-0.5, 0, 0.5, 0], [0, -0.5, 0, 0.5]], np.float32)
    constants = {**SETTINGS, "size": scalar(largest), "corners": corners}
    feeds = {"x": x, "classes": classes, "scores": rng.random((1, 1, 600)).astype(np.float32)}
    inputs = {"x": [1, 600, 4], "classes": (INT64, [1, 600, 1]), "scores": [1, 1, 600]}
    return make_model(nodes, inputs, "y", constants, output_types={"y": INT64}), feeds


def _kept(graph: Graph, plan: PrecisionPlan, feeds: dict[str, np.ndarray], path: Path) -> set[int]:
    (batch,) = InMemoryCalibration((feeds,))
    return set(open_runner(emit(graph, plan, path)).run(batch)["y"][:, 2].tolist())


def test_nms_keeps_too_many_without_the_pins_and_the_same_with_them(tmp_path: Path) -> None:
    model, feeds = _class_aware(480)
    graph, ranges = scan(model, tmp_path, feeds)
    planned = plan_precision(graph, ranges, PlanPolicy())
    plain = PrecisionPlan(graph.sha256, 10000.0, ())
    everything = plan_precision(graph, ranges, PlanPolicy(include_nodes=("",)))
    right, naive, mended = (
        _kept(graph, plan, feeds, tmp_path / f"{name}.onnx")
        for name, plan in (("right", everything), ("naive", plain), ("planned", planned))
    )
    assert len(naive) > 1.1 * len(right)
    assert len(mended ^ right) <= 0.02 * len(right)
    assert {"Mul_offset", "Add_boxes"} <= planned.pinned
    assert "Mul_scaled" not in planned.pinned


def test_a_detector_of_640_pixels_without_offsets_needs_none(tmp_path: Path) -> None:
    nodes = [node("Sigmoid", "x", "s"), node("Mul", "s size", "boxes")]
    x = np.random.default_rng(0).normal(size=(1, 100, 4))
    assert _pins(tmp_path, nodes, x, {"size": scalar(640)}) == []
