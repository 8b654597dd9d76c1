from __future__ import annotations

import math

import pytest

from overflow_fixer.rules.digits import tell_beside, tell_over


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [
        (16000.0, 10000.0, "16000"),
        (10000.0009765625, 10000.0, "10000.001"),
        (65504.00390625, 65504.0, "65504.0039"),
        (1e9, 10000.0, "1e+09"),
        (math.inf, 10000.0, "inf"),
    ],
)
def test_a_value_never_reads_like_the_limit_that_it_is_over(value: float, limit: float, text: str) -> None:
    assert tell_over(value, limit) == text


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [
        (12.345, 30.0, "12.3"),
        (29.96, 30.0, "29.96"),
        (29.99999, 30.0, "29.99999"),
        (30.0, 30.0, "30.0"),
        (30.04, 30.02, "30.04"),
        (66.5515, 66.552, "66.55"),
        (math.nextafter(30, 0), 30.0, "29.999999999999996"),
        (-math.inf, 30.0, "-inf"),
        (math.inf, 30.0, "inf"),
        (math.nan, 30.0, "nan"),
    ],
)
def test_a_value_reads_on_its_own_side_of_the_limit(value: float, limit: float, text: str) -> None:
    assert tell_beside(value, limit) == text


def test_shares_have_two_decimals() -> None:
    assert (tell_beside(98.0, 99.0, 2), tell_beside(98.9999, 99.0, 2)) == ("98.00", "98.9999")
