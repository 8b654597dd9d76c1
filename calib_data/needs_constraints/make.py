"""Makes the needs_constraints sample: python calib_data/needs_constraints/make.py [FOLDER]"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

sys.path.append(str(Path(__file__).resolve().parents[1]))

from sample_model import ExportedGraph, Feeds, save_sample

SIZE = 128
FP16_MAX = np.float32(65504)


def make_model() -> onnx.ModelProto:
    """x -> MatMul(rot90) -> Add 65504 -> Sub 65504 -> MatMul(rot90): the output is x again."""
    graph = ExportedGraph()
    rot90 = graph.weight("rot90", np.ascontiguousarray(np.rot90(np.eye(SIZE, dtype=np.float32))))
    fp16_max = graph.constant("", np.asarray(FP16_MAX))
    turned = graph.add("", "MatMul", "x", rot90)
    lifted = graph.add("", "Add", turned, fp16_max)
    lowered = graph.add("", "Sub", lifted, fp16_max)
    graph.rename_output(graph.add("", "MatMul", lowered, rot90), "y")
    return graph.to_model(
        "needs_constraints", 13, {"x": (TensorProto.FLOAT, [SIZE, SIZE])}, {"y": [SIZE, SIZE]}
    )


def make_batches() -> Iterator[Feeds]:
    rng = np.random.RandomState(0)
    for _ in range(4):
        yield {"x": (1 + rng.random_sample((SIZE, SIZE))).astype(np.float32)}


if __name__ == "__main__":
    save_sample(make_model(), make_batches(), __file__)
