"""Tensors over the limit are told when they get there, and when they get worse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from onnx import helper
from scan_cases import MemoryBatches, StoppingBatches, save_model, stop_before, value_info

from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Range

FEEDS = [1.0, 200.0, 150.0, -300.0, math.inf, math.nan, math.nan, 1.0]


def test_each_is_told_when_it_gets_worse(tmp_path: Path) -> None:
    """y is -2x. Told: newly over, further over, infinite, and the first NaN; nothing twice."""
    two = helper.make_node("Constant", [], ["two"], value_float=-2.0)
    nodes = [two, helper.make_node("Mul", ["x", "two"], ["y"])]
    graph = save_model(tmp_path / "m.onnx", nodes, [value_info("x", dims=[1])], [value_info("y")])
    data = StoppingBatches([{"x": np.float32([value])} for value in FEEDS])
    told: list[list[tuple[str, float, int]]] = []

    def tell(ranges: Sequence[Range]) -> None:
        told.append([(found.tensor, found.max_abs, found.nan_count) for found in ranges])

    expected = [
        [("y", 400.0, 0)],
        [("x", 300.0, 0), ("y", 600.0, 0)],
        [("x", math.inf, 0), ("y", math.inf, 0)],
        [("x", math.inf, 1), ("y", math.inf, 1)],
    ]
    collect_ranges(graph, data, over=tell, limit=250)
    assert told == expected
    told.clear()
    for feeds in (data._feeds[:2], data._feeds[1:2]):  # 400 itself is not over it, in the first batch neither
        collect_ranges(graph, MemoryBatches(feeds), over=tell, limit=400)
    assert told == []
    stop_before(4, graph, data, tmp_path / "ranges.h5", over=tell, limit=250)
    assert told == expected[:2]
    told.clear()
    collect_ranges(graph, data, store=tmp_path / "ranges.h5", over=tell, limit=250)
    assert told == [expected[1], *expected[2:]]
