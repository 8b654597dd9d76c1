"""Batches with copies that are changed a little: what passes by the luck of its rounding fails on one of those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from overflow_fixer.records import Array, Batch, CalibrationSet

CHANGE = 2.0**-10
"""The most by which a value is changed, relatively: a step of FP16, twice what rounding to it takes."""

IsBorne = Callable[[Batch, Batch], bool]
"""Whether the model can be judged on a copy (the second) of a batch."""


@dataclass(frozen=True, eq=False)
class JitteredBatches:
    """A CalibrationSet: each batch of `original`, followed by up to `copies` of it, those that are borne.

    In a copy each float is x (1 + u), u drawn uniformly from [-CHANGE, CHANGE), rounded to its type and kept within the range
    of its input in that batch, so that it stays in the model's domain. Whole numbers stay as they are, for they may count, name
    or mask something; so do NaN and infinities, and bfloat16 and float8. A copy in which nothing changes is left out. The
    same data have the same copies on each walk.
    """

    original: CalibrationSet
    copies: int
    is_borne: IsBorne

    @property
    def source(self) -> str:
        return self.original.source

    @property
    def synthetic(self) -> bool:
        return self.original.synthetic

    @property
    def fingerprint(self) -> str:
        return f"{self.original.fingerprint}, jitter {self.copies}"

    def __len__(self) -> int:
        """Of the batches, without their copies."""
        return len(self.original)

    def __iter__(self) -> Iterator[Batch]:
        for index, batch in enumerate(self.original):
            yield batch
            yield from make_copies(batch, index, self.copies, self.is_borne)


def jitter(calibration: CalibrationSet, copies: int, is_borne: IsBorne) -> CalibrationSet:
    """The batches with up to `copies` changed copies of each; themselves for 0."""
    return JitteredBatches(calibration, copies, is_borne) if copies else calibration


def make_copies(batch: Batch, index: int, count: int, is_borne: IsBorne) -> Iterator[Batch]:
    """Up to `count` changed copies of the batch of that index: see JitteredBatches."""
    for number in range(1, count + 1):
        generator = np.random.default_rng([index, number])
        copy = make_copy(batch, f"{batch.name} (changed {number})", generator, CHANGE)
        if copy is not None and is_borne(batch, copy):
            yield copy


def make_copy(batch: Batch, name: str, generator: np.random.Generator, most: float) -> Batch | None:
    """The batch with each float x as x (1 + u), u drawn from [-most, most): see JitteredBatches. None where nothing changes."""
    feeds = {key: _change(array, generator, most) for key, array in batch.feeds.items()}
    is_other = any(feeds[key] is not array for key, array in batch.feeds.items())
    return Batch(name, feeds, is_changed=True) if is_other else None


def _change(array: Array, generator: np.random.Generator, most: float) -> Array:
    """The array itself where nothing in it changes."""
    if array.dtype.kind != "f":
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        is_finite = np.isfinite(array)
        may_change = is_finite & (np.trunc(array) != array)
        if not may_change.any():
            return array
        changed = np.asarray(generator.random(array.shape, np.float64 if array.itemsize == 8 else np.float32))
        changed *= 2 * most
        changed += 1 - most
        changed *= array
    np.clip(changed, *_range(array, is_finite), out=changed)
    np.copyto(changed, array, where=~may_change)
    rounded = changed.astype(array.dtype, copy=False)
    return array if np.array_equal(rounded, array, equal_nan=True) else rounded


def _range(array: Array, where: Array) -> tuple[float, float]:
    least, most = np.min(array, where=where, initial=np.inf), np.max(array, where=where, initial=-np.inf)
    return float(least), float(most)
