"""Values of maps as arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overflow_fixer.metrics.maps import read_values, say_other_keys

FLOATS = st.floats(width=32)
KEYS = st.one_of(st.sets(st.integers(), max_size=5), st.sets(st.text(max_size=3), max_size=5))


@given(KEYS, st.integers(1, 4), st.data())
def test_maps_of_the_same_keys_are_one_array_in_their_order(keys: set[Any], count: int, data: Any) -> None:
    orders = [data.draw(st.permutations(sorted(keys))) for _ in range(count)]
    maps = [{key: data.draw(FLOATS) for key in order} for order in orders]
    (values,) = read_values(maps)
    assert values.shape == (count, len(keys))
    assert values.dtype == np.float64
    for row, one in zip(values, maps, strict=True):
        np.testing.assert_array_equal(row, [one[key] for key in sorted(keys)])


@pytest.mark.parametrize(
    ("value", "shapes"),
    [
        ({1: 0.5, 0: 0.25}, [(1, 2)]),
        ([{0: 0.5}, {0: 0.5, 1: 0.5}], [(1,), (2,)]),
        ([], []),
        (np.zeros((2, 3)), [(2, 3)]),
        ([np.zeros(2), np.zeros(3)], [(2,), (3,)]),
        (None, [()]),
    ],
)
def test_what_is_read(value: Any, shapes: list[tuple[int, ...]]) -> None:
    assert [one.shape for one in read_values(value)] == shapes


@pytest.mark.parametrize(
    ("reference", "candidate", "said"),
    [
        ([{0: 1.0, 1: 2.0}], [{1: 5.0, 0: 6.0}], None),
        ([{0: 1.0}, {0: 1.0, 1: 2.0}], [{0: 1.0}, {0: 1.0, 2: 2.0}], "keys [0, 2] instead of [0, 1]"),
        ({"a": 1.0}, {"b": 1.0}, "keys ['b'] instead of ['a']"),
        ([{0: 1.0}], [{0: 1.0}, {0: 1.0}], None),
        ([{0: 1.0}], [np.zeros(1)], None),
        ([np.zeros(1)], [np.zeros(2)], None),
    ],
)
def test_other_keys(reference: Any, candidate: Any, said: str | None) -> None:
    assert say_other_keys(reference, candidate) == said
