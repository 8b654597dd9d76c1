"""Constants that fill elements of an output (a mask of -1e9 over the actions that are not allowed).

They are larger than all that is computed, so that an SNR over both would show the constants alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from overflow_fixer.records import Array

_ROUNDING = 2.0**-8
"""A step of BF16, as a share: the constant may be rounded in the candidate."""
_DOMINATES = 10.0
"""How many times as large as the root mean square of all other elements a constant is that hides what became of them."""


def without_fills(
    fills: Mapping[str, Sequence[float]], expected: Mapping[str, Any], found: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs by name in FP32 and of the candidate, 0 in both where FP32 has such a constant and the candidate that, rounded.

    `fills` are those of an output (Tolerance.fills); taken are those ten times the root mean square of all other finite elements of
    the batch.
    Any other value in their place stays, and counts as an error. Of other shapes, or of what is no array of floats, nothing is
    taken.
    """
    left, right = dict(expected), dict(found)
    for name in fills.keys() & left.keys() & right.keys():
        one, other = left[name], right[name]
        if not all(isinstance(value, np.ndarray) for value in (one, other)) or one.shape != other.shape:
            continue
        is_filled = _is_filled(one, other, fills[name])
        if is_filled.any():
            left[name], right[name] = (
                np.where(is_filled, value.dtype.type(0), value) for value in (one, other)
            )
    return left, right


def _is_filled(reference: Array, candidate: Array, fills: Sequence[float]) -> Array:
    with np.errstate(over="ignore"):
        constants = np.asarray(fills, np.float64).astype(reference.dtype)
    is_constant = np.isin(reference, constants[np.isfinite(constants)])
    others = reference[~is_constant & np.isfinite(reference)]
    rms = math.sqrt(
        float(np.einsum("i,i->", others, others, dtype=np.float64, casting="same_kind")) / max(others.size, 1)
    )
    is_filled = np.zeros(reference.shape, bool)
    for number in constants[np.isfinite(constants)].tolist():
        if abs(number) >= _DOMINATES * rms:
            near = np.abs(candidate.astype(np.float64) - number) <= _ROUNDING * abs(number)
            is_filled |= (reference == reference.dtype.type(number)) & near
    return is_filled
