"""Squared distances of which a logarithm of a sum of exponentials tells the nearest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan
from written_distances import DISTANCES

from overflow_fixer.evidence.distances.log_sums import find_log_sums
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

GENERATOR = np.random.default_rng(9)
POINTS, CENTRES = (GENERATOR.normal(0, 1, (count, 3)).astype(np.float32) for count in (64, 20))
DENSITY = [
    node("Mul", "d minus", "e"),
    node("Sub", "e two", "f"),
    node("ReduceLogSumExp", "f", "y", axes=[1]),
]
OTHERS = {
    "written-out LogSoftmax": [
        *DENSITY[:2],
        node("ReduceLogSumExp", "f", "l", axes=[1]),
        node("Sub", "f l", "y"),
    ],
    "no distance": [node("ReduceLogSumExp", "c", "y", axes=[1])],
}
PINS = {"Mul_xx", "ReduceSum_a", "MatMul_c", "Mul_c2", "Sub_t", "Add_d"}


def _scan(folder: Path, behind: list[onnx.NodeProto], offset: float) -> tuple[Graph, RangeTable]:
    centres = CENTRES + np.float32(offset)
    constants = {
        "last": ints(-1),
        "two": scalar(2),
        "minus": scalar(-0.5),
        "ct": np.ascontiguousarray(centres.T),
        "cc": np.square(centres).sum(1)[None],
    }
    model = make_model([*DISTANCES, *behind], {"x": [None, 3]}, "y", constants, 17)
    return scan(model, folder, {"x": POINTS + np.float32(offset)})


def test_a_density_is_told_and_right_with_the_pins(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, DENSITY, 12)
    assert set(pinned_by(find_lost_differences, graph, ranges)) >= PINS
    feeds = {"x": POINTS + np.float32(12)}
    fp32 = {name for one in graph.nodes if one.label in PINS for name in one.writes}
    assert measure_snr_db(tmp_path / "model.onnx", feeds) < 29
    assert measure_snr_db(tmp_path / "model.onnx", feeds, fp32) > 50


@pytest.mark.parametrize(("offset", "is_told"), [(4.0, False), (16.0, True)])
def test_less_than_32_steps_count_in_the_measure_of_the_sum(
    offset: float, is_told: bool, tmp_path: Path
) -> None:
    graph, ranges = _scan(tmp_path, DENSITY, offset)
    found = list(find_log_sums(graph, ranges))
    assert bool(found) == is_told
    for one in found:
        step = np.spacing(np.float16(max(ranges.by_tensor[name].max_abs for name in ("a", "c2", "t"))))
        assert one.difference.value == ranges.by_tensor["y"].max_abs < one.difference.limit == 16 * step
        assert one.made == "ReduceLogSumExp ReduceLogSumExp_y tells the nearest, times 0.5"
    reasons = [one.reason for one in ask(find_lost_differences, graph, ranges)]
    assert any("tells the nearest" in reason for reason in reasons) == is_told


@pytest.mark.parametrize("form", OTHERS)
def test_others_tell_nothing(form: str, tmp_path: Path) -> None:
    assert list(find_log_sums(*_scan(tmp_path, OTHERS[form], 12))) == []
