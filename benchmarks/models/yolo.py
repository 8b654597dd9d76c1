"""A YOLOv8n-like detector (Ultralytics, 2023): C2f backbone, SPPF, PAN neck, decoupled heads, DFL decoding.

Batch normalisation is folded, SiLU is Sigmoid and Mul, as exporters write it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from benchmarks.models.sketch import Sketch, add_conv, add_silu_conv

_BINS = 16
"""Distances to each side of a box are expectations over this many bins."""
_STRIDES = (8, 16, 32)


@dataclass(frozen=True)
class YoloSize:
    """The defaults are YOLOv8n: depth 1/3, width 1/4."""

    image: int = 640
    width: int = 16
    classes: int = 80


def build_yolo(size: YoloSize) -> onnx.ModelProto:
    """Input "image" float32 [1, 3, image, image], a multiple of 32; output "boxes" [1, 4 + classes, anchors].

    A box is centre, width and height in pixels, then the classes' scores.
    """
    sketch = Sketch(seed=8)
    levels = _add_neck(sketch, _add_backbone(sketch, size.width), size.width)
    heads = [_add_head(sketch, x, channels, size) for x, channels in levels]
    sides = [(size.image // stride) ** 2 for stride in _STRIDES]
    joined = sketch.add("Concat", *heads, axis=2)
    boxes, scores = sketch.split(joined, (4 * _BINS, size.classes), axis=1)
    pixels = _add_box_decoding(sketch, boxes, size.image)
    sketch.add("Concat", pixels, sketch.add("Sigmoid", scores), axis=1)
    inputs = {"image": (TensorProto.FLOAT, (1, 3, size.image, size.image))}
    return sketch.to_model(inputs, ("boxes", (1, 4 + size.classes, sum(sides))))


def _add_backbone(sketch: Sketch, width: int) -> tuple[str, str, str]:
    """The features at strides 8, 16 and 32, of 4, 8 and 16 times `width` channels."""
    x = add_silu_conv(sketch, "image", (3, width), 3, 2)
    features = []
    for stage, blocks in enumerate((1, 2, 2, 1)):
        channels = width << stage
        x = add_silu_conv(sketch, x, (channels, 2 * channels), 3, 2)
        x = _add_c2f(sketch, x, (2 * channels, 2 * channels), blocks, shortcut=True)
        features.append(x)
    return features[1], features[2], _add_sppf(sketch, x, 16 * width)


def _add_neck(sketch: Sketch, features: tuple[str, str, str], width: int) -> list[tuple[str, int]]:
    """A path aggregation network, down and up again; each level with its channels."""
    fine, middle, coarse = features
    small, medium, large = 4 * width, 8 * width, 16 * width
    x = sketch.add("Concat", _add_upsample(sketch, coarse), middle, axis=1)
    middle = _add_c2f(sketch, x, (large + medium, medium))
    x = sketch.add("Concat", _add_upsample(sketch, middle), fine, axis=1)
    fine = _add_c2f(sketch, x, (medium + small, small))
    x = sketch.add("Concat", add_silu_conv(sketch, fine, (small, small), 3, 2), middle, axis=1)
    middle = _add_c2f(sketch, x, (small + medium, medium))
    x = sketch.add("Concat", add_silu_conv(sketch, middle, (medium, medium), 3, 2), coarse, axis=1)
    coarse = _add_c2f(sketch, x, (medium + large, large))
    return [(fine, small), (middle, medium), (coarse, large)]


def _add_c2f(
    sketch: Sketch, x: str, channels: tuple[int, int], blocks: int = 1, shortcut: bool = False
) -> str:
    """A cross-stage block: half of the channels goes through bottlenecks, and every step is joined again."""
    half = channels[1] // 2
    parts = sketch.split(add_silu_conv(sketch, x, (channels[0], 2 * half)), (half, half), axis=1)
    for _ in range(blocks):
        y = add_silu_conv(sketch, add_silu_conv(sketch, parts[-1], (half, half), 3), (half, half), 3)
        parts.append(sketch.add("Add", parts[-1], y) if shortcut else y)
    return add_silu_conv(sketch, sketch.add("Concat", *parts, axis=1), (len(parts) * half, channels[1]))


def _add_sppf(sketch: Sketch, x: str, channels: int) -> str:
    """Spatial pyramid pooling: three maxima over 5 x 5, one upon the other."""
    parts = [add_silu_conv(sketch, x, (channels, channels // 2))]
    for _ in range(3):
        pool = sketch.add("MaxPool", parts[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2] * 4)
        parts.append(pool)
    return add_silu_conv(sketch, sketch.add("Concat", *parts, axis=1), (2 * channels, channels))


def _add_upsample(sketch: Sketch, x: str) -> str:
    scales = sketch.constant([1, 1, 2, 2])
    return sketch.add(
        "Resize",
        x,
        "",
        scales,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _add_head(sketch: Sketch, x: str, channels: int, size: YoloSize) -> str:
    """Boxes and classes by convolutions of their own, [1, 4 x bins + classes, places]."""
    scored = max(4 * size.width, size.classes)
    branches = []
    for inner, outer in ((4 * _BINS, 4 * _BINS), (scored, size.classes)):
        y = add_silu_conv(sketch, add_silu_conv(sketch, x, (channels, inner), 3), (inner, inner), 3)
        branches.append(add_conv(sketch, y, (inner, outer), 1))
    joined = sketch.add("Concat", *branches, axis=1)
    return sketch.add("Reshape", joined, sketch.constant([1, 4 * _BINS + size.classes, -1], "int64"))


def _add_box_decoding(sketch: Sketch, boxes: str, image: int) -> str:
    """Softmax over the bins, their expectation by a convolution, then distances to boxes in pixels."""
    binned = sketch.add("Reshape", boxes, sketch.constant([1, 4, _BINS, -1], "int64"))
    shares = sketch.add("Softmax", sketch.add("Transpose", binned, perm=(0, 2, 1, 3)), axis=1)
    bins = sketch.constant(np.arange(_BINS).reshape(1, _BINS, 1, 1))
    distances = sketch.add("Conv", shares, bins, kernel_shape=[1, 1])
    distances = sketch.add("Reshape", distances, sketch.constant([1, 4, -1], "int64"))
    before, behind = sketch.split(distances, (2, 2), axis=1)
    anchors, strides = _place_anchors(image)
    centre = sketch.constant(anchors)
    first, last = sketch.add("Sub", centre, before), sketch.add("Add", centre, behind)
    middle = sketch.add("Div", sketch.add("Add", first, last), sketch.constant(2))
    box = sketch.add("Concat", middle, sketch.add("Sub", last, first), axis=1)
    return sketch.add("Mul", box, sketch.constant(strides))


def _place_anchors(image: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Each place's centre in units of its stride, [1, 2, places], and its stride, [1, 1, places]."""
    sides = [image // stride for stride in _STRIDES]
    centres = [np.stack(np.meshgrid(np.arange(side), np.arange(side))).reshape(2, -1) + 0.5 for side in sides]
    strides = [np.full(side * side, stride) for side, stride in zip(sides, _STRIDES, strict=True)]
    return np.concatenate(centres, axis=1)[None], np.concatenate(strides)[None, None]
