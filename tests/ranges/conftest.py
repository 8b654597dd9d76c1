"""What the tests of stored scans share: a small model, data that can stop, and a record of what was run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from scan_cases import StoppingBatches, save_model, value_info

from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges.summaries import Summaries
from overflow_fixer.ranges.walk import Walk
from overflow_fixer.records import Batch


@pytest.fixture
def small_graph(tmp_path: Path) -> Graph:
    nodes = [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]
    weights = [numpy_helper.from_array(np.float32([3, -1e5]), "w")]
    return save_model(
        tmp_path / "m.onnx", nodes, [value_info("x", dims=["N", 2])], [value_info("y")], weights
    )


@pytest.fixture
def five_batches() -> StoppingBatches:
    rng = np.random.default_rng(1)
    feeds = [{"x": (rng.standard_normal((3, 2)) * scale).astype(np.float32)} for scale in (1, 0, 9, 1, 4)]
    feeds[3]["x"][1] = np.nan
    return StoppingBatches(feeds)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the batches that were observed."""
    names: list[str] = []
    observe = Walk.observe

    def recording(self: Walk, batch: Batch) -> Summaries:
        names.append(batch.name)
        return observe(self, batch)

    monkeypatch.setattr(Walk, "observe", recording)
    return names
