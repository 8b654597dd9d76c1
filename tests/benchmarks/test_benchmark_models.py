"""The benchmark's models are valid, have the structure they claim, and run to finite, moderate values."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tiny_models import TINY, write_model

from benchmarks.models import MODELS, find_model, sized_transformer
from benchmarks.models.efficientnet import build_efficientnet
from benchmarks.models.resnet import draw_image
from benchmarks.models.yolo import YoloSize, build_yolo
from benchmarks.scans import open_by_hand


@pytest.mark.parametrize("name", TINY)
def test_models_are_valid_and_run_to_finite_outputs(name: str) -> None:
    model = TINY[name].build()
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, TINY[name].draw(np.random.default_rng(0)))
    assert np.isfinite(output).all()
    assert output.std() > 0
    assert TINY[name].build() == model


@pytest.mark.parametrize("name", ["resnet", "unet", "yolo", "efficientnet"])
def test_activations_neither_fade_nor_grow_through_the_depth(name: str, tmp_path: Path) -> None:
    found = open_by_hand()(*write_model(name, tmp_path))
    largest = [value for tensor, value in found.items() if "/Conv_" in tensor]
    assert len(largest) > 5
    assert 0.03 < min(largest) <= max(largest) < 300


def test_the_detector_is_as_large_as_yolov8n_and_of_its_operators() -> None:
    model = build_yolo(YoloSize())
    assert _parameters(model) == pytest.approx(3.15e6, rel=0.01)
    operators = Counter(node.op_type for node in model.graph.node)
    assert operators["Conv"] == 64
    assert operators["Sigmoid"] == 57 + 1  # every SiLU, and the scores
    assert operators["MaxPool"] == 3
    assert operators["Resize"] == 2
    assert operators["Softmax"] == 1


def test_the_boxes_of_the_detector_lie_around_their_anchors() -> None:
    size = YoloSize(image=64, width=4, classes=3)
    session = onnxruntime.InferenceSession(
        build_yolo(size).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (boxes,) = session.run(None, draw_image(np.random.default_rng(0), 64))
    assert boxes.shape == (1, 4 + 3, 8 * 8 + 4 * 4 + 2 * 2)
    first, last = boxes[0, :2, 0], boxes[0, :2, 63]
    assert (np.abs(first - 4) <= 15 * 8 / 2).all()
    assert (np.abs(last - 60) <= 15 * 8 / 2).all()
    assert (boxes[0, 2:4] > 0).all()
    assert ((boxes[0, 4:] >= 0) & (boxes[0, 4:] <= 1)).all()


def test_efficientnet_is_as_large_as_b0_and_convolves_each_channel_alone() -> None:
    model = build_efficientnet()
    assert _parameters(model) == pytest.approx(5.3e6, rel=0.02)
    groups = [
        attribute.i for node in model.graph.node for attribute in node.attribute if attribute.name == "group"
    ]
    assert sum(group > 1 for group in groups) == 16


def test_sized_transformers_have_about_that_many_nodes() -> None:
    assert [len(sized_transformer(size).build().graph.node) for size in (82, 702, 1012)] == [82, 702, 1012]


def test_models_are_found_by_name() -> None:
    assert find_model("yolo") is MODELS["yolo"]
    assert len(find_model("transformer-82").build().graph.node) == 82
    assert find_model("small_convnet").draw(np.random.default_rng(0))["image"].shape == (1, 3, 64, 64)


def _parameters(model: onnx.ModelProto) -> int:
    return sum(int(np.prod(tensor.dims)) for tensor in model.graph.initializer)
