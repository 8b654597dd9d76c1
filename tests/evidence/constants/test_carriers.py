"""Which tensors can carry which constants; tests/rules/test_constant_range.py has what becomes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from in_memory_calibration import floats, make_model, node, scalar, scan
from onnx import TensorProto

from overflow_fixer.evidence.constants.carriers import find_carriers


def test_each_constant_is_told_apart(tmp_path: Path) -> None:
    model = make_model(
        [node("Where", "c one x", "a"), node("Where", "c two a", "b"), node("Tanh", "b", "y")],
        {"x": [2], "c": (TensorProto.BOOL, [2])},
        "y",
        {"one": scalar(-1e9), "two": scalar(1e8)},
    )
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2), "c": np.zeros(2, bool)})
    reached = {
        name: {t.origin.tensor: set(t.signs) for t in found}
        for name, found in find_carriers(graph, ranges).items()
    }
    assert reached == {
        "one": {"one": {-1}},
        "two": {"two": {1}},
        "a": {"one": {-1}},
        "b": {"one": {-1}, "two": {1}},
    }
