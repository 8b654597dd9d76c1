"""The benchmark's models, so small that a test can run them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from benchmarks.models import BenchmarkModel
from benchmarks.models.efficientnet import build_efficientnet
from benchmarks.models.resnet import build_resnet50, draw_image
from benchmarks.models.transformer import BertSize, build_bert, draw_tokens
from benchmarks.models.unet import build_unet
from benchmarks.models.yolo import YoloSize, build_yolo

_BERT = BertSize(layers=2, hidden=16, heads=2, sequence=8, vocabulary=20)
TINY = {
    "resnet": BenchmarkModel(
        lambda: build_resnet50(32, width=8, stages=(1, 2), classes=5), lambda rng: draw_image(rng, 32)
    ),
    "bert": BenchmarkModel(lambda: build_bert(_BERT), lambda rng: draw_tokens(rng, _BERT)),
    "unet": BenchmarkModel(lambda: build_unet(32, width=4, levels=2), lambda rng: draw_image(rng, 32)),
    "yolo": BenchmarkModel(lambda: build_yolo(YoloSize(64, classes=3)), lambda rng: draw_image(rng, 64)),
    "efficientnet": BenchmarkModel(lambda: build_efficientnet(64), lambda rng: draw_image(rng, 64)),
}


def write_model(name: str, folder: Path) -> tuple[Path, list[Path]]:
    """A tiny model and two batches, laid out as the benchmark does."""
    (folder / "data").mkdir()
    batches = [folder / "data" / f"{index}.npz" for index in range(2)]
    onnx.save(TINY[name].build(), folder / "model.onnx")
    for index, batch in enumerate(batches):
        np.savez(batch, **TINY[name].draw(np.random.default_rng(index)))
    return folder / "model.onnx", batches
