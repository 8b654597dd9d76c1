"""Angles so small throughout a batch that FP16 rounds them away in their cosine."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.zeros.small_angles import SMALLEST_ANGLE, find_small_angles
from overflow_fixer.rules.lost_phase import find_lost_phases

CONSTANTS = {
    "one": scalar(1),
    "two": scalar(2),
    "axes": ints(-1),
    "zero": scalar(0),
    "mask": np.array([True]),
}
ANGLE = [node("Mul", "x one", "c"), node("Acos", "c", "a")]


def test_what_rounding_a_cosine_leaves_of_an_angle() -> None:
    """31 dB of angles up to 1/4, and less of smaller ones."""
    for largest, snr_db in ((SMALLEST_ANGLE, 31), (SMALLEST_ANGLE / 2, 22), (SMALLEST_ANGLE / 4, 13)):
        angles = np.linspace(0, largest, 200001)
        found = np.arccos(np.cos(angles).astype(np.float16).astype(np.float64))
        assert 10 * np.log10(np.square(angles).sum() / np.square(angles - found).sum()) == pytest.approx(
            snr_db, abs=1.5
        )


def _pins(folder: Path, nodes: list[onnx.NodeProto], *batches: Any, op: str = "Acos") -> list[str]:
    make = {"Acos": np.cos, "Acosh": np.cosh}[op]
    model = make_model(nodes, {"x": None}, "y", CONSTANTS, 18)
    feeds = [{"x": make(np.asarray(angles, np.float64)).astype(np.float32)} for angles in batches]
    graph, ranges = scan(model, folder, *feeds)
    return pinned_by(find_lost_phases, graph, ranges)


@pytest.mark.parametrize("op", ["Acos", "Acosh"])
@pytest.mark.parametrize(
    ("batches", "is_found"),
    [
        ([[0.249, 0.01]], True),
        ([[0.251, 0.01]], False),
        ([[0.251], [0.249]], True),
        ([[1], [0, 0]], False),
        ([[1], [0.0012]], False),
        ([[0.0017]], True),
        ([[1], []], False),
        ([0.05], True),
        ([[math.nan, 0.05]], False),
    ],
)
def test_boundary(op: str, batches: Any, is_found: bool, tmp_path: Path) -> None:
    nodes = [node("Mul", "x one", "c"), node(op, "c", "y")]
    assert _pins(tmp_path, nodes, *batches, op=op) == (["Mul_c", f"{op}_y"] if is_found else [])


SHOWN = {
    "as it is": [node("Acos", "c", "y")],
    "multiplied and moved": [
        node("Acos", "c", "a"),
        node("Mul", "a two", "b"),
        node("Unsqueeze", "b axes", "y"),
    ],
    "its sine": [node("Acos", "c", "a"), node("Sin", "a", "y")],
    "on average": [node("Acos", "c", "a"), node("ReduceMean", "a axes", "y")],
    "masked": [node("Acos", "c", "a"), node("Where", "mask a zero", "y")],
    "scaled down": [node("Acos", "c", "a"), node("Div", "a two", "y")],
}
HIDDEN = {
    "its cosine": [node("Acos", "c", "a"), node("Cos", "a", "y")],
    "added to": [node("Acos", "c", "a"), node("Add", "a one", "y")],
    "divided by": [node("Acos", "c", "a"), node("Div", "one a", "y")],
    "a quotient of two": [
        node("Acos", "c", "a"),
        node("Mul", "a two", "b"),
        node("Sin", "b", "s"),
        node("Div", "s a", "y"),
    ],
}


@pytest.mark.parametrize("name", SHOWN | HIDDEN)
def test_where_it_shows(name: str, tmp_path: Path) -> None:
    nodes = [ANGLE[0], *(SHOWN | HIDDEN)[name]]
    assert _pins(tmp_path, nodes, [0.05, 0.1]) == (["Mul_c", nodes[1].name] if name in SHOWN else [])


def test_the_evidence(tmp_path: Path) -> None:
    model = make_model([ANGLE[0], node("Acos", "c", "y")], {"x": None}, "y", CONSTANTS)
    cosines = [np.cos(floats(angle, 0)).astype(np.float32) for angle in (1, 0.1, 0.05, 0.08)]
    graph, ranges = scan(model, tmp_path, *({"x": values} for values in cosines))
    (small,) = find_small_angles(graph, ranges)
    assert (small.tensor, small.batch) == ("y", 2)
    assert small.value == pytest.approx(0.05, rel=1e-4)
    found = ask(find_lost_phases, graph, ranges)
    assert {(one.node, one.tensor, one.batch, one.limit) for one in found} == {
        (label, "y", "batch_2", SMALLEST_ANGLE) for label in ("Mul_c", "Acos_y")
    }
    assert "y is 0.05 at most in that batch, and Acos makes it of c" in found[0].reason


def test_an_angle_of_a_constant_is_none(tmp_path: Path) -> None:
    nodes = [node("Acos", "near", "a"), node("Mul", "a x", "y")]
    graph, ranges = scan(
        make_model(nodes, {"x": None}, "y", {"near": scalar(0.999)}), tmp_path, {"x": floats(1)}
    )
    assert list(find_small_angles(graph, ranges)) == []
