"""What of an output varies around its mean, against sums by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_fixer.metrics import variations
from overflow_fixer.metrics.error_meter import ErrorMeter
from overflow_fixer.metrics.variations import VariationMeter, find_limit
from overflow_fixer.records import Array, HiddenVariation, Tolerance

RNG = np.random.default_rng(5)


def _find(*pairs: tuple[Any, Any], limit: float = 30.0) -> HiddenVariation | None:
    meter, errors = VariationMeter("y"), ErrorMeter("y")
    for reference, candidate in pairs:
        meter.add(reference)
        errors.add(reference, candidate, "b")
    return meter.find_hidden(errors.result(), limit)


def _around(mean: float, rms: float, *shape: int) -> Array:
    return (mean + rms * RNG.normal(size=shape)).astype(np.float32)


def _half(values: Array) -> Array:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def test_what_fp16_loses_beside_each_samples_own_mean_is_found() -> None:
    """Samples around 900, 1000 and 1100, of which each varies by 0.05, a tenth of FP16's step there."""
    right = [_around(mean, 0.05, 1, 200) for mean in (900, 1000, 1100)]
    found = _find(*((one, _half(one)) for one in right))
    assert found is not None
    wide = np.concatenate(right).astype(np.float64)
    centred = wide - wide.mean(axis=1, keepdims=True)
    error = np.square(wide - _half(np.concatenate(right))).sum()
    assert found.snr_db == pytest.approx(10 * math.log10(np.square(centred).sum() / error), abs=1e-3)
    assert found.rms == pytest.approx(math.sqrt(np.square(centred).mean()), rel=1e-4)
    assert found.output_rms == pytest.approx(math.sqrt(np.square(wide).mean()))
    assert found.within_samples


@pytest.mark.parametrize("shape", [(1, 1), (1,), (), (1, 7)])
def test_of_small_samples_it_is_all_elements_that_vary(shape: tuple[int, ...]) -> None:
    right = _around(288, 0.15, 64, *shape)
    found = _find(*((one, _half(one)) for one in map(np.asarray, right)))
    assert found is not None
    assert not found.within_samples
    centred = right.astype(np.float64) - right.mean(dtype=np.float64)
    error = np.square(right.astype(np.float64) - _half(right)).sum()
    assert found.snr_db == pytest.approx(10 * math.log10(np.square(centred).sum() / error), abs=1e-3)


@pytest.mark.parametrize(
    "right",
    [
        _around(0, 1, 4, 100),
        _around(10, 2, 4, 100),  # 4 % of the energy
        _around(100, 1, 4, 100),  # which FP16 holds to 30 dB
        np.full((4, 100), 300.1, np.float32),
        np.full((4, 100), 300.1, np.float32) + np.float32(3e-5) * (np.arange(100) % 2),  # FP32's own digits
        np.zeros((4, 100), np.float32),
        _around(288, 0.15, 1, 7),
        np.zeros((0, 100), np.float32),
        np.where(np.arange(100) == 3, np.nan, _around(288, 0.15, 1, 100)).astype(np.float32),
        np.where(np.arange(100) == 3, np.inf, _around(288, 0.15, 1, 100)).astype(np.float32),
        np.arange(100),
        np.full((2, 50), 1e308) * (1 + 1e-4 * RNG.normal(size=(2, 50))),
        [_around(288, 0.15, 100)],
    ],
)
def test_what_varies_much_or_not_at_all_is_not_told(right: Any) -> None:
    assert _find((right, _half(right) if isinstance(right, np.ndarray) else right)) is None


def test_samples_are_worked_through_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    right = _around(288, 0.15, 7, 50)
    whole = _find((right, _half(right)))
    monkeypatch.setattr(variations, "_CHUNK_ELEMENTS", 101)
    assert whole is not None
    assert _find((right, _half(right))) == whole


@given(st.integers(1, 5), st.integers(8, 40), st.floats(1, 1e4), st.floats(1e-4, 1e-2))
def test_the_limit_is_exact(samples: int, width: int, mean: float, share: float) -> None:
    right = (
        (mean * (1 + share * np.cos(np.arange(samples * width)))).astype(np.float32).reshape(samples, width)
    )
    wrong = right * np.float32(1.01)
    found = _find((right, wrong), limit=math.inf)
    assert found is not None
    assert _find((right, wrong), limit=found.snr_db) is None
    assert _find((right, wrong), limit=np.nextafter(found.snr_db, math.inf)) == found


@pytest.mark.parametrize(
    ("tolerance", "limit"),
    [
        (Tolerance(), 30),
        (Tolerance(min_snr_db=20), 20),
        (Tolerance(min_snr_db=50), 30),
        (Tolerance(min_snr_db=20, per_output={"y": 50}), 30),
        (Tolerance(min_snr_db=50, per_output={"y": 10, "z": 5}), 10),
    ],
)
def test_what_varies_needs_what_its_output_needs_but_no_more_than_the_default(
    tolerance: Tolerance, limit: float
) -> None:
    assert find_limit(tolerance, "y") == limit
