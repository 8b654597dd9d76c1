"""IEEE 754 binary16 (FP16): its limits, and rounding to it.

Source of the limits: IEEE 754-2019 table 3.5, binary16 (p = 11, emax = 15).
"""

from __future__ import annotations

import math
from typing import Any, overload

import numpy as np
import numpy.typing as npt

FP16_MAX = 65504.0
FP16_OVERFLOW = 65520.0
"""The smallest magnitude that rounds to infinity (halfway between 65504 and the missing 65536)."""
FP16_MIN_NORMAL = 2.0**-14
FP16_MIN_SUBNORMAL = 2.0**-24
FP16_UNDERFLOW = 2.0**-25
"""The largest magnitude that rounds to zero (halfway between 0 and 2^-24, ties to even)."""


def round_to_fp16(values: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Round to FP16, to nearest with ties to even, as hardware stores a value.

    values: any shape, any float or integer dtype. Returns float16 of the same shape.
    |x| >= 65520 becomes +-inf, |x| <= 2^-25 becomes +-0, NaN stays NaN, -0 stays -0.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.asarray(values).astype(np.float16)


@overload
def step_at(magnitudes: float) -> float: ...
@overload
def step_at(magnitudes: npt.NDArray[Any]) -> npt.NDArray[np.float64]: ...
def step_at(magnitudes: float | npt.NDArray[Any]) -> float | npt.NDArray[np.float64]:
    """The distance of FP16's numbers at each magnitude, were there no largest and no smallest: 1 from 1024 up to 2048.

    magnitudes: any shape, not below 0. Returns float64 of the same shape.
    """
    return np.ldexp(2.0**-11, np.frexp(magnitudes)[1])


def headroom_bits(max_abs: float) -> float:
    """log2(65504 / max_abs): how many doublings fit before FP16's limit; negative when over it.

    inf for 0 (nothing to overflow) and for NaN (no value was seen), -inf for infinity.
    """
    if math.isnan(max_abs) or max_abs == 0:
        return math.inf
    return -math.inf if math.isinf(max_abs) else math.log2(FP16_MAX / max_abs)
