"""EfficientNet-B0 (Tan and Le, 2019, table 1) with batch normalisation folded and SiLU as Sigmoid and Mul.

Depthwise convolutions, squeeze-and-excite: a network that loses much with graph optimisation off.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
from onnx import TensorProto

from benchmarks.models.sketch import Sketch, add_conv, add_silu, add_silu_conv


@dataclass(frozen=True)
class Stage:
    """`blocks` inverted bottlenecks, the first of which has the stride."""

    expansion: int
    channels: int
    blocks: int
    stride: int
    kernel: int


B0 = (
    Stage(1, 16, 1, 1, 3),
    Stage(6, 24, 2, 2, 3),
    Stage(6, 40, 2, 2, 5),
    Stage(6, 80, 3, 2, 3),
    Stage(6, 112, 3, 1, 5),
    Stage(6, 192, 4, 2, 5),
    Stage(6, 320, 1, 1, 3),
)
_STEM, _TOP = 32, 1280
_SQUEEZE = 4
_PROJECTION_GAIN = 1.3
"""Makes up for the gate, which halves: with 1.2 the deepest activations fade, with 1.4 they grow."""


def build_efficientnet(
    size: int = 224, stages: tuple[Stage, ...] = B0, classes: int = 1000
) -> onnx.ModelProto:
    """Input "image" float32 [1, 3, size, size], output "logits" float32 [1, classes]."""
    sketch = Sketch(seed=19)
    x, channels = add_silu_conv(sketch, "image", (3, _STEM), 3, 2), _STEM
    for stage in stages:
        for block in range(stage.blocks):
            x = _add_block(sketch, x, channels, stage, stage.stride if block == 0 else 1)
            channels = stage.channels
    x = add_silu_conv(sketch, x, (channels, _TOP))
    x = sketch.add("Flatten", sketch.add("GlobalAveragePool", x), axis=1)
    weight = sketch.weight(_TOP, classes, std=_TOP**-0.5)
    sketch.add("Gemm", x, weight, sketch.weight(classes, std=0.01))
    inputs = {"image": (TensorProto.FLOAT, (1, 3, size, size))}
    return sketch.to_model(inputs, ("logits", (1, classes)))


def _add_block(sketch: Sketch, x: str, channels: int, stage: Stage, stride: int) -> str:
    """Expand, convolve each channel alone, gate, project; around it all a shortcut where shapes allow."""
    inner = channels * stage.expansion
    y = x if stage.expansion == 1 else add_silu_conv(sketch, x, (channels, inner))
    y = add_silu_conv(sketch, y, (inner, inner), stage.kernel, stride, group=inner)
    y = _add_gate(sketch, y, inner, channels // _SQUEEZE)
    y = add_conv(sketch, y, (inner, stage.channels), 1, gain=_PROJECTION_GAIN)
    return sketch.add("Add", x, y) if stride == 1 and channels == stage.channels else y


def _add_gate(sketch: Sketch, x: str, channels: int, squeezed: int) -> str:
    """Squeeze-and-excite: each channel times a factor from the means of all channels."""
    y = add_conv(sketch, sketch.add("GlobalAveragePool", x), (channels, squeezed), 1)
    y = add_conv(sketch, add_silu(sketch, y), (squeezed, channels), 1)
    return sketch.add("Mul", x, sketch.add("Sigmoid", y))
