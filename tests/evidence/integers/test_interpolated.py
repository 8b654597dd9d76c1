"""Places between two cells that are both looked up, and weighed by the rest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ints, make_model, node, pinned_by, scalar, scan
from onnx import TensorProto

from overflow_fixer.rules.lost_integer import find_lost_integers

CONSTANTS = {
    "size": scalar(60),
    "one": scalar(1),
    "next": ints(1),
    "two": scalar(2),
}
PLACE = [node("Abs", "x", "a"), node("Mul", "a size", "b")]
CELL = [node("Floor", "b", "f"), node("Cast", "f", "i", to=TensorProto.INT64)]
CUT = [node("Cast", "b", "i", to=TensorProto.INT64), node("Cast", "i", "f", to=TensorProto.FLOAT)]
REST = [node("Sub", "b f", "w")]
NEXT = [node("Add", "f one", "g"), node("Cast", "g", "j", to=TensorProto.INT64)]
BLEND = [
    node("Gather", "table i", "t"),
    node("Gather", "table j", "u"),
    node("Sub", "u t", "d"),
    node("Mul", "d w", "p"),
    node("Add", "t p", "y"),
]


@pytest.mark.parametrize(
    ("nodes", "is_found"),
    [
        ([*CELL, *REST, *NEXT, *BLEND], False),
        ([*CUT, *REST, node("Add", "next i", "j"), *BLEND], False),
        ([*CELL, *NEXT, node("Sigmoid", "x", "w"), *BLEND], True),
        ([*CELL, *REST, node("Gather", "table i", "t"), node("Mul", "t w", "y")], True),
        (
            [
                *CELL,
                *REST,
                node("Add", "i next", "j"),
                node("Gather", "table j", "t"),
                node("Mul", "t w", "y"),
            ],
            True,
        ),
        (
            [*CELL, *REST, node("Mul", "f two", "g"), node("Cast", "g", "j", to=TensorProto.INT64), *BLEND],
            True,
        ),
    ],
    ids=["bilinear", "cut to integers first", "no rest", "one cell", "counted from one", "another cell"],
)
def test_what_lies_between_two_cells_is_of_both(
    nodes: list[onnx.NodeProto], is_found: bool, tmp_path: Path
) -> None:
    x = np.random.default_rng(5).uniform(0, 1, 400).astype(np.float32)
    table = np.random.default_rng(6).normal(size=128).astype(np.float32)
    model = make_model([*PLACE, *nodes], {"x": [400]}, "y", CONSTANTS | {"table": table})
    graph, ranges = scan(model, tmp_path, {"x": x})
    assert bool(pinned_by(find_lost_integers, graph, ranges)) is is_found
    assert is_found or measure_snr_db(tmp_path / "model.onnx", {"x": x}, set()) > 35
