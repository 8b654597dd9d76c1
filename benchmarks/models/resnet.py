"""ResNet-50 (He et al., 2015, table 1) with batch normalisation folded into the convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from benchmarks.models.sketch import Sketch, add_conv

_STAGES = (3, 4, 6, 3)
_RESIDUAL_GAIN = 0.25
"""Keeps the sum over a stage's blocks in the tens; with gain 1 it doubles in each block."""


def build_resnet50(
    size: int = 224, width: int = 64, stages: tuple[int, ...] = _STAGES, classes: int = 1000
) -> onnx.ModelProto:
    """Input "image" float32 [1, 3, size, size], output "logits" float32 [1, classes]."""
    sketch = Sketch(seed=50)
    x = sketch.add("Relu", add_conv(sketch, "image", (3, width), 7, 2))
    x = sketch.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = width
    for stage, blocks in enumerate(stages):
        for block in range(blocks):
            inner = width << stage
            x = _add_bottleneck(sketch, x, channels, inner, 2 if stage and not block else 1)
            channels = 4 * inner
    x = sketch.add("Flatten", sketch.add("GlobalAveragePool", x), axis=1)
    weight = sketch.weight(channels, classes, std=channels**-0.5)
    sketch.add("Gemm", x, weight, sketch.weight(classes, std=0.01))
    inputs = {"image": (TensorProto.FLOAT, (1, 3, size, size))}
    return sketch.to_model(inputs, ("logits", (1, classes)))


def draw_image(rng: np.random.Generator, size: int) -> dict[str, npt.NDArray[Any]]:
    """One normalised image, float32 [1, 3, size, size]."""
    return {"image": rng.standard_normal((1, 3, size, size), np.float32)}


def _add_bottleneck(sketch: Sketch, x: str, channels: int, inner: int, stride: int) -> str:
    y = sketch.add("Relu", add_conv(sketch, x, (channels, inner), 1))
    y = sketch.add("Relu", add_conv(sketch, y, (inner, inner), 3, stride))
    y = add_conv(sketch, y, (inner, 4 * inner), 1, gain=_RESIDUAL_GAIN)
    if channels != 4 * inner:
        x = add_conv(sketch, x, (channels, 4 * inner), 1, stride, gain=0.7)
    return sketch.add("Relu", sketch.add("Add", x, y))
