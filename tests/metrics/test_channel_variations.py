"""What of a channel varies around its own mean, against sums by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_fixer.metrics.channel_variations import ChannelVariationMeter
from overflow_fixer.metrics.slices import SliceMeter
from overflow_fixer.records import Array, HiddenVariation

RNG = np.random.default_rng(7)


def _find(*pairs: tuple[Any, Any], limit: float = 30.0) -> HiddenVariation | None:
    slices = SliceMeter("y")
    meter = ChannelVariationMeter(slices)
    for reference, candidate in pairs:
        slices.add(reference, candidate)
        meter.add(reference)
    return meter.find_hidden(limit)


def _weather(*shape: int, means: tuple[float, ...] = (288, 1013), rms: float = 0.1) -> Array:
    """float32 [*shape, channel], each around its mean."""
    return (means + rms * RNG.normal(size=(*shape, len(means)))).astype(np.float32)


def _half(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("axis", [1, 3])
def test_a_channel_whose_change_fp16_has_not_got_is_found(axis: int) -> None:
    batches = [np.moveaxis(_weather(3, 5, 6, means=(288, 0, 1013)), 3, axis) for _ in range(2)]
    found = _find(*((one, _half(one)) for one in batches))
    assert found is not None
    right, wrong = (
        np.moveaxis(np.concatenate(side), axis, 3).astype(np.float64)[..., 2].reshape(6, -1)
        for side in (batches, list(map(_half, batches)))
    )
    varying = right - right.mean(axis=1, keepdims=True)
    snr_db = 10 * math.log10(np.square(varying).sum() / np.square(right - wrong).sum())
    assert (found.axis, found.index, found.count, found.within_samples) == (axis, 2, 2, True)
    assert found.snr_db == pytest.approx(snr_db, abs=1e-3)
    assert found.rms == pytest.approx(math.sqrt(np.square(varying).mean()), rel=1e-4)
    assert found.output_rms == pytest.approx(math.sqrt(np.square(right).mean()))
    assert found.part == ("[:, 2]" if axis == 1 else "[..., 2]")


def test_samples_with_means_of_their_own_vary_by_what_each_does() -> None:
    right = _weather(4, 30) + np.float32([[[0]], [[5]], [[9]], [[20]]])
    found = _find((right, _half(right)))
    assert found is not None
    assert found.rms == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize(
    "right",
    [
        RNG.normal(size=(4, 8, 8, 8)).astype(np.float32),
        _weather(4, 30, rms=20),
        _weather(4, 30, means=(10, 20), rms=0.5),  # which FP16 holds to 30 dB
        _weather(4, 7),
        _weather(4, 30, means=(288,)),
        _weather(64),
        _weather(2, 130, means=(288,) * 129),
        np.tile(np.float32([288.1, 1013.1]), (4, 30, 1)),
        np.tile(np.float32([288.1, 1013.1]), (4, 30, 1)) + np.float32(3e-5) * (np.arange(60).reshape(30, 2) % 4),
        np.zeros((4, 30, 2), np.float32),
        np.zeros((0, 30, 2), np.float32),
        np.where(np.arange(30)[:, None] == 3, np.nan, _weather(1, 30)).astype(np.float32),
        np.where(np.arange(30)[:, None] == 3, -np.inf, _weather(1, 30)).astype(np.float32),
        np.full((2, 50, 2), 1e200) * (1 + 1e-4 * RNG.normal(size=(2, 50, 2))),
        _weather(4, 30).astype(np.int64),
        [_weather(4, 30)],
    ],
    ids=[
        "around zero",
        "varies much",
        "held by FP16",
        "of few elements",
        "one channel",
        "no samples of several",
        "too many channels",
        "constant",
        "FP32's own digits",
        "zero",
        "empty",
        "NaN",
        "infinity",
        "over the range of squares",
        "integers",
        "sequences",
    ],
)  # fmt: skip
def test_what_varies_much_or_not_at_all_is_not_told(right: Any) -> None:
    assert _find((right, _half(right) if isinstance(right, np.ndarray) else right)) is None


@pytest.mark.parametrize(("error", "is_found"), [(0.02, False), (0.06, True)])
def test_more_than_rounding_has_to_be_much_more(error: float, is_found: bool) -> None:
    """A logit of -12 +- 0.5 beside others: 28 dB and 18 dB of what varies."""
    right = _weather(4, 200, means=(-12, 3), rms=0.5)
    right[..., 1] += 5 * RNG.normal(size=(4, 200)).astype(np.float32)
    wrong = right + np.float32(error) * RNG.normal(size=right.shape).astype(np.float32)
    assert (_find((right, wrong)) is not None) == is_found


def test_batches_of_other_widths_count_together() -> None:
    batches = [_weather(1, width) for width in (3, 20, 30)]
    found = _find(*((one, _half(one)) for one in batches))
    assert found is not None
    assert (found.axis, found.index) == (2, 1)


@given(st.integers(1, 4), st.integers(8, 40), st.floats(1, 1e4), st.floats(1e-4, 1e-2))
def test_the_limit_is_exact(samples: int, width: int, mean: float, share: float) -> None:
    waves = 1 + share * np.cos(np.arange(samples * width * 2)).reshape(samples, width, 2)
    right = (waves * [mean, 3 * mean]).astype(np.float32)
    wrong = right * np.float32(1.0001)
    found = _find((right, wrong), limit=math.inf)
    assert found is not None
    assert _find((right, wrong), limit=found.snr_db) is None
    again = _find((right, wrong), limit=np.nextafter(found.snr_db, math.inf))
    assert again == replace(found, count=1)


def test_of_time_that_differs_between_batches_nothing_is_told() -> None:
    """An index of it would be no part of every batch's output."""
    batches = (np.moveaxis(_weather(2, time // 2, means=(288.0,) * time), -1, 1) for time in (30, 18))
    pairs = [(batch, _half(batch)) for batch in batches]
    assert _find(pairs[0]) is not None
    assert _find(*pairs) is None
