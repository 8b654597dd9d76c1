"""What is told of FP16's steps at terms of a difference."""

import math

import pytest

from overflow_fixer.evidence.differences.losses import FEWEST_STEPS, MOST_ROUNDED, tell_steps


@pytest.mark.parametrize(
    ("most", "told"),
    [
        (0.75, "FP16's steps are 0.000488281 there"),
        (2048.0, "FP16's steps are 2 there"),
        (2047.9, "FP16's steps are 1 there"),
        (65519.0, "FP16's steps are 32 there"),
        (65520.0, "FP16 ends at 65504"),
        (math.inf, "FP16 ends at 65504"),
        (math.nan, "FP16 ends at 65504"),
    ],
)
def test_steps_are_told_as_far_as_fp16_goes(most: float, told: str) -> None:
    assert tell_steps(most) == told


def test_what_is_rounded_by_a_64th_is_half_of_the_fewest_steps() -> None:
    """Half a step of 2^-10 of it at most, of values just over a power of two."""
    assert MOST_ROUNDED * 2.0**-11 == 1 / FEWEST_STEPS
