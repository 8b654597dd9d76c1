"""What the vectors that probes leave say of their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.ranges.instrument import Probed
from overflow_fixer.ranges.summaries import Summaries, no_summaries
from overflow_fixer.records import Array

Flags = npt.NDArray[np.bool_]


class Readings(NamedTuple):
    """The summaries of the tensors with a quick and with a detailed probe.

    Of the first, which lie within FP16's range (as far as they are not NaN), and which may hold a NaN by their own guard;
    where a probe takes but one of the extremes, both are that one. Of the second how many elements are over that range above
    0, NaN where nobody tells.
    """

    quick: Summaries
    detailed: Summaries
    is_in_range: Flags
    may_be_nan: Flags
    high: Array


def read_probes(probed: Probed, vectors: Sequence[Array]) -> Readings:
    """What they say, in the order of the tensors."""
    values = np.concatenate([np.zeros(0), *(vector.reshape(-1) for vector in vectors)])
    ufuncs = (np.maximum, np.minimum, np.add, np.multiply)
    most, least, total, product = (_reduce(ufunc, values, probed) for ufunc in ufuncs)
    quick, detailed = probed.quick.T, probed.detailed.T
    numbers = most[detailed]
    numbers[3] = product[detailed[3]]
    high = np.where(detailed[-1] < 0, np.nan, numbers[-1])
    if not quick.size:
        none = np.empty(0, np.bool_)
        return Readings(no_summaries(0), read_detailed(numbers), none, none, high)
    highest, lowest = _choose(most, quick[0], least, quick[1]), _choose(least, quick[1], most, quick[0])
    small = np.where(quick[4] < 0, np.nan, least[quick[4]])
    has_nan = np.isnan(np.where(quick[2] < 0, 0, total[quick[2]]))
    count = np.where(quick[3] < 0, probed.counts, product[quick[3]])
    found, is_in_range = _read_quick(highest, lowest, count, small)
    return Readings(found, read_detailed(numbers), is_in_range, has_nan, high)


def _choose(first: Array, places: Array, second: Array, other_places: Array) -> Array:
    """The first, where a probe takes it; else the second, or 0 where it takes neither."""
    return np.asarray(
        np.where(places < 0, np.where(other_places < 0, 0, second[other_places]), first[places])
    )


def _reduce(ufunc: np.ufunc, values: Array, probed: Probed) -> Array:
    """Each segment of the vectors to one number; of those that are no sizes, the product means nothing."""
    if len(probed.starts) in (0, len(values)):  # of one number each
        return values
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(ufunc.reduceat(values, probed.starts))


def _read_quick(most: Array, least: Array, count: Array, small: Array) -> tuple[Summaries, Flags]:
    is_empty = count == 0
    is_in_range = is_empty | ((most < FP16_OVERFLOW) & (least > -FP16_OVERFLOW))
    found = no_summaries(len(count))
    found["element_count"] = count
    set_extremes(found, most, least, ~is_empty)
    found["min_nonzero_abs"] = np.where(~is_empty & (small < FP16_OVERFLOW), small, np.nan)
    return found, is_in_range


def read_detailed(values: Array) -> Summaries:
    """values: [DETAILED, tensor], of which the last is not read. Of an empty tensor nothing but the size is looked at.

    CUDA gives the largest float in place of infinity where it reduces nothing else.
    """
    size = values[3]
    most, least, min_nonzero_abs, _, nan, below, finite, _ = (
        values if size.all() else np.where(size > 0, values, 0)
    )
    found = no_summaries(len(size))
    found["element_count"], found["nan_count"] = size, nan
    found["inf_count"], found["over_fp16_count"] = size - nan - finite, size - nan - below
    if not finite.all():
        most, least = (np.where(finite > 0, end, np.copysign(np.inf, end)) for end in (most, least))
    set_extremes(found, most, least, size > nan)
    has_nonzero = (size > nan) & ((most != 0) | (least != 0))
    only_inf = np.where(finite > 0, min_nonzero_abs, np.inf)
    found["min_nonzero_abs"] = np.where(has_nonzero, only_inf, np.nan)
    return found


def set_extremes(found: Summaries, most: Array, least: Array, is_present: Flags) -> None:
    """Set max_abs, min and max where an element `is_present`; adding 0 turns -0 into 0."""
    found["max"] = np.where(is_present, most + 0.0, np.nan)
    found["min"] = np.where(is_present, least + 0.0, np.nan)
    found["max_abs"] = np.where(is_present, np.maximum(np.abs(most), np.abs(least)), np.nan)
