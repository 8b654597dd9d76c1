"""Casts that cut data to integers by which something is looked up; tests/rules/test_lost_integer.py has what is pinned of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.integers.cuts import find_cuts

CELL = [
    node("Mul", "x size", "places"),
    node("Floor", "places", "whole"),
    node("Cast", "whole", "index", to=TensorProto.INT64),
]


@pytest.mark.parametrize(
    ("largest", "expected"), [(31.0, set()), (40.0, {"Cast_index", "Mul_places", "Floor_whole"})]
)
def test_a_cut_names_its_data_and_what_computes_them(
    largest: float, expected: set[str], tmp_path: Path
) -> None:
    """Places in cells count from 32 on."""
    constants = {"size": scalar(8), "table": np.zeros((64, 2), np.float32)}
    model = make_model([*CELL, node("Gather", "table index", "y")], {"x": [None]}, "y", constants)
    x = np.linspace(0, largest / 8, 9, dtype=np.float32)
    graph, ranges = scan(model, tmp_path, {"x": x})
    found = list(find_cuts(graph, ranges))
    assert {one.label for cut in found for one in cut.nodes} == expected
    assert [(cut.cast.label, cut.data) for cut in found] == ([("Cast_index", "places")] if expected else [])


def test_a_cut_by_which_nothing_is_looked_up_is_none(tmp_path: Path) -> None:
    nodes = [*CELL, node("Cast", "index", "y", to=TensorProto.FLOAT)]
    model = make_model(nodes, {"x": [None]}, "y", {"size": scalar(8)})
    graph, ranges = scan(model, tmp_path, {"x": np.linspace(0, 5, 9, dtype=np.float32)})
    assert not list(find_cuts(graph, ranges))
