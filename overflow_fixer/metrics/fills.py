"""Constants that fill elements of an output (a mask of -1e9 over the actions that are not allowed).

They are larger than all that is computed, or far more, so that an SNR over both would show the constants alone.
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
_OUTWEIGHS = 10.0
"""How many times the energy of all other elements a constant has that hides 10 dB of them, however large it is: -8 in four of
five places.
"""


LEAST_MASK = -1000.0
"""What is not far below zero is a score or a bias, and no mask that is added."""
_GAP = 0.1
"""As a share of a mask, what it may be added to, and how far below zero what is not masked may be."""


def without_fills(
    fills: Mapping[str, Sequence[float]], expected: Mapping[str, Any], found: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Outputs by name in FP32 and of the candidate, 0 in both where FP32 has such a constant and the candidate that, rounded.

    `fills` are those of an output (Tolerance.fills); taken are those ten times the root mean square of all other finite elements of
    the batch, and those that have, where FP32 has them, ten times the energy of these. One of -1000 and less may be a mask that is added:
    FP32 has it within a tenth of it, the candidate what FP32 has.
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
    """Two arrays of one shape; bool of that shape."""
    with np.errstate(over="ignore"):
        constants = np.asarray(fills, np.float64).astype(reference.dtype)
    numbers = constants[np.isfinite(constants)].tolist()
    places = [_find_places(reference, number) for number in numbers]
    others = reference[
        np.isfinite(reference) & ~np.logical_or.reduce([np.zeros(reference.shape, bool), *places])
    ]
    energy = float(np.einsum("i,i->", others, others, dtype=np.float64, casting="same_kind"))
    is_filled = np.zeros(reference.shape, bool)
    for number, is_there in zip(numbers, places, strict=True):
        if _hides(number, int(np.count_nonzero(is_there)), energy, others.size):
            error = candidate[is_there].astype(np.float64) - reference[is_there]
            is_filled[is_there] |= np.abs(error) <= _ROUNDING * abs(number)
    return is_filled


def _find_places(reference: Array, number: float) -> Array:
    """Where an array holds this number or, if it is -1000 or less, has it as a mask added to what is far smaller; bool of its shape.

    The latter are all within a tenth of it, but only where nothing else is beyond a tenth of it on its side, and something is there
    that is not masked: a product that is as large throughout is no mask.
    """
    if number <= LEAST_MASK:
        with np.errstate(over="ignore"):
            is_masked = np.abs(reference - reference.dtype.type(number)) <= -_GAP * number
        count = np.count_nonzero(is_masked)
        if count == np.count_nonzero(reference < _GAP * number) and count < reference.size:
            return np.asarray(is_masked)
    return np.asarray(reference == number)


def _hides(number: float, count: int, energy: float, others: int) -> bool:
    """Whether so many elements that are this number hide these others, of this sum of squares."""
    dominates = abs(number) >= _DOMINATES * math.sqrt(energy / max(others, 1))
    return dominates or (count > 0 and abs(number) >= math.sqrt(_OUTWEIGHS * energy / count))
