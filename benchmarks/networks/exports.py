"""Modules of PyTorch to ONNX, by its default exporter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import onnx

MakeModule = Callable[[], Any]
"""Makes a torch.nn.Module; torch is seeded before."""


def export(
    make: MakeModule, shapes: Mapping[str, tuple[int, ...]], are_tokens: bool = False
) -> onnx.ModelProto:
    """The module in inference, for inputs of these names and shapes: float32, or the int64 numbers of tokens."""
    import torch

    torch.manual_seed(0)
    module = make().eval()
    draw = (lambda shape: torch.randint(1, 100, shape)) if are_tokens else torch.randn
    inputs = tuple(draw(shape) for shape in shapes.values())
    with torch.no_grad():
        program = torch.onnx.export(module, inputs, input_names=list(shapes), dynamo=True, verbose=False)
    model: onnx.ModelProto = program.model_proto
    return model


def first_output(module: Any) -> Any:
    """A module that gives just the first tensor of what `module` gives, which is a record or a dictionary."""
    import torch

    class FirstOutput(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *inputs: Any) -> Any:
            return next(iter(self.inner(*inputs).values()))

    return FirstOutput()
