"""Parts of an output that its SNR does not show, against sums of squares by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_fixer.metrics.slices import SliceMeter
from overflow_fixer.records import Array, HiddenSlice

RNG = np.random.default_rng(4)


def _meter(*batches: tuple[Array, Array]) -> SliceMeter:
    meter = SliceMeter("y")
    for reference, candidate in batches:
        meter.add(reference, candidate)
    return meter


def _channels(*scales: float, axis: int = 1, count: int = 20) -> Array:
    """float32 [4, ...]: of each scale a channel, along this axis of three."""
    shape = [4, count, count]
    shape[axis] = len(scales)
    by_channel = np.reshape(scales, [-1 if one == axis else 1 for one in range(3)])
    return (RNG.normal(size=shape) * by_channel).astype(np.float32)


@pytest.mark.parametrize("axis", [1, 2])
def test_a_channel_that_is_lost_beside_larger_ones_is_found(axis: int) -> None:
    right = _channels(1000, 1e-9, 500, axis=axis)
    wrong = np.where(np.abs(right) < 1e-7, 0, right * 1.0001).astype(np.float32)
    found = _meter((right, wrong)).find_hidden(30.0)
    assert found is not None
    assert (found.tensor, found.axis, found.index, found.count) == ("y", axis, 1, 1)
    assert found.snr_db == 0.0
    lost = np.take(right, 1, axis).astype(np.float64)
    assert found.rms == pytest.approx(math.sqrt((lost**2).mean()))
    assert found.output_rms == pytest.approx(math.sqrt((right.astype(np.float64) ** 2).mean()))


def test_the_worst_of_several_is_told_over_all_batches() -> None:
    batches = [_channels(1000, 0.01, 0.01, 0.01) for _ in range(3)]
    noise = np.reshape([1e-3, 1e-3, 5e-3, 1e-6], (1, 4, 1)).astype(np.float32)
    pairs = [(right, (right + noise * RNG.normal(size=right.shape)).astype(np.float32)) for right in batches]
    found = _meter(*pairs).find_hidden(30.0)
    assert found is not None
    assert (found.axis, found.index, found.count) == (1, 2, 2)
    right, wrong = (
        np.concatenate([pair[side] for pair in pairs])[:, 2].astype(np.float64) for side in (0, 1)
    )
    snr_db = 10 * math.log10((right**2).sum() / ((right - wrong) ** 2).sum())
    assert found.snr_db == pytest.approx(snr_db, rel=1e-5)


def _joints(count: int) -> tuple[Array, Array]:
    """[sample, time, joint, coordinate], all joints but the first four small and lost."""
    right = RNG.normal(size=(2, 3, count, 3)).astype(np.float32)
    right[:, :, 4:] *= np.float32(1e-4)
    wrong = right.copy()
    wrong[:, :, 4:] = 0
    return right, wrong


def test_what_is_lost_along_an_axis_between_is_found() -> None:
    found = _meter(_joints(10)).find_hidden(30.0)
    assert found is not None
    assert (found.axis, found.count, found.snr_db, found.is_small) == (2, 6, 0.0, True)
    assert found.part == f"[:, :, {found.index}]"


@pytest.mark.parametrize(("count", "is_found"), [(128, True), (129, False)])
def test_what_is_long_between_is_time_or_space(count: int, is_found: bool) -> None:
    assert (_meter(_joints(count)).find_hidden(30.0) is not None) == is_found


LOGITS = _channels(*[1] * 9, 1e-3)
SCORES = _channels(1000, 1000, 0.5, 0.5)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (_channels(1, 1, 1), np.zeros((4, 3, 20), np.float32)),
        (np.full((4, 3, 20), [[1000], [0], [1000]], np.float32), np.full((4, 3, 20), 1e-3, np.float32)),
        (LOGITS, LOGITS + np.float32(1e-3) * RNG.normal(size=LOGITS.shape).astype(np.float32)),
        (_channels(1000, 1e-9, 1, count=1), np.zeros((4, 3, 1), np.float32)),
        (np.float32([[1000] * 50 + [1e-9] * 50]).reshape(-1), np.zeros(100, np.float32)),
        (_channels(1, 1e-40), np.zeros((4, 2, 20), np.float32)),
        (np.zeros((4, 0, 3), np.float32), np.zeros((4, 0, 3), np.float32)),
        (np.zeros((4, 2, 9), np.float32), np.ones((4, 2, 9), np.float32)),
        (np.array([[[1000] * 9, [1] * 9]]), np.array([[[1000] * 9, [0] * 9]])),
        (_channels(1000, 1e-9), np.zeros((4, 20, 2), np.float32)),
        ([_channels(1000, 1e-9)], [np.zeros((4, 2, 20), np.float32)]),
        (np.float64([[[1e200] * 9, [1e180] * 9]]), np.float64([[[1e200] * 9, [0] * 9]])),
    ],
    ids=[
        "alike",
        "zero in FP32",
        "no better elsewhere",
        "of few elements",
        "of one axis",
        "as good as zero",
        "empty",
        "all zero",
        "integers",
        "another shape",
        "sequences",
        "over the range of squares",
    ],
)  # fmt: skip
def test_nothing_is_hidden(right: Array, wrong: Array) -> None:
    assert _meter((right, wrong)).find_hidden(30.0) is None


def test_what_is_right_is_not_hidden_and_limits_are_exact() -> None:
    """Channel 1 has an SNR of 40 dB."""
    right = _channels(1000, 0.01)
    wrong = right.copy()
    wrong[:, 1] *= np.float32(1.01)
    found = _meter((right, wrong)).find_hidden(40.1)
    assert found is not None
    assert found.snr_db == pytest.approx(40, abs=0.01)
    assert _meter((right, wrong)).find_hidden(39.9) is None


@pytest.mark.parametrize(("right", "noise", "is_hidden"), [(LOGITS, 5e-4, False), (SCORES, 0.02, True)])
def test_many_small_ones_are_no_chance(right: Array, noise: float, is_hidden: bool) -> None:
    """All err alike: one small one of ten is a logit near zero, two of four are scores beside boxes."""
    wrong = (right + noise * np.sign(RNG.normal(size=right.shape))).astype(np.float32)
    found = _meter((right, wrong)).find_hidden(30.0)
    assert (found is not None) == is_hidden
    if found is not None:
        assert (found.count, found.index > 1) == (2, True)


def test_nan_and_infinities_count_for_nothing() -> None:
    right = _channels(1000, 1e-9)
    wrong = np.zeros_like(right)
    right[0, 0, 0], wrong[1, 0, 1], wrong[2, 1, 2] = np.nan, np.inf, np.nan
    found = _meter((right, wrong)).find_hidden(30.0)
    assert found is not None
    assert (found.index, found.snr_db) == (1, 0.0)


def test_batches_of_other_sizes_are_kept_apart() -> None:
    first, second = _channels(1000, 1e-9, 500, axis=2), _channels(1e-9, 1000, axis=2)
    found = _meter((first, first), (second, np.zeros_like(second))).find_hidden(30.0)
    assert found is not None
    assert (found.axis, found.index, found.count, found.snr_db) == (2, 0, 1, 0.0)


def test_memory_does_not_grow_with_sizes_that_differ() -> None:
    meter = SliceMeter("y")
    for size in range(2, 100):
        values = np.ones((1, 3, size), np.float32)
        meter.add(values, values)
    long = np.ones((1, 3, 100_000), np.float32)
    meter.add(long, long)
    assert len(meter.sums) == 16
    assert max(size for _, size in meter.sums) == 16
    assert meter.sums[1, 3].elements == sum(range(2, 100)) + 100_000


@given(st.integers(1, 5), st.integers(0, 4), st.sampled_from([np.float16, np.float32, np.float64]))
def test_the_index_is_that_of_the_channel(count: int, lost: int, dtype: type) -> None:
    scales = [100.0] * (count + lost + 1)
    scales[lost] = 1e-4
    right = _channels(*scales).astype(dtype)
    wrong = right.copy()
    wrong[:, lost] = 0
    found = _meter((right, wrong)).find_hidden(30.0)
    assert isinstance(found, HiddenSlice)
    assert (found.axis, found.index) == (1, lost)


def _cache(error: float, axis: int = 2, size: int = 1501, count: int = 1) -> tuple[Array, Array]:
    """[1, 4, ...], copied but for the last `count` along the axis, of which this share is lost."""
    shape = [1, 4, 6, 6]
    shape[axis] = size
    right = np.random.default_rng(3).normal(size=shape).astype(np.float32)
    wrong = right.copy()
    last = tuple(slice(None) if one != axis else slice(-count, None) for one in range(4))
    wrong[last] *= np.float32(1 - error)
    return right, wrong


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_the_one_that_is_computed_beside_copies_is_found_along_any_axis(axis: int) -> None:
    found = _meter(_cache(1.0, axis)).find_hidden(30.0)
    assert found is not None
    assert (found.axis, found.index, found.count) == (axis, 1500, 1)
    assert found.snr_db == pytest.approx(0, abs=1e-5)
    assert not found.is_small
    assert found.part == ("[..., 1500]" if axis == 3 else f"[{':, ' * axis}1500]")


def test_a_score_that_is_lost_beside_boxes_and_right_scores_is_found() -> None:
    """One of 85 has less than 1 % of the energy, and errs far more than the others, which are rounded at most."""
    random = np.random.default_rng(2)
    right = np.concatenate([random.uniform(0, 1280, (100, 4)), random.uniform(0, 1, (100, 81))], axis=1)
    wrong = right.copy()
    wrong[:, 5] = 0.5
    meter = SliceMeter("y")
    meter.add(right.astype(np.float32), wrong.astype(np.float32))
    found = meter.find_hidden(30.0)
    assert found is not None
    assert (found.axis, found.index, found.count, found.is_small) == (1, 5, 1, True)


@pytest.mark.parametrize(("error", "is_found"), [(0.11, True), (0.09, False)])
def test_what_errs_alone_must_err_ten_times_what_is_allowed(error: float, is_found: bool) -> None:
    """10 % is 20 dB."""
    assert (_meter(_cache(error)).find_hidden(30.0) is not None) == is_found


@pytest.mark.parametrize(("count", "is_found"), [(150, True), (151, False)])
def test_what_errs_alone_must_err_ten_times_as_much_as_the_mean(count: int, is_found: bool) -> None:
    right, wrong = _cache(0.0)
    right[:] = 1
    wrong[:] = 1
    wrong[:, :, :count] = 0
    assert (_meter((right, wrong)).find_hidden(30.0) is not None) == is_found


@pytest.mark.parametrize(("flips", "is_found"), [(2, False), (3, True)])
def test_a_few_elements_that_are_others_are_flips(flips: int, is_found: bool) -> None:
    right = np.ones((1, 4, 500, 6), np.float32)
    wrong = right.copy()
    wrong.reshape(1, 4, 500, 6)[0, :flips, 7, 0] = 3
    assert (_meter((right, wrong)).find_hidden(30.0) is not None) == is_found


def _flip(right: Array, *places: int, value: float, index: int) -> Array:
    """The same with these of the four elements [0, :, index, 0] changed."""
    wrong = right.copy()
    wrong[0, list(places), index, 0] = value
    return wrong


def test_flips_elsewhere_hide_nothing_that_errs_alone() -> None:
    right = np.ones((1, 4, 500, 6), np.float32)
    wrong = _flip(right, 0, value=5, index=8)
    wrong[:, :, 7] = 2
    found = _meter((right, wrong)).find_hidden(30.0)
    assert found is not None
    assert (found.axis, found.index, found.count) == (2, 7, 1)


@pytest.mark.parametrize("place", [0, 1])
def test_a_flip_is_one_whatever_its_batch(place: int) -> None:
    right = np.ones((1, 4, 500, 6), np.float32)
    batches = [(right, right), (right, right)]
    batches[place] = (right, _flip(right, 0, 1, value=3, index=7))
    assert _meter(*batches).find_hidden(30.0) is None


@pytest.mark.parametrize(("size", "is_kept"), [(1 << 16, True), ((1 << 16) + 1, False)])
def test_what_is_very_long_is_no_list_of_channels(size: int, is_kept: bool) -> None:
    values = np.ones((1, size), np.float32)
    assert ((1, size) in _meter((values, values)).sums) == is_kept
