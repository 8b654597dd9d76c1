"""The models of calib_data, and models typed without a pin, so that they go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from in_memory_calibration import InMemoryCalibration

from overflow_fixer.backends.mixed_onnx import emit, open_runner, open_tracer
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.records import PrecisionPlan, Runner
from overflow_fixer.repair.trace import OpenRunner

CALIB_DATA = Path(__file__).parents[1] / "calib_data"


def sample(name: str) -> tuple[Graph, InMemoryCalibration]:
    graph = load_graph(CALIB_DATA / name / "model.onnx")
    files = sorted((CALIB_DATA / name / "data").glob("*.npz"))
    return graph, InMemoryCalibration(tuple(dict(np.load(file)) for file in files))


def naive_artifact(graph: Graph, folder: Path) -> OpenRunner:
    """The model in FP16 without a pin, and the way to open it: of no tensors for its outputs."""
    artifact = emit(graph, PrecisionPlan(graph.sha256, 10000.0, ()), folder / "naive.onnx")

    def open_naive(tensors: Sequence[str]) -> Runner:
        return open_tracer(artifact, tensors) if tensors else open_runner(artifact)

    return open_naive
