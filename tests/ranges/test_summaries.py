"""summarize against a reckoning number by number, on every class of value."""

import ml_dtypes
import numpy as np
import pytest
from edge_values import EDGES
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scan_cases import assert_same, reckon

from overflow_fixer.ranges import summaries
from overflow_fixer.ranges.summaries import (
    SUMMARY_FIELDS,
    Summaries,
    has_fractions,
    hide_small,
    merge_summaries,
    no_summaries,
    summarize,
)
from overflow_fixer.records import Array, Range

SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
FLOATS = st.one_of(st.sampled_from(EDGES), st.floats(width=32))


def as_range(found: Summaries, max_abs_batch: int) -> Range:
    return Range("t", **{name: found[name].item() for name in SUMMARY_FIELDS}, worst_batch=max_abs_batch)


def assert_reckoned(values: Array) -> None:
    expected = reckon("t", [values])
    assert_same([as_range(summarize(values), expected.worst_batch)], [expected])


@given(hnp.arrays(np.float32, SHAPES, elements=FLOATS.map(np.float32).map(float)))
def test_float32_is_reckoned_right(values: Array) -> None:
    assert_reckoned(values)


@given(
    hnp.arrays(np.float64, SHAPES, elements=st.one_of(st.floats(), st.sampled_from([*EDGES, 1e308, 5e-324])))
)
def test_float64_is_reckoned_in_double(values: Array) -> None:
    assert_reckoned(values)


@given(hnp.arrays(np.uint16, SHAPES))
def test_sixteen_bits_are_widened_exactly(bits: Array) -> None:
    assert_reckoned(bits.view(np.float16))
    assert_reckoned(bits.view(ml_dtypes.bfloat16))


WHOLE = st.one_of(st.integers(-9, 9).map(float), st.sampled_from([-0.0, 3.4e38, -1e20]))


@given(hnp.arrays(np.float64, SHAPES, elements=st.one_of(WHOLE, st.floats())))
def test_fractions_are_found_in_every_type(values: Array) -> None:
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        with np.errstate(over="ignore"):
            narrow = values.astype(dtype)
        expected = not all(float(one).is_integer() for one in narrow.reshape(-1).tolist())
        assert has_fractions(narrow) == expected


def test_fractions_are_found_in_every_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "_CHUNK_ELEMENTS", 8)
    values = np.arange(25.0)
    assert not has_fractions(values)
    values[24] = 0.5
    assert has_fractions(values)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 24, 25])
def test_chunks_leave_nothing_out(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(summaries, "_CHUNK_ELEMENTS", 8)
    values = np.linspace(-70000, 70000, size)
    values[::3] = np.nan
    assert_reckoned(values)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([2, 5], 2),
        ([-5, -3], 3),
        ([-5, 3], -np.inf),
        ([0, 3], -np.inf),
        ([-3, 0], -np.inf),
        ([0, 0], np.nan),
        ([], np.nan),
        ([np.nan], np.nan),
    ],
)
def test_the_smallest_magnitude_is_hidden_but_where_it_follows(values: list[float], told: float) -> None:
    seen = np.stack([summarize(np.float32(values))] * 2)
    taken = seen[1]["min_nonzero_abs"]
    hide_small(seen, np.array([False, True]))
    np.testing.assert_array_equal(seen["min_nonzero_abs"], [told, taken])


def test_nothing_seen_is_nan_and_zero() -> None:
    for found in (no_summaries(3)[1], summarize(np.zeros((2, 0), np.float32))):
        assert np.isnan([found[name] for name in SUMMARY_FIELDS[:4]]).all()
        assert [found[name] for name in SUMMARY_FIELDS[4:]] == [0, 0, 0, 0]


@given(
    st.lists(hnp.arrays(np.float32, 3, elements=FLOATS.map(np.float32).map(float)), min_size=3, max_size=3)
)
def test_merging_is_associative_and_commutative(arrays: list[Array]) -> None:
    a, b, c = map(summarize, arrays)
    merged = [
        merge_summaries(merge_summaries(a, b), c),
        merge_summaries(a, merge_summaries(b, c)),
        merge_summaries(merge_summaries(c, a), b),
        summarize(np.concatenate(arrays)),
    ]
    assert len({repr(as_range(found, 0)) for found in merged}) == 1
