"""Outputs that FP32 does not settle, against how far a last digit takes them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, ints, make_model, node, save, scalar
from onnx import TensorProto

from overflow_fixer.calibration import make_copy
from overflow_fixer.config import BuildOptions, FixConfig
from overflow_fixer.pipeline import fix
from overflow_fixer.records import Array, Batch, TensorError, Tolerance
from overflow_fixer.verification.comparison import open_reference
from overflow_fixer.verification.conditioning import LAST_DIGIT, find_unsettled

CONSTANTS = {"one": scalar(1), "large": scalar(1e6), "zero": ints(0), "axis": ints(1)}
TOLERANCE = Tolerance()
DIFFERENCE = [node("Sub", "x one", "d"), node("Mul", "d large", "y")]


def _near_one(distance: float, count: int = 64) -> Array:
    """float32 [count]: 1 + distance * n, n drawn normally."""
    return (1 + distance * np.random.default_rng(3).normal(size=count)).astype(np.float32)


def _unsettled(folder: Path, *batches: Array, tolerance: Tolerance = TOLERANCE) -> tuple[TensorError, ...]:
    graph = save(make_model(DIFFERENCE, {"x": [None]}, "y", CONSTANTS), folder)
    return find_unsettled(
        open_reference(graph), InMemoryCalibration(tuple({"x": x} for x in batches)), tolerance
    )


@pytest.mark.parametrize("distance", [1e-6, 1e-5, 1e-3])
def test_a_difference_is_settled_as_far_as_its_terms_last_digit_leaves_it(
    distance: float, tmp_path: Path
) -> None:
    """u is uniform up to 2^-23, so its root mean square is that over the root of 3; rounding to 2^-24 comes on top."""
    found = _unsettled(tmp_path, _near_one(distance))
    expected = 20 * math.log10(distance / (LAST_DIGIT / math.sqrt(3)))
    assert bool(found) == (expected < 40)
    for error in found:
        assert error.tensor == "y"
        assert error.worst_batch_snr_db == pytest.approx(expected, abs=3)


def test_the_limit_is_that_of_the_output_with_ten_decibels_in_hand(tmp_path: Path) -> None:
    x = _near_one(1e-6)
    (error,) = _unsettled(tmp_path, x)
    least = error.worst_batch_snr_db - 10
    assert _unsettled(tmp_path, x, tolerance=Tolerance(min_snr_db=least - 0.01)) == ()
    assert _unsettled(tmp_path, x, tolerance=Tolerance(per_output={"y": least + 0.01}, min_snr_db=0)) != ()
    assert _unsettled(tmp_path, x, tolerance=Tolerance(max_abs_error=error.max_abs_error)) == ()
    parts = _unsettled(tmp_path, x, tolerance=Tolerance(min_snr_db=-99, per_output={"y[:8]": 60}))
    assert [part.name for part in parts] == ["y[:8]"]


@pytest.mark.parametrize(
    "x",
    [
        np.arange(9, dtype=np.float32),
        np.full(4, np.nan, np.float32),
        np.full(4, np.inf, np.float32),
        np.zeros(0, np.float32),
    ],
    ids=["whole numbers", "NaN", "infinities", "empty"],
)
def test_where_nothing_changes_nothing_is_told(x: Array, tmp_path: Path) -> None:
    assert make_copy(Batch("b", {"x": x}), "c", np.random.default_rng(0), LAST_DIGIT) is None
    assert _unsettled(tmp_path, x) == ()


def test_an_output_whose_shape_changes_is_not_settled(tmp_path: Path) -> None:
    nodes = [
        DIFFERENCE[0],
        node("NonZero", "d", "at"),
        node("Transpose", "at", "where"),
        node("GatherND", "x where", "y"),
    ]
    graph = save(make_model(nodes, {"x": [None]}, "y", CONSTANTS), tmp_path)
    batches = InMemoryCalibration(({"x": _near_one(1e-7, 4096)},))
    (error,) = find_unsettled(open_reference(graph), batches, Tolerance())
    assert error.other_shape is not None


def test_one_batch_among_others_is_enough_and_named(tmp_path: Path) -> None:
    (error,) = _unsettled(tmp_path, _near_one(2e-5), _near_one(2e-5), _near_one(3e-6))
    assert error.worst_batch == "batch_2"


def test_changed_copies_are_not_changed_again(tmp_path: Path) -> None:
    graph = save(make_model(DIFFERENCE, {"x": [None]}, "y", CONSTANTS), tmp_path)
    batches = [Batch("b (changed 1)", {"x": _near_one(1e-6)}, is_changed=True)]
    assert find_unsettled(open_reference(graph), batches, Tolerance()) == ()


def test_choices_are_settled_by_the_share_that_stays(tmp_path: Path) -> None:
    nodes = [*DIFFERENCE[:1], node("Mul", "d large", "m"), node("Cast", "m", "y", to=TensorProto.INT64)]
    model = make_model(nodes, {"x": [None]}, "y", CONSTANTS, output_types={"y": TensorProto.INT64})
    graph = save(model, tmp_path)
    for distance, is_settled in ((1e-5, False), (1e-9, True)):
        batches = InMemoryCalibration(({"x": _near_one(distance, 4096)},))
        found = find_unsettled(open_reference(graph), batches, Tolerance())
        assert (found == ()) == is_settled


@pytest.mark.parametrize(("distance", "is_told"), [(2e-6, True), (1e-3, False)])
def test_what_a_repair_pins_for_nothing_is_told(distance: float, is_told: bool, tmp_path: Path) -> None:
    """A difference that the plan does not find."""
    nodes = [
        node("Sqrt", "x", "r"),
        node("Sub", "x r", "d"),
        node("Unsqueeze", "d axis", "u"),
        node("ReduceLogSumExp", "u", "e", axes=[1], keepdims=0),  # of single elements, these
        node("Mul", "e large", "y"),
    ]
    save(make_model(nodes, {"x": [64]}, "y", CONSTANTS), tmp_path)
    np.savez(tmp_path / "b.npz", x=_near_one(distance))
    config = FixConfig(
        model=tmp_path / "model.onnx",
        calib=tmp_path / "b.npz",
        out=tmp_path / "out",
        build=BuildOptions(backend="onnx"),
    )
    report = fix(config)
    assert report.passed
    assert report.naive is not None
    assert not report.naive.passed
    told = [one for one in report.warnings if one.startswith("FP32 itself does not settle output y: ")]
    assert len(told) == is_told
