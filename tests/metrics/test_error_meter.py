"""Errors against an independent computation; NaN and infinity are counted and never scrubbed."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from overflow_fixer.metrics import error_meter
from overflow_fixer.metrics.error_meter import ErrorMeter
from overflow_fixer.records import TensorError

NAN, INF = math.nan, math.inf


def measure(*pairs: tuple[Any, Any]) -> TensorError:
    meter = ErrorMeter("t")
    for index, (reference, candidate) in enumerate(pairs):
        meter.add(reference, candidate, f"batch_{index}")
    return meter.result()


def f32(*values: float) -> np.ndarray:
    return np.asarray(values, np.float32)


WIDE = st.floats(-1e6, 1e6, width=32)
PAIRS = hnp.array_shapes(max_dims=3, min_side=0, max_side=5).flatmap(
    lambda shape: st.tuples(*[hnp.arrays(np.float32, shape, elements=WIDE)] * 2)
)


@settings(deadline=None)
@given(st.lists(PAIRS, min_size=1, max_size=3))
def test_formulas_against_exact_arithmetic(pairs: list[tuple[np.ndarray, np.ndarray]]) -> None:
    found = measure(*pairs)
    reference = [Fraction(float(v)) for one, _ in pairs for v in one.ravel()]
    candidate = [Fraction(float(v)) for _, other in pairs for v in other.ravel()]
    errors = [abs(r - c) for r, c in zip(reference, candidate, strict=True)]
    assert found.element_count == found.compared == len(errors)
    if not errors:
        assert all(map(math.isnan, (found.max_abs_error, found.snr_db, found.cosine)))
        return
    assert found.max_abs_error == pytest.approx(float(max(errors)))
    assert found.mean_abs_error == pytest.approx(float(sum(errors) / len(errors)))
    assert found.max_abs_reference == float(max(map(abs, reference)))
    relative = [float(e / abs(r)) for e, r in zip(errors, reference, strict=True) if r]
    assert found.max_rel_error == pytest.approx(max(relative), nan_ok=True) if relative else True
    energy, noise, other = (sum(v * v for v in values) for values in (reference, errors, candidate))
    if noise and energy:
        assert found.snr_db == pytest.approx(10 * math.log10(energy / noise), abs=1e-6)
    else:
        assert found.snr_db == (-INF if noise else INF)
    if energy and other:
        product = sum(r * c for r, c in zip(reference, candidate, strict=True))
        assert found.cosine == pytest.approx(float(product) / math.sqrt(energy) / math.sqrt(other), abs=1e-9)


ANY = st.floats(width=32, allow_subnormal=True)
ODD_PAIRS = hnp.array_shapes(max_dims=2, max_side=6).flatmap(
    lambda shape: st.tuples(*[hnp.arrays(np.float32, shape, elements=ANY)] * 2)
)


@settings(deadline=None)
@given(ODD_PAIRS)
def test_counts_on_any_values(pair: tuple[np.ndarray, np.ndarray]) -> None:
    reference, candidate = pair
    found = measure(pair)
    assert found.candidate_nan == sum(map(math.isnan, candidate.ravel()))
    assert found.candidate_inf == sum(map(math.isinf, candidate.ravel()))
    assert found.reference_nan == sum(map(math.isnan, reference.ravel()))
    assert found.reference_inf == sum(map(math.isinf, reference.ravel()))
    both = list(zip(reference.ravel(), candidate.ravel(), strict=True))
    finite = [math.isfinite(r) and math.isfinite(c) for r, c in both]
    assert found.compared == sum(finite)
    assert found.mismatched == sum(not f and r != c for f, (r, c) in zip(finite, both, strict=True))
    if found.compared:
        assert math.isfinite(found.max_abs_error)
        assert -1 <= found.cosine <= 1
        assert not math.isnan(found.snr_db)


@settings(deadline=None)
@given(hnp.arrays(np.float32, (6,), elements=WIDE), st.integers(1, 5))
def test_batches_add_up_like_one(values: np.ndarray, cut: int) -> None:
    candidate = (values * np.float32(1.01)).astype(np.float32)
    whole, parts = (
        measure((values, candidate)),
        measure((values[:cut], candidate[:cut]), (values[cut:], candidate[cut:])),
    )
    for name in ("max_abs_error", "mean_abs_error", "max_rel_error", "cosine", "snr_db", "compared"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), nan_ok=True)


@pytest.mark.parametrize(
    ("reference", "candidate", "mismatched"),
    [
        (f32(1, 2), f32(1, NAN), 1),
        (f32(1, NAN), f32(1, 2), 1),
        (f32(1, NAN), f32(1, NAN), 1),
        (f32(1, INF), f32(1, INF), 0),
        (f32(1, INF), f32(1, -INF), 1),
        (f32(1, -INF), f32(1, -INF), 0),
        (f32(1, INF), f32(1, 3e38), 1),
        (f32(1, INF), f32(1, NAN), 1),
        (f32(1, 3e38), f32(1, INF), 1),
    ],
)
def test_what_is_not_finite(reference: np.ndarray, candidate: np.ndarray, mismatched: int) -> None:
    found = measure((reference, candidate))
    assert (found.mismatched, found.compared, found.snr_db) == (mismatched, 1, INF)


def test_everything_nan_leaves_nothing_to_compare() -> None:
    found = measure((f32(1, 2), f32(NAN, NAN)))
    assert (found.compared, found.mismatched, found.candidate_nan) == (0, 2, 2)
    numbers = (found.max_abs_error, found.mean_abs_error, found.max_rel_error, found.cosine, found.snr_db)
    assert all(map(math.isnan, (*numbers, found.worst_batch_snr_db, found.max_abs_reference)))


def test_scalars_and_empty_tensors() -> None:
    assert measure((np.float32(2), np.float32(1))).snr_db == pytest.approx(10 * math.log10(4))
    empty = measure((np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)))
    assert (empty.element_count, empty.mismatched, empty.worst_batch) == (0, 0, "batch_0")
    assert measure().worst_batch is None


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (f32(1, 2), f32(1)),
        (f32(1, 2), f32(1, 2).reshape(1, 2)),
        (f32(), f32(1)),
        (np.zeros((0, 2), np.float32), np.zeros((2, 0), np.float32)),
        ([f32(1)], [f32(1), f32(2)]),
        (f32(1), [f32(1), f32(2)]),
    ],
)
def test_another_shape_is_a_mismatch_of_every_element(reference: Any, candidate: Any) -> None:
    found = measure((reference, candidate))
    assert found.mismatched == found.element_count > 0
    assert found.compared == 0


def test_zeros() -> None:
    both = measure((f32(0, 0), f32(0, -0.0)))
    assert (both.snr_db, both.cosine, both.max_abs_error) == (INF, 1, 0)
    assert math.isnan(both.max_rel_error)
    reference = measure((f32(0, 0), f32(0, 1)))
    assert (reference.snr_db, reference.cosine) == (-INF, 0)
    candidate = measure((f32(0, 1), f32(0, 0)))
    assert (candidate.snr_db, candidate.cosine, candidate.max_rel_error) == (0, 0, 1)


@pytest.mark.parametrize("scale", [1e300, 1e-300, 1e-170, 1e170, 1.7e308])
def test_squares_that_leave_float64_do_not_leave_the_snr(scale: float) -> None:
    reference = np.asarray([1.0, -1.0, 0.5]) * scale
    wrong = measure((reference, reference[::-1].copy()))
    assert wrong.snr_db == pytest.approx(10 * math.log10(2.25 / 0.5), abs=1e-6)
    near = measure((reference, reference * (1 - 1e-3)))
    assert near.snr_db == pytest.approx(60, abs=1e-3)
    assert near.cosine == pytest.approx(1)
    assert near.worst_batch_snr_db == pytest.approx(60, abs=1e-3)


@pytest.mark.parametrize("small", [1e-300, 5e-324, 1e-170])
def test_what_is_tiny_on_both_sides_and_nowhere_at_once_has_no_cosine_of_its_own(small: float) -> None:
    apart = measure((np.asarray([small]), np.zeros(1)), (np.zeros(1), np.asarray([small])))
    assert apart.cosine == 0
    assert apart.max_rel_error == 1
    beside = measure((np.asarray([small]), np.asarray([small])), (np.asarray([1.0]), np.zeros(1)))
    assert 0 <= beside.cosine <= 1


def test_a_zero_that_is_not_zero_any_more_has_no_relative_error_and_is_not_far_off() -> None:
    found = measure((f32(0, 2, 1e-5, 0), f32(1, 3, 2e-5, 0)))
    assert found.max_rel_error == pytest.approx(1)
    assert (found.sizable_count, found.far_off_count) == (1, 1)


def test_an_error_that_leaves_float64() -> None:
    found = measure((np.asarray([1.7e308, 1.0]), np.asarray([-1.7e308, 1.0])))
    assert found.max_abs_error == found.mean_abs_error == INF
    assert found.snr_db == pytest.approx(10 * math.log10(0.25))
    assert found.cosine == pytest.approx(-1)


def test_very_different_scales_in_one_sum() -> None:
    reference = [np.asarray([1e-200]), np.asarray([1e200]), np.asarray([1.0])]
    found = measure(*((r, r * 0.9) for r in reference))
    assert found.snr_db == pytest.approx(20)
    assert found.worst_batch_snr_db == pytest.approx(20)
    for order in ((1e9, 1e200), (1e200, 1e9)):  # the larger decide, whenever they come
        off = {1e9: 0.9, 1e200: 0.99}
        found = measure(*((np.asarray([scale]), np.asarray([scale * off[scale]])) for scale in order))
        assert found.snr_db == pytest.approx(40)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float32", "float64"])
def test_float_types_are_compared_as_values(dtype: Any) -> None:
    if dtype in ("bfloat16", "float8_e4m3fn"):
        dtype = getattr(pytest.importorskip("ml_dtypes"), dtype)
    found = measure((np.asarray([1.0, 2.0, 4.0], np.float32), np.asarray([1.0, 2.0, 5.0], dtype)))
    assert found.is_float
    assert (found.max_abs_error, found.max_rel_error, found.mismatched) == (1, 0.25, 0)


@pytest.mark.parametrize(
    ("reference", "is_float", "count"),
    [
        (f32(1, 2), True, 2),
        (np.asarray([1, 2, 3]), False, 3),
        (f32(), True, 1),
        ([np.asarray([True]), f32(1, 2)], False, 3),
    ],
)
def test_of_what_could_not_be_computed_nothing_matches(reference: Any, is_float: bool, count: int) -> None:
    """A tensor without elements counts as one, so that it does not match either."""
    meter = ErrorMeter("t")
    meter.add_failure(reference, "batch_0", "no such row")
    found = meter.result()
    assert (found.is_float, found.mismatched, found.element_count) == (is_float, count, count)
    assert (found.compared, found.failure, found.worst_batch) == (0, "no such row", "batch_0")


def test_why_a_batch_could_not_be_computed_is_told_beside_one_in_which_nothing_matches() -> None:
    meter = ErrorMeter("t")
    meter.add(f32(1, 2), f32(np.nan, np.nan), "batch_0")
    meter.add_failure(f32(1, 2), "batch_1", "no such row")
    found = meter.result()
    assert (found.failure, found.worst_batch, found.mismatched) == ("no such row", "batch_1", 4)


def test_float16_infinity_against_a_finite_reference() -> None:
    found = measure((f32(70000, 1), np.asarray([np.inf, 1], np.float16)))
    assert (found.candidate_inf, found.mismatched, found.compared) == (1, 1, 1)


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, np.int32])
def test_what_is_no_float_is_equal_or_not(dtype: Any) -> None:
    reference = np.asarray([0, 1, 1, 0], dtype)
    found = measure((reference, np.asarray([0, 1, 0, 0], dtype)))
    assert not found.is_float
    assert (found.mismatched, found.element_count, found.max_abs_error) == (1, 4, 1)


def test_strings() -> None:
    reference = np.asarray(["a", "b", "c"], object)
    found = measure((reference, np.asarray(["a", "x", "c"], object)))
    assert (found.is_float, found.mismatched, found.element_count, found.compared) == (False, 1, 3, 0)


@settings(deadline=None)
@given(ODD_PAIRS, st.integers(1, 3))
def test_values_that_are_far_off_are_counted(pair: tuple[np.ndarray, np.ndarray], batches: int) -> None:
    found = measure(*[pair] * batches)
    sizable = [
        (float(r), float(c))
        for r, c in zip(*(one.ravel() for one in pair), strict=True)
        if math.isfinite(r) and abs(r) >= 2**-14
    ]
    far_off = [not math.isfinite(c) or abs(r - c) / abs(r) > 0.1 for r, c in sizable]
    assert (found.sizable_count, found.far_off_count) == (batches * len(far_off), batches * sum(far_off))


def test_what_is_off_by_a_tenth_is_not_far_off_and_integers_are_not_counted() -> None:
    right, wrong = np.float64([10, 10, 2**-14, 2**-15, NAN, INF]), np.float64([11, 8.9, 0, 0, 1, 1])
    found = measure((right, wrong))
    assert (found.sizable_count, found.far_off_count) == (3, 2)
    found = measure((np.arange(9), np.zeros(9, np.int64)))
    assert (found.sizable_count, found.far_off_count) == (0, 0)


def test_maps_are_compared_by_their_values() -> None:
    right = [{"b": 2.0, "a": 1.0}, {"a": 3.0, "b": NAN}]
    found = measure((right, [{"a": 1.0, "b": 2.5}, {"a": 3.0, "b": NAN}]))
    assert (found.is_float, found.element_count, found.compared, found.mismatched) == (True, 4, 3, 1)
    assert found.snr_db == pytest.approx(10 * math.log10(14 / 0.25))
    assert found.other_shape is None


@pytest.mark.parametrize(
    ("candidate", "size", "said"),
    [
        ([{0: 1.0, 2: 2.0}], 2, "keys [0, 2] instead of [0, 1] on batch_0"),
        ([{0: 1.0, 1: 2.0, 2: 3.0}], 3, "keys [0, 1, 2] instead of [0, 1] on batch_0"),
        ([{0: 1.0, 1: 2.0}] * 2, 4, "[2, 2] instead of [1, 2] on batch_0"),
        ([], 2, "0 tensors instead of 1 on batch_0"),
    ],
)
def test_maps_of_other_keys_match_nowhere(candidate: Any, size: int, said: str) -> None:
    found = measure(([{0: 1.0, 1: 2.0}], candidate))
    assert (found.element_count, found.compared, found.mismatched) == (size, 0, size)
    assert (found.is_float, found.other_shape) == (True, said)


def test_sequences() -> None:
    found = measure(([f32(1, 2), f32(3)], [f32(1, 2), f32(4)]))
    assert (found.element_count, found.max_abs_error) == (3, 1)
    assert measure(([], [])).element_count == 0


def test_chunks_meet_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    reference = rng.normal(size=(1 << 20) + 3).astype(np.float32)
    candidate = reference.astype(np.float16).astype(np.float32)
    candidate[-1], candidate[1 << 20], candidate[(1 << 20) - 1] = 100, NAN, INF
    monkeypatch.setattr(error_meter, "_CHUNK_ELEMENTS", reference.size)
    whole = measure((reference, candidate))
    monkeypatch.setattr(error_meter, "_CHUNK_ELEMENTS", 1 << 18)
    pieces = measure((reference, candidate))
    assert (whole.candidate_nan, whole.candidate_inf, whole.mismatched) == (1, 1, 2)
    assert whole.max_abs_error == pieces.max_abs_error == abs(float(reference[-1]) - 100)
    assert whole.snr_db == pytest.approx(pieces.snr_db)
    keep = np.isfinite(candidate)
    noise = np.square(reference[keep].astype(np.float64) - candidate[keep]).sum()
    energy = np.square(reference[keep].astype(np.float64)).sum()
    assert whole.snr_db == pytest.approx(10 * math.log10(energy / noise))


def test_a_wrong_batch_shows_beside_louder_ones() -> None:
    loud, quiet = f32(1000, -1000), f32(5, -5)
    found = measure((loud, loud), (quiet, -quiet))
    assert found.snr_db == pytest.approx(10 * math.log10(2000050 / 200))
    assert found.worst_batch_snr_db == pytest.approx(10 * math.log10(0.01 * 2000050 / 2 / 200))
    assert found.snr_db > 30 > found.worst_batch_snr_db
    assert found.worst_batch == "batch_1"


def test_silence_is_not_judged_by_its_noise() -> None:
    loud, silent = f32(1, -1), f32(0, 0)
    found = measure((loud, loud), (silent, f32(1e-4, 0)))
    assert found.worst_batch_snr_db == pytest.approx(10 * math.log10(0.01 * 1 / 1e-8), abs=0.01)
    assert measure((silent, f32(1e-4, 0))).worst_batch_snr_db == -INF


def test_integers_of_another_shape_are_no_floats() -> None:
    meter = ErrorMeter("y")
    meter.add(np.arange(2), np.arange(1), "batch_0")
    assert (meter.result().is_float, meter.result().mismatched) == (False, 2)


def test_of_quiet_batches_the_worst_is_told_as_it_is() -> None:
    loud = f32(1, -1), f32(1, -1)
    found = measure(loud, (f32(1e-3, 1e-3), f32(1e-3, 1.5e-3)), (f32(1e-3, 1e-3), f32(1e-3, 0)), loud)
    assert (found.quiet_batch, found.worst_batch) == ("batch_2", "batch_2")
    assert found.quiet_batch_snr_db == pytest.approx(10 * math.log10(2e-6 / 1e-6))
    assert found.worst_batch_snr_db > 40
    assert found.quiet_count == 2


def test_no_batch_is_quiet_that_has_its_share_or_nothing_to_compare() -> None:
    nothing = f32(math.nan, math.nan), f32(math.nan, math.nan)
    found = measure((f32(1, -1), f32(1, -1)), (f32(0.2, 0.2), f32(0.2, 0)), nothing)
    assert (found.quiet_batch, found.quiet_count) == (None, 0)
    assert math.isnan(found.quiet_batch_snr_db)


@pytest.mark.parametrize(
    ("pairs", "agreement"),
    [
        ([([1, 2, 3, 4], [1, 2, 3, 4]), ([1, 2, 3, 4], [1, 2, 3, 5])], 0.75),
        ([([1, 2, 3, 4], [1, 2, 3, 5]), ([1], [2])], 0.0),
        ([([1, 2], [1, 2]), ([1, 2], [1])], 0.0),
        ([([True, False], [True, True])], 0.5),
        ([(["a", "b"], ["a", "b"])], 1.0),
        ([([], [])], 1.0),
    ],
)
def test_the_least_share_of_equal_elements_in_a_batch(
    pairs: list[tuple[list[Any], list[Any]]], agreement: float
) -> None:
    found = measure(
        *((np.asarray(one, np.dtype(type((one or [0])[0]))), np.asarray(two)) for one, two in pairs)
    )
    assert found.worst_batch_agreement == agreement


def test_of_floats_no_share_of_equal_elements_is_told() -> None:
    assert math.isnan(measure((f32(1), f32(1))).worst_batch_agreement)
    assert math.isnan(ErrorMeter("y").result().worst_batch_agreement)


def test_one_batch_is_its_own_worst() -> None:
    found = measure((f32(1, 2, 3), f32(1, 2, 3.1)))
    assert found.worst_batch_snr_db == pytest.approx(found.snr_db)


@pytest.mark.parametrize(
    ("pairs", "worst"),
    [
        ([(f32(1), f32(1)), (f32(1), f32(2))], "batch_1"),
        ([(f32(1), f32(3)), (f32(1), f32(2))], "batch_0"),
        ([(f32(1, 1), f32(NAN, 1)), (f32(1, 1), f32(NAN, NAN)), (f32(1, 1), f32(9, 9))], "batch_1"),
        ([(f32(1), f32(1)), (f32(1), f32(1))], "batch_0"),
        ([(f32(1), f32(1.01)), (f32(1), f32(1, 1))], "batch_1"),
        ([(np.asarray([1, 2]), np.asarray([1, 2])), (np.asarray([1]), np.asarray([2]))], "batch_1"),
    ],
)
def test_the_worst_batch(pairs: list[tuple[Any, Any]], worst: str) -> None:
    assert measure(*pairs).worst_batch == worst


def test_floats_that_came_out_as_integers_are_equal_or_not() -> None:
    found = measure((f32(1, 2), np.asarray([1, 3])))
    assert (found.is_float, found.mismatched) == (False, 1)


def test_a_sum_of_squares_that_leaves_float64_where_no_square_does() -> None:
    values = np.full(64, 2.0**510)
    found = measure((values, values * (1 + 2**-10)))
    assert found.snr_db == pytest.approx(20 * math.log10(2**10))
    small = np.full(64, 2.0**-530)
    assert measure((small, small * (1 + 2**-10))).snr_db == pytest.approx(found.snr_db)


def test_of_two_shapes_the_larger_one_counts() -> None:
    found = measure((f32(1), f32(1, 2, 3)))
    assert (found.element_count, found.mismatched, found.compared) == (3, 3, 0)


def test_a_meter_that_is_told_of_louder_batches_judges_one_as_beside_them() -> None:
    """Of energies 1 and 1e-4 an element: the quiet batch is held against 0.01 of their mean."""
    loud, quiet, wrong = f32(1, -1), f32(0.01, -0.01), f32(0.011, -0.01)
    both = ErrorMeter("y")
    both.add(loud, loud, "loud")
    both.add(quiet, wrong, "quiet")
    together = both.result()
    assert together.log_energy == pytest.approx(math.log10((1 + 1e-4) / 2))
    alone = ErrorMeter("y", together.log_energy)
    alone.add(quiet, wrong, "quiet")
    assert alone.result().worst_batch_snr_db == pytest.approx(together.worst_batch_snr_db)
    assert alone.result().worst_batch_snr_db == pytest.approx(
        10 * math.log10(0.01 * 0.50005 * 2 / 1e-6), abs=1e-3
    )
    assert ErrorMeter("y").result().log_energy == -INF
