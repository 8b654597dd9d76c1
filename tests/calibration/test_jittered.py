"""Changed copies of batches: what changes, by how much, and what stays."""

from __future__ import annotations

import warnings

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_memory_calibration import InMemoryCalibration

from overflow_fixer.calibration import jitter
from overflow_fixer.calibration.jittered import CHANGE
from overflow_fixer.records import Array, Batch


def _batches(*arrays: Array) -> InMemoryCalibration:
    return InMemoryCalibration(tuple({"x": array} for array in arrays))


def _bear(batch: Batch, copy: Batch) -> bool:
    return True


def _copy(array: Array) -> Array:
    (_, changed) = jitter(_batches(array), 1, _bear)
    return changed.feeds["x"]


TENTHS = np.linspace(0.1, 0.9, 9, dtype=np.float32)
_FRACTIONS = st.lists(st.floats(2.0**-10, 1e3, width=32, exclude_min=True), min_size=1, max_size=20)


@given(_FRACTIONS, st.sampled_from([np.float16, np.float32, np.float64]))
def test_a_value_moves_by_no_more_than_said_and_keeps_its_type(values: list[float], dtype: type) -> None:
    array = np.array([*values, *np.linspace(0.1, 900.5, 50)], dtype)
    changed = _copy(array)
    assert changed.dtype == dtype
    assert array.min() <= changed.min() <= changed.max() <= array.max()
    moved = np.abs(changed.astype(float) - array.astype(float))
    rounding = np.spacing(array).astype(float)
    assert (moved <= CHANGE * np.abs(array.astype(float)) + rounding).all()


def test_values_do_move() -> None:
    array = np.linspace(0.1, 0.9, 1000, dtype=np.float32)
    assert np.mean(_copy(array) != array) > 0.99


def test_whole_numbers_nan_and_infinities_stay() -> None:
    stay = np.array([3.0, -1e9, 0.0, np.nan, np.inf, -np.inf, 65504.0, 0.3], np.float32)
    changed = _copy(stay)
    np.testing.assert_array_equal(changed[:-1], stay[:-1])
    assert changed[-1] != stay[-1]


def test_a_value_that_cannot_be_doubled_is_no_overflow() -> None:
    mask = np.array([np.finfo(np.float64).min, 0.3, 0.5])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        changed = _copy(mask)
    assert changed[0] == mask[0]
    assert changed[1] != mask[1]


@pytest.mark.parametrize("array", [
    np.array([1, 2], np.int64),
    np.array([True, False]),
    np.array(["a", "b"], object),
    np.array([1.0, np.nan, np.inf], np.float32),
    np.array([0.3], ml_dtypes.bfloat16),
    np.zeros((0,), np.float32),
    np.array(0.3, np.float32),
    np.array([0.3, 0.3], np.float32),
    np.array([1e-5, 2e-5], np.float16),
    np.array([1e-45, 3e-45], np.float32),
])  # fmt: skip
def test_a_batch_in_which_nothing_changes_has_no_copies(array: Array) -> None:
    assert [batch.name for batch in jitter(_batches(array), 5, _bear)] == ["batch_0"]


def test_each_walk_gives_the_same_and_each_copy_is_another() -> None:
    calibration = jitter(_batches(TENTHS, TENTHS), 2, _bear)
    first, second = list(calibration), list(calibration)
    assert [(b.name, b.is_changed) for b in first] == [
        ("batch_0", False), ("batch_0 (changed 1)", True), ("batch_0 (changed 2)", True),
        ("batch_1", False), ("batch_1 (changed 1)", True), ("batch_1 (changed 2)", True),
    ]  # fmt: skip
    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one.feeds["x"], other.feeds["x"])
    changed = [b.feeds["x"].tobytes() for b in first if b.is_changed]
    assert len(set(changed)) == 4


def test_no_copies_leave_the_calibration_itself() -> None:
    calibration = _batches(TENTHS)
    assert jitter(calibration, 0, _bear) is calibration


def test_its_fingerprint_tells_how_many_copies() -> None:
    original = _batches(TENTHS)
    assert len({jitter(original, copies, _bear).fingerprint for copies in range(3)}) == 3


def test_a_copy_that_is_not_borne_is_left_out_and_others_are_not() -> None:
    asked = []

    def bear(batch: Batch, copy: Batch) -> bool:
        asked.append((batch.name, copy.name))
        return "(changed 2)" not in copy.name

    found = [batch.name for batch in jitter(_batches(TENTHS), 3, bear)]
    assert found == ["batch_0", "batch_0 (changed 1)", "batch_0 (changed 3)"]
    assert asked == [("batch_0", f"batch_0 (changed {number})") for number in (1, 2, 3)]


def test_its_length_is_that_of_the_batches() -> None:
    assert len(jitter(_batches(TENTHS, TENTHS), 3, _bear)) == 2
