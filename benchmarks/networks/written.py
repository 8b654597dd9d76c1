"""Small networks written out here: recurrent ones, loops, convolutions of one and of three dimensions."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser

from benchmarks.model import BenchmarkModel
from benchmarks.networks.exports import MakeModule, export

_STEPS = 100


def _network(make: MakeModule, shape: tuple[int, ...]) -> BenchmarkModel:
    return BenchmarkModel(
        lambda: export(make, {"x": shape}), lambda rng: {"x": rng.standard_normal(shape, np.float32)}
    )


def _make_dense() -> Any:
    from torch import nn

    return nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(512, 512), nn.ReLU())))


def _make_dilated() -> Any:
    from torch import nn

    layers = [(nn.Conv1d(64, 64, 3, padding=2**i, dilation=2**i), nn.Tanh()) for i in range(8)]
    return nn.Sequential(nn.Conv1d(1, 64, 1), *(part for layer in layers for part in layer))


def _make_volume() -> Any:
    from torch import nn

    return nn.Sequential(
        *(nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 16, 3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv3d(16, 16, 3, padding=1), nn.ReLU(), nn.ConvTranspose3d(16, 1, 2, stride=2)),
    )


def _make_gru() -> Any:
    import torch

    class UnrolledGru(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.GRUCell(32, 32)

        def forward(self, x: Any) -> Any:
            state = torch.zeros(1, 32)
            for step in range(_STEPS):
                state = self.cell(x[:, step], state)
            return state

    return UnrolledGru()


def _make_lstm() -> Any:
    import torch

    class OutputsOfLstm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.LSTM(64, 128, num_layers=3, bidirectional=True)

        def forward(self, x: Any) -> Any:
            return self.inner(x)[0]

    return OutputsOfLstm()


def _build_loop(steps: int, width: int) -> onnx.ModelProto:
    """`steps` times x = Tanh(x W) with a sum kept of all."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((width, width), np.float32) / np.float32(np.sqrt(width))
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        loop (float[{width}, {width}] x) => (float[{width}, {width}] y)
        {{
          steps = Constant <value_int: int = {steps}> ()
          last, y = Loop (steps, , x, x) <body = step (int64 i, bool go, float[{width}, {width}] state, float[{width}, {width}] kept)
            => (bool on, float[{width}, {width}] next, float[{width}, {width}] sum)
            {{ on = Identity (go) product = MatMul (state, weights) next = Tanh (product) sum = Add (kept, next) }}>
        }}"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "weights"))
    return model


def _loop(steps: int, width: int) -> BenchmarkModel:
    shape = (width, width)
    return BenchmarkModel(
        lambda: _build_loop(steps, width), lambda rng: {"x": rng.standard_normal(shape, np.float32)}
    )


WRITTEN: dict[str, BenchmarkModel] = {
    "8 dense layers of 512": _network(_make_dense, (1, 512)),
    "3-D convolutions, 64^3": _network(_make_volume, (1, 1, 64, 64, 64)),
    "dilated 1-D convolutions": _network(_make_dilated, (1, 1, 16_000)),
    "LSTM, 3 layers, both ways": _network(_make_lstm, (64, 1, 64)),
    "GRU of 100 steps, unrolled": _network(_make_gru, (1, _STEPS, 32)),
    "Loop of 100 large steps": _loop(100, 384),
    "Loop of 50 small steps": _loop(50, 32),
}
