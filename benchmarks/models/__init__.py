"""Models with the structure of well-known ones and seeded random weights, each made by a function here."""

from __future__ import annotations

from benchmarks.model import BenchmarkModel
from benchmarks.models.efficientnet import build_efficientnet
from benchmarks.models.resnet import build_resnet50, draw_image
from benchmarks.models.transformer import BertSize, build_bert, draw_tokens
from benchmarks.models.unet import build_unet
from benchmarks.models.yolo import YoloSize, build_yolo
from benchmarks.networks import NETWORKS


def sized_transformer(nodes: int) -> BenchmarkModel:
    """A narrow transformer of about `nodes` nodes: the graph weighs, the weights do not."""
    size = BertSize.of_nodes(nodes)
    return BenchmarkModel(lambda: build_bert(size), lambda rng: draw_tokens(rng, size))


MODELS: dict[str, BenchmarkModel] = {
    "resnet50": BenchmarkModel(build_resnet50, lambda rng: draw_image(rng, 224)),
    "bert": BenchmarkModel(lambda: build_bert(BertSize()), lambda rng: draw_tokens(rng, BertSize())),
    "unet": BenchmarkModel(build_unet, lambda rng: draw_image(rng, 512)),
    "yolo": BenchmarkModel(lambda: build_yolo(YoloSize()), lambda rng: draw_image(rng, YoloSize().image)),
    "efficientnet": BenchmarkModel(build_efficientnet, lambda rng: draw_image(rng, 224)),
}
SMALL_CONVNET = "small_convnet"
"""Quick, so that a thousand batches of it are no burden."""


def find_model(name: str) -> BenchmarkModel:
    """A model of MODELS or NETWORKS, SMALL_CONVNET, or "transformer-5000" for one of about that many nodes."""
    if name == SMALL_CONVNET:
        return _small_convnet()
    family, _, nodes = name.partition("-")
    return sized_transformer(int(nodes)) if family == "transformer" else (MODELS | NETWORKS)[name]


def _small_convnet(size: int = 64) -> BenchmarkModel:
    return BenchmarkModel(
        lambda: build_resnet50(size, width=16, stages=(1, 1, 1, 1), classes=10),
        lambda rng: draw_image(rng, size),
    )
