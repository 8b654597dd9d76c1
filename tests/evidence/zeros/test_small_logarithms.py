"""Logarithms of rows that FP16 has few steps for, which are scaled up by how little they vary."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import onnx
import pytest
from fp16_emulation import measure_snr_db
from in_memory_calibration import ask, floats, ints, make_model, node, pinned_by, scalar, scan

from overflow_fixer.evidence.zeros.small_logarithms import find_small_logarithms
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.small_value import find_small_values

LENGTH, FRAMES, BANDS = 32, 40, 8
_ANGLES = 2 * np.pi * np.outer(np.arange(LENGTH), np.arange(1, BANDS + 1)) / LENGTH
CONSTANTS = {
    "gain": scalar(0.5),
    "cosines": np.cos(_ANGLES).astype(np.float32),
    "bank": (np.eye(BANDS) / 16).astype(np.float32),
    "guard": scalar(2.0**-24),
    "epsilon": scalar(1e-5),
    "scale": scalar(10 / math.log(10)),
    "time": ints(1),
}
SPECTRUM = [
    node("Mul", "x gain", "signal"),
    node("MatMul", "signal cosines", "spectrum"),
    node("Mul", "spectrum spectrum", "energy"),
    node("MatMul", "energy bank", "mel"),
    node("Add", "mel guard", "guarded"),
    node("Log", "guarded", "logs"),
]
STANDARDISED = [
    node("ReduceMean", "logs", "mean", axes=[1]),
    node("Sub", "logs mean", "left"),
    node("Mul", "left left", "squares"),
    node("ReduceMean", "squares", "variance", axes=[1]),
    node("Sqrt", "variance", "deviation"),
    node("Add", "deviation epsilon", "divisor"),
    node("Div", "left divisor", "y"),
]
OF_THE_ROW = {"Mul_energy", "MatMul_mel", "Add_guarded", "Log_logs"}
OF_THE_SIGNAL = {"Mul_signal", "MatMul_spectrum"}


def _frames(quiet: float, seed: int = 0) -> np.ndarray:
    """Frames [1, time, sample] of a loud low tone, and of noise in the highest band."""
    rng = np.random.default_rng(seed)
    loud = rng.uniform(0.2, 1, (1, FRAMES, BANDS - 1))
    faint = quiet * rng.normal(size=(1, FRAMES, 1))
    tones = np.concatenate([loud, faint], axis=-1) @ np.cos(_ANGLES).T / 4
    return tones.astype(np.float32)


def _scan(
    folder: Path, nodes: list[onnx.NodeProto], *batches: np.ndarray, guard: float = 2.0**-24
) -> tuple[Graph, RangeTable]:
    constants = CONSTANTS | {"guard": scalar(guard)}
    model = make_model(nodes, {"x": [None, FRAMES, LENGTH]}, "y", constants)
    return scan(model, folder, *({"x": x} for x in batches))


def test_the_row_and_the_signal_are_pinned_and_right_with_both(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, SPECTRUM + STANDARDISED, _frames(3e-4))
    (found,) = find_small_logarithms(graph, ranges)
    assert {one.label for one in found.small} == OF_THE_ROW
    assert {one.label for one in found.rounded} == OF_THE_SIGNAL
    assert set(pinned_by(find_small_values, graph, ranges)) >= OF_THE_ROW | OF_THE_SIGNAL
    row, signal = {"energy", "mel", "guarded", "logs"}, {"signal", "spectrum"}
    assert _snr_db(tmp_path, set()) < 20
    assert _snr_db(tmp_path, row) < 25
    assert _snr_db(tmp_path, row | signal) > 45


def _snr_db(folder: Path, fp32: set[str]) -> float:
    return measure_snr_db(folder / "model.onnx", {"x": _frames(3e-4)}, fp32)


def test_the_numbers_are_those_of_the_row(tmp_path: Path) -> None:
    x = _frames(3e-4)
    graph, ranges = _scan(tmp_path, SPECTRUM + STANDARDISED, x)
    found = next(one for one in ask(find_small_values, graph, ranges) if one.node == "Log_logs")
    spectrum = (x.astype(np.float64) / 2) @ CONSTANTS["cosines"].astype(np.float64)
    logs = np.log(spectrum**2 / 16 + 2.0**-24)
    assert (found.rule, found.tensor) == ("small_value", "guarded")
    assert found.value == pytest.approx(np.exp(logs.mean(1).min()), rel=1e-4)
    spread = logs.std(1).min() + 1e-5
    assert found.limit == pytest.approx(16 * 2.0**-24 / spread, rel=1e-4)
    steps, least = found.value / 2.0**-24, f"{spread:.3g}"
    assert f"on average, of which FP16 holds {steps:.2g} steps of 2^-24; Log Log_logs takes" in found.reason
    assert found.reason.endswith(
        f"and Div Div_y divides what is left of that less its mean by as little as {least}"
    )
    of_signal = next(one for one in ask(find_small_values, graph, ranges) if one.node == "Mul_signal")
    assert "beside which FP16 rounds what Mul_signal writes or reads by too much" in of_signal.reason


@pytest.mark.parametrize(
    ("quiet", "guard", "is_found"),
    [(3e-4, 1e-6, True), (3e-4, 1e-3, False), (0.5, 2.0**-24, False), (0.5, 0.0, False)],
)
def test_a_larger_guard_and_no_quiet_band_are_left(
    quiet: float, guard: float, is_found: bool, tmp_path: Path
) -> None:
    """Of 1e-3 FP16 has all its digits; a loud band is under 2^-14 in single frames alone."""
    graph, ranges = _scan(tmp_path, SPECTRUM + STANDARDISED, _frames(quiet), guard=guard)
    assert bool(list(find_small_logarithms(graph, ranges))) == is_found


_DECIBELS = [
    node("Mul", "logs scale", "decibels"),
    node("Transpose", "decibels", "turned", perm=[0, 2, 1]),
    node("ReduceMean", "turned", "mean", axes=[2]),
    node("Sub", "turned mean", "left"),
    node("Abs", "left", "sizes"),
    node("ReduceMean", "sizes", "divisor", axes=[2]),
    node("Div", "left divisor", "y"),
]
_SUMMED = [
    node("ReduceSum", "logs time", "total"),
    node("Div", "total count", "mean"),
    *STANDARDISED[1:],
]


@pytest.mark.parametrize(
    ("nodes", "is_found"),
    [
        (_DECIBELS, True),
        ([node("Constant", "", "count", value_float=float(FRAMES)), *_SUMMED], True),
        ([STANDARDISED[0], node("Sub", "logs mean", "y")], False),  # not scaled up
        ([node("ReduceMax", "logs", "mean", axes=[1]), *STANDARDISED[1:]], False),  # no mean
        (
            [
                node("Exp", "logs", "raised"),
                node("ReduceMean", "raised", "mean", axes=[1]),
                *STANDARDISED[1:],
            ],
            False,
        ),
        ([node("Identity", "logs", "y")], False),
    ],
)
def test_what_is_made_of_the_logarithms(nodes: list[onnx.NodeProto], is_found: bool, tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, SPECTRUM + nodes, _frames(3e-4))
    assert bool(list(find_small_logarithms(graph, ranges))) == is_found


@pytest.mark.parametrize("scale", [1.0, 2.0, -1.0])
def test_a_constant_factor_changes_neither_the_row_nor_its_limit(scale: float, tmp_path: Path) -> None:
    scaled = [node("Mul", "logs factor", "turned"), *_DECIBELS[2:]]
    scaled[1:] = [
        node("ReduceMean", "turned", "mean", axes=[1]),
        node("Sub", "turned mean", "left"),
        node("Abs", "left", "sizes"),
        node("ReduceMean", "sizes", "divisor", axes=[1]),
        node("Div", "left divisor", "y"),
    ]
    constants = CONSTANTS | {"factor": floats(scale)}
    model = make_model(SPECTRUM + scaled, {"x": [None, FRAMES, LENGTH]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": _frames(3e-4)})
    (found,) = find_small_logarithms(graph, ranges)
    least = ranges.by_tensor["guarded"].min
    assert least < found.row.value < 2 * least
    assert found.row.limit * found.row.spread == pytest.approx(16 * 2.0**-24 * abs(scale), rel=1e-5)


def test_silence_alone_is_a_row_too_of_which_no_transform_loses_anything(tmp_path: Path) -> None:
    graph, ranges = _scan(tmp_path, SPECTRUM + STANDARDISED, np.zeros((1, FRAMES, LENGTH), np.float32))
    (found,) = find_small_logarithms(graph, ranges)
    assert found.row.value == pytest.approx(2.0**-24, rel=1e-5)
    assert found.rounded == ()


def test_a_mean_of_what_a_mask_fills_in_tells_of_no_row(tmp_path: Path) -> None:
    nodes = [
        node("Greater", "logs fill", "loud"),
        node("Where", "loud logs huge", "filled"),
        node("ReduceMean", "filled", "mean", axes=[1]),
        *STANDARDISED[1:],
    ]
    constants = CONSTANTS | {"fill": scalar(5), "huge": scalar(1e5)}
    model = make_model(SPECTRUM + nodes, {"x": [None, FRAMES, LENGTH]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": _frames(3e-4)})
    assert ranges.by_tensor["mean"].min > 1000
    assert list(find_small_logarithms(graph, ranges)) == []


@pytest.mark.parametrize("number", [1e-30, 1e30])
def test_what_is_scaled_until_nothing_is_left_of_it_is_no_row(number: float, tmp_path: Path) -> None:
    names = ["logs", *(f"s{index}" for index in range(12)), "scaled"]
    scaled = [node("Mul", f"{one} number", other) for one, other in itertools.pairwise(names)]
    nodes = [*scaled, node("ReduceMean", "scaled", "mean", axes=[1]), node("Sub", "scaled mean", "left")]
    nodes += [
        node("Abs", "left", "sizes"),
        node("Add", "sizes epsilon", "divisor"),
        node("Div", "left divisor", "y"),
    ]
    constants = CONSTANTS | {"number": scalar(number)}
    model = make_model(SPECTRUM + nodes, {"x": [None, FRAMES, LENGTH]}, "y", constants)
    graph, ranges = scan(model, tmp_path, {"x": _frames(3e-4)})
    assert list(find_small_logarithms(graph, ranges)) == []


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_none_of_what_is_not_finite_empty_or_fed(broken: float, tmp_path: Path) -> None:
    x = _frames(3e-4)
    x[0, 0, 0] = broken
    for batch in (x, x[:0]):
        graph, ranges = _scan(tmp_path, SPECTRUM + STANDARDISED, batch)
        assert list(find_small_logarithms(graph, ranges)) == []
    fed = [node("Log", "x", "logs"), *STANDARDISED]
    graph, ranges = _scan(tmp_path, fed, np.abs(_frames(3e-4)) + np.float32(1e-7))
    assert list(find_small_logarithms(graph, ranges)) == []
