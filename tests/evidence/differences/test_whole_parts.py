"""What makes whole numbers of one term of a difference for another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import floats, ints, make_model, node, pinned_by, save, scalar, scan

from overflow_fixer.evidence.differences.whole_parts import find_whole_parts
from overflow_fixer.rules.lost_difference import find_lost_differences

X = np.random.default_rng(0).uniform(-900, 900, (4, 64)).astype(np.float32)
CONSTANTS = {"c": scalar(0.25), "half": scalar(0.5), "shape": ints(2, -1), "low": scalar(-800)}


@pytest.mark.parametrize("op", ["Floor", "Ceil", "Round"])
def test_a_fraction_is_of_the_x_whose_whole_part_is_taken(op: str, tmp_path: Path) -> None:
    """One that FP16 rounds is a whole number off where x is just below one."""
    graph, ranges = scan(_model(node(op, "x", "w"), node("Sub", "x w", "y")), tmp_path, {"x": X, "z": X})
    assert pinned_by(find_lost_differences, graph, ranges) == [f"{op}_w", "Sub_y"]
    snrs = [measure_snr_db(tmp_path / "model.onnx", {"x": X}, names) for names in ({"y"}, {"w", "y"})]
    assert snrs[0] < 30 < 60 < snrs[1]


def _model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    return make_model(list(nodes), {"x": [None, 64], "z": [None, 64]}, "y", CONSTANTS)


@pytest.mark.parametrize(
    ("nodes", "labels"),
    [
        (
            [
                node("Div", "x c", "q"),
                node("Floor", "q", "w"),
                node("Mul", "w c", "m"),
                node("Sub", "x m", "y"),
            ],
            {"Div_q", "Floor_w", "Mul_m"},
        ),
        (
            [
                node("Add", "x half", "a"),
                node("Floor", "a", "w"),
                node("Neg", "w", "n"),
                node("Add", "x n", "y"),
            ],
            {"Add_a", "Floor_w", "Neg_n"},
        ),
        (
            [node("Add", "x half", "a"), node("Floor", "a", "w"), node("Sub", "w x", "y")],
            {"Add_a", "Floor_w"},
        ),
        (
            [
                node("Clip", "x low", "k"),
                node("Floor", "k", "w"),
                node("Reshape", "w shape", "r"),
                node("Reshape", "k shape", "s"),
                node("Sub", "k w", "y"),
            ],
            {"Floor_w"},
        ),
        ([node("Floor", "z", "w"), node("Sub", "x w", "y")], set()),  # of another
        ([node("Mul", "x half", "w"), node("Sub", "x w", "y")], set()),  # no whole number
        ([node("Add", "x z", "a"), node("Floor", "a", "w"), node("Sub", "x w", "y")], set()),
        ([node("Floor", "x", "w"), node("Mul", "x w", "y")], set()),  # no difference
    ],
)
def test_the_way_from_the_other_term(nodes: list[onnx.NodeProto], labels: set[str], tmp_path: Path) -> None:
    graph = save(_model(*nodes), tmp_path)
    found = {one.label for one in find_whole_parts(graph, graph.by_label[nodes[-1].name])}
    assert found == labels


def test_a_fraction_of_what_fp16_holds_is_left(tmp_path: Path) -> None:
    x = floats(*range(64))[None] / 4
    graph, ranges = scan(_model(node("Floor", "x", "w"), node("Sub", "x w", "y")), tmp_path, {"x": x, "z": x})
    assert pinned_by(find_lost_differences, graph, ranges) == []
