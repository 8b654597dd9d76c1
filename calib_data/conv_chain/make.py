"""Makes the conv_chain sample: python calib_data/conv_chain/make.py [FOLDER]"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

sys.path.append(str(Path(__file__).resolve().parents[1]))

from sample_model import ExportedGraph, Feeds, Floats, draw_uniform, save_sample

SIDE = 64
CHANNELS = 32
CLASSES = 10
GAINS = (3.0, 20.0, 20.0, 30.0, 0.25, 1 / 30, 1 / 50)
"""Each convolution multiplies the activations by about its gain: up past 65504, and back."""
STRIDES = (1, 1, 1, 1, 1, 2, 2)
MEAN = np.asarray([0.485, 0.456, 0.406], np.float32)
STD = np.asarray([0.229, 0.224, 0.225], np.float32)


def make_model() -> onnx.ModelProto:
    """Seven times Conv and Relu, no normalisation; then global pooling and a classifier."""
    rng = np.random.RandomState(1)
    graph = ExportedGraph()
    x, channels = "image", 3
    for index, (gain, stride) in enumerate(zip(GAINS, STRIDES, strict=True), start=1):
        x = _add_conv(graph, rng, f"conv{index}", x, channels, gain, stride)
        channels = CHANNELS
    x = graph.add("/pool", "GlobalAveragePool", x)
    x = graph.add("/flatten", "Flatten", x)
    weight = graph.weight("fc.weight", draw_uniform(rng, 0.5, CLASSES, CHANNELS))
    bias = graph.weight("fc.bias", draw_uniform(rng, 0.1, CLASSES))
    graph.rename_output(graph.add("/fc", "Gemm", x, weight, bias, transB=1), "logits")
    inputs = {"image": (TensorProto.FLOAT, ["batch", 3, SIDE, SIDE])}
    return graph.to_model("conv_chain", 13, inputs, {"logits": ["batch", CLASSES]})


def _add_conv(
    graph: ExportedGraph,
    rng: np.random.RandomState,
    name: str,
    x: str,
    channels: int,
    gain: float,
    stride: int,
) -> str:
    bound = gain * math.sqrt(6 / (channels * 9))
    weight = graph.weight(f"{name}.weight", draw_uniform(rng, bound, CHANNELS, channels, 3, 3))
    bias = graph.weight(f"{name}.bias", draw_uniform(rng, 0.1, CHANNELS))
    strides = [stride, stride]
    x = graph.add(
        f"/{name}", "Conv", x, weight, bias, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=strides
    )
    return graph.add(f"/{name.replace('conv', 'relu')}", "Relu", x)


def make_batches() -> Iterator[Feeds]:
    rng = np.random.RandomState(2)
    for _ in range(3):
        yield {"image": np.stack([_normalise(_draw_photo(rng)) for _ in range(2)])}


def _draw_photo(rng: np.random.RandomState) -> np.ndarray:
    """uint8 [SIDE, SIDE, 3]: a lit background, objects, texture of every size, and sensor noise."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / (SIDE - 1)
    top, bottom = _draw_colour(rng), _draw_colour(rng)
    tilt = rng.random_sample() * 0.4
    slope = np.clip(y + tilt * (x - 0.5), 0, 1)[..., None]
    photo = top * (1 - slope) + bottom * slope
    for _ in range(4):
        photo = _draw_object(rng, photo, x, y)
    for cell in (32, 16, 8, 4, 2):
        photo = photo + _draw_texture(rng, cell) * (0.006 * cell)
    photo = photo + (rng.random_sample(photo.shape) - 0.5) * 0.03
    return np.floor(np.clip(photo, 0, 1) * 255 + 0.5).astype(np.uint8)


def _draw_colour(rng: np.random.RandomState) -> np.ndarray:
    """RGB in [0.1, 1), muted: mostly a grey, as most surfaces are."""
    return 0.1 + 0.6 * rng.random_sample() + 0.3 * rng.random_sample(3)


def _draw_object(rng: np.random.RandomState, photo: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """An ellipse with a soft edge, brighter on its upper side."""
    centre_x, centre_y = rng.random_sample(2)
    width, height = rng.random_sample(2) * 0.3 + 0.08
    distance = ((x - centre_x) / width) ** 2 + ((y - centre_y) / height) ** 2
    cover = np.clip((1.1 - distance) * 5, 0, 1)[..., None]
    shade = 1 - 0.4 * np.clip((y - centre_y) / height + 0.5, 0, 1)
    return photo * (1 - cover) + _draw_colour(rng) * shade[..., None] * cover


def _draw_texture(rng: np.random.RandomState, cell: int) -> np.ndarray:
    """Noise in [-0.5, 0.5) on a grid of `cell` pixels, bilinear between; nearly grey."""
    corners = rng.random_sample((SIDE // cell + 1, SIDE // cell + 1)) - 0.5
    index, part = np.divmod(np.arange(SIDE), cell)
    weight = part / cell
    rows = corners[index] * (1 - weight)[:, None] + corners[index + 1] * weight[:, None]
    grey = rows[:, index] * (1 - weight) + rows[:, index + 1] * weight
    return grey[..., None] * (0.8 + 0.4 * rng.random_sample(3))


def _normalise(photo: np.ndarray) -> Floats:
    """uint8 [H, W, 3] to float32 [3, H, W], as ImageNet models want it."""
    scaled = (photo.astype(np.float32) / np.float32(255) - MEAN) / STD
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


if __name__ == "__main__":
    save_sample(make_model(), make_batches(), __file__)
