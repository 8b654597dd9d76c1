"""Batches with copies that are changed a little: what passes by the luck of its rounding fails on one of those."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from overflow_fixer.records import Array, Batch, CalibrationSet, Feeds

CHANGE = 2.0**-10
"""The most by which a value is changed, relatively: a step of FP16, twice what rounding to it takes."""


@dataclass(frozen=True, eq=False)
class JitteredBatches:
    """A CalibrationSet: each batch of `original`, followed by `copies` of it.

    In a copy each float is x (1 + u), u drawn uniformly from [-CHANGE, CHANGE), rounded to its type. Whole numbers stay as
    they are, for they may count, name or mask something; so do NaN and infinities, and bfloat16 and float8. A batch in
    which nothing would change has no copies. The same data have the same copies on each walk.
    """

    original: CalibrationSet
    copies: int

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
        """Of the batches and the most copies that they can have."""
        return len(self.original) * (1 + self.copies)

    def __iter__(self) -> Iterator[Batch]:
        for index, batch in enumerate(self.original):
            yield batch
            for copy in range(1, self.copies + 1):
                feeds = _change_all(batch.feeds, np.random.default_rng([index, copy]))
                if all(feeds[name] is array for name, array in batch.feeds.items()):
                    break
                yield Batch(f"{batch.name} (changed {copy})", feeds, is_changed=True)


def jitter(calibration: CalibrationSet, copies: int) -> CalibrationSet:
    """The batches with `copies` changed copies of each; themselves for 0."""
    return JitteredBatches(calibration, copies) if copies else calibration


def _change_all(feeds: Feeds, generator: np.random.Generator) -> Feeds:
    return {name: _change(array, generator) for name, array in feeds.items()}


def _change(array: Array, generator: np.random.Generator) -> Array:
    """The array itself where nothing in it may change."""
    if array.dtype.kind != "f":
        return array
    may_change = np.isfinite(array) & (np.trunc(array) != array)
    if not may_change.any():
        return array
    factors = 1 + generator.uniform(-CHANGE, CHANGE, array.shape)
    return np.asarray(np.where(may_change, array * factors, array)).astype(array.dtype)
