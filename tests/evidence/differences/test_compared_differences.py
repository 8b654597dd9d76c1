"""Differences that are compared with a number, of which FP16 decides many otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import run_fp16, run_fp32
from in_memory_calibration import ask, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.differences.compared_differences import find_compared_differences
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Finding, RangeTable
from overflow_fixer.rules.lost_difference import find_lost_differences

CONSTANTS = {"near": scalar(0.05), "offset": scalar(12), "first": ints(0), "zero": scalar(0)}
RESIDUAL = [
    node("Mul", "x slope", "m"),
    node("Add", "m offset", "l"),
    node("Sub", "z l", "d"),
    node("Abs", "d", "a"),
    node("Less", "a near", "c"),
]
COUNT = [node("Cast", "c", "i", to=1), node("ReduceSum", "i first", "y", keepdims=0)]


def _points(seed: int, spread: float = 0.03, size: int = 2000) -> dict[str, np.ndarray]:
    """A line, with noise, and three of ten points that are anywhere."""
    generator = np.random.default_rng(seed)
    x = generator.uniform(0, 50, size)
    z = 1.7 * x + 12 + spread * generator.normal(size=size)
    z = np.where(generator.random(size) < 0.3, generator.uniform(0, 100, size), z)
    return {"x": x.astype(np.float32), "z": z.astype(np.float32)}


def _scan(
    folder: Path, behind: list[onnx.NodeProto], *feeds: dict[str, np.ndarray]
) -> tuple[Graph, RangeTable]:
    constants = CONSTANTS | {"slope": scalar(1.7)}
    model = make_model([*RESIDUAL, *behind], {"x": [None], "z": [None]}, "y", constants, 13)
    return scan(model, folder, *(feeds or (_points(0),)))


def _told(graph: Graph, ranges: RangeTable) -> list[Finding]:
    return [
        one for one in ask(find_lost_differences, graph, ranges) if "of the elements otherwise" in one.reason
    ]


def test_inliers_are_right_with_the_pins(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, COUNT)
    assert {one.node for one in _told(graph, ranges)} == {"Mul_m", "Add_l", "Sub_d", "Abs_a"}
    fp32 = {name.split("_")[1] for name in pinned_by(find_lost_differences, graph, ranges)}
    path, fresh = tmp_path / "model.onnx", _points(1)
    right = run_fp32(path, fresh)["c"]
    assert (run_fp16(path, fresh)["c"] != right).mean() > 0.05
    assert (run_fp16(path, fresh, {*fp32, "c"})["c"] == right).all()


def test_the_evidence(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, COUNT, _points(0), _points(1))
    found = _told(graph, ranges)[0]
    shares = ranges.inner_of["Less_c"]["decided otherwise"].batch_max_abs
    assert (found.tensor, found.limit, found.batch) == ("d", 1 / 100, None)
    assert found.value == pytest.approx(float(shares.mean()))
    assert found.reason.startswith(
        f"Less Less_c decides {found.value:.3g} of the elements otherwise where z and l, up to 9"
    )


@pytest.mark.parametrize(
    ("behind", "is_found"),
    [
        ([node("Cast", "c", "y", to=1)], True),
        ([node("Not", "c", "n"), node("Cast", "n", "y", to=1)], True),
        ([node("Where", "c x zero", "y")], True),
        ([node("Where", "c x z", "y")], False),
        ([node("Not", "c", "n"), node("Where", "n x z", "y")], False),
    ],
    ids=["given out", "negated", "a mask", "a choice of two", "a choice of two, negated"],
)
def test_what_shows(behind: list[onnx.NodeProto], is_found: bool, tmp_path: Path) -> None:
    """Of two that are computed, such as the two ways of a continuous function, either may do where it is decided."""
    assert bool(_told(*_scan(tmp_path, behind))) == is_found


def test_one_of_a_hundred_on_average_is_the_limit(tmp_path: Path) -> None:
    """Of numbers that FP16 holds none is decided otherwise, so each such batch brings the mean down."""
    exact = {"x": np.zeros(4, np.float32), "z": np.array([12, 12, 13, 14], np.float32)}
    _, ranges = _scan(tmp_path, COUNT, _points(0))
    share = float(ranges.inner_of["Less_c"]["decided otherwise"].batch_max_abs[0])
    most = int(share * 100)
    assert share > most / 100
    assert _told(*_scan(tmp_path, COUNT, _points(0), *[exact] * (most - 1)))
    assert not _told(*_scan(tmp_path, COUNT, _points(0), *[exact] * most))


def test_differences_far_from_the_number(tmp_path: Path) -> None:
    assert not _told(*_scan(tmp_path, COUNT, _points(0, spread=1e-4)))


def test_no_element_and_no_numbers(tmp_path: Path) -> None:
    empty = {"x": np.zeros(0, np.float32), "z": np.zeros(0, np.float32)}
    odd = {"x": np.array([np.nan, 1], np.float32), "z": np.array([1, np.inf], np.float32)}
    assert not _told(*_scan(tmp_path, COUNT, empty))
    assert not _told(*_scan(tmp_path, COUNT, odd))


def test_of_a_long_chain_each_part_is_walked_once(tmp_path: Path) -> None:
    nodes = [node("Mul", "x slope", "h0")]
    for step in range(60):
        nodes += [
            node("Add", f"h{step} tiny", f"h{step + 1}"),
            node("Sub", f"h{step + 1} z", f"d{step}"),
            node("Abs", f"d{step}", f"a{step}"),
            node("Less", f"a{step} near", f"c{step}"),
            node("Cast", f"c{step}", f"y{step}", to=1),
        ]
    constants = {"slope": scalar(1.7), "tiny": scalar(0.001), "near": scalar(0.05)}
    outputs = " ".join(f"y{step}" for step in range(60))
    model = make_model(nodes, {"x": [None], "z": [None]}, outputs, constants, 13)
    points = _points(0)
    graph, ranges = scan(model, tmp_path, {"x": points["x"], "z": points["z"] - np.float32(12)})
    found = list(find_compared_differences(graph, ranges))
    assert len(found) == 60
    assert sum(len(set(one.nodes)) for one in found) < 15 * 60  # of 1830 and more
