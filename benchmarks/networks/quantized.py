"""Quantized networks, as ONNX Runtime's static quantization writes them: QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.model import BenchmarkModel, Feeds
from benchmarks.networks.images import IMAGES


def _quantize(network: BenchmarkModel) -> onnx.ModelProto:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches = iter([network.draw(np.random.default_rng(0))])

        def get_next(self) -> Feeds | None:
            return next(self._batches, None)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        options: dict[str, Any] = {"quant_format": QuantFormat.QDQ, "per_channel": True}
        quantize_static(network.build(), path, Reader(), **options)
        return onnx.load(path)


def _quantized(name: str) -> BenchmarkModel:
    return BenchmarkModel(lambda: _quantize(IMAGES[name]), IMAGES[name].draw)


QUANTIZED: dict[str, BenchmarkModel] = {
    f"{name}, QDQ": _quantized(name) for name in ("ResNet-18", "MobileNetV2", "MLP-Mixer-S/16")
}
