"""What all forms of a lost difference share: how many of FP16's steps have to be left of it, and what is told of one."""

from __future__ import annotations

from typing import NamedTuple

from overflow_fixer.formats import FP16_OVERFLOW, step_at
from overflow_fixer.graph.nodes import Node

FEWEST_STEPS = 64
"""A largest value of less is too small: rounding noise nears 30 dB, as of a tensor below 2^-18."""
STEPS_GIVEN_OUT = 32.0
"""Of less than so many of FP16's steps, what is given out or normalised has under 30 dB: see docs/numerics.md."""
STEPS_OF_A_DIVISOR = 16.0
"""Of less than so many of FP16's steps, the quotient has under 30 dB: see docs/numerics.md."""
MOST_ROUNDED = 32.0
"""FP16 rounds what is so many times the difference by up to a 64th of it."""
FP32_NOISE = 2.0**-20
"""Of the terms: less is what FP32 itself rounds, as of the distance of a point to itself."""


class LostDifference(NamedTuple):
    """The nodes that are to stay in FP32, that of the difference first, and what a finding about each of them tells."""

    nodes: tuple[Node, ...]
    tensor: str
    value: float
    limit: float
    reason: str
    batch: str | None = None


def tell_steps(most: float) -> str:
    return f"FP16's steps are {step_at(most):g} there" if most < FP16_OVERFLOW else "FP16 ends at 65504"
