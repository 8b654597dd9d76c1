from __future__ import annotations

import math

import pytest

from overflow_fixer.rules.digits import tell_over


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
