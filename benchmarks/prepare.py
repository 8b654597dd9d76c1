"""`python -m benchmarks.prepare NAME FOLDER BATCHES` writes a model, its batches and its typed model.

FOLDER gets model.onnx, data/*.npz, with --few N the first N of them again in few/ and, with --typed,
model.fp16.onnx: everything that can be in FP16.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np
import onnx

from benchmarks.models import find_model
from benchmarks.stages import typed_path
from overflow_fixer import PrecisionPlan, emit, load_graph


def write_model(name: str, folder: Path, batches: int) -> Path:
    """Write a model by its name and its batches; returns the model's path."""
    found = find_model(name)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx.save(found.build(), path)
    for index in range(batches):
        np.savez(folder / "data" / f"batch_{index:05}.npz", **found.draw(np.random.default_rng(index)))
    return path


def copy_few(model: Path, count: int) -> None:
    """Write the model's first batches once more, in a folder of their own."""
    few = model.parent / "few"
    few.mkdir(exist_ok=True)
    for batch in sorted((model.parent / "data").glob("*.npz"))[:count]:
        shutil.copy(batch, few)


def write_typed(model: Path) -> None:
    """Write the typed model beside it, nothing pinned: the most FP16, so the most to simulate."""
    graph = load_graph(model)
    emit(graph, PrecisionPlan(graph.sha256, 65504.0, ()), typed_path(model))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("batches", type=int)
    parser.add_argument("--few", type=int, default=0)
    parser.add_argument("--typed", action="store_true")
    options = parser.parse_args()
    model = write_model(options.name, options.folder, options.batches)
    copy_few(model, options.few)
    if options.typed:
        write_typed(model)


if __name__ == "__main__":
    main()
