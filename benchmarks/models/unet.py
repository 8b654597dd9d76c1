"""A small UNet (Ronneberger et al., 2015) with GroupNorm, written as exporters write it, and SiLU."""

from __future__ import annotations

import onnx
from onnx import TensorProto

from benchmarks.models.sketch import Sketch, add_conv, add_silu

_GROUPS = 4
_EPSILON = 1e-5


def build_unet(size: int = 512, width: int = 16, levels: int = 4) -> onnx.ModelProto:
    """Input "image" float32 [1, 3, size, size], output "classes" float32 [1, 2, size, size]."""
    sketch = Sketch(seed=7)
    x, channels, skips = "image", 3, []
    for level in range(levels):
        x = _add_block(sketch, x, (channels, width << level), size >> level)
        channels = width << level
        skips.append(x)
        x = sketch.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = _add_block(sketch, x, (channels, 2 * channels), size >> levels)
    for level in reversed(range(levels)):
        x = sketch.add("Concat", _add_upsample(sketch, x, 2 * channels), skips[level], axis=1)
        x = _add_block(sketch, x, (2 * channels, channels), size >> level)
        channels //= 2
    add_conv(sketch, x, (width, 2), 1)
    inputs = {"image": (TensorProto.FLOAT, (1, 3, size, size))}
    return sketch.to_model(inputs, ("classes", (1, 2, size, size)))


def _add_upsample(sketch: Sketch, x: str, channels: int) -> str:
    """Twice the size, half the channels."""
    weight = sketch.weight(channels, channels // 2, 2, 2, std=(1.0 / channels) ** 0.5)
    return sketch.add("ConvTranspose", x, weight, kernel_shape=[2, 2], strides=[2, 2])


def _add_block(sketch: Sketch, x: str, channels: tuple[int, int], size: int) -> str:
    for pair in (channels, (channels[1], channels[1])):
        x = _add_group_norm(sketch, add_conv(sketch, x, pair, 3), channels[1], size)
        x = add_silu(sketch, x)
    return x


def _add_group_norm(sketch: Sketch, x: str, channels: int, size: int) -> str:
    grouped = sketch.add("Reshape", x, sketch.constant([0, _GROUPS, -1], "int64"))
    ones, zeros = sketch.constant([1.0] * _GROUPS), sketch.constant([0.0] * _GROUPS)
    normal = sketch.add("InstanceNormalization", grouped, ones, zeros, epsilon=_EPSILON)
    x = sketch.add("Reshape", normal, sketch.constant([1, channels, size, size], "int64"))
    x = sketch.add("Mul", x, sketch.weight(channels, 1, 1, std=0.1, mean=1))
    return sketch.add("Add", x, sketch.weight(channels, 1, 1, std=0.1))
