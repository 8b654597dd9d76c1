"""The set of batches that the stages walk: read one at a time, and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from overflow_fixer.calibration.check import check_feeds, expected_dtype
from overflow_fixer.calibration.listing import Listing
from overflow_fixer.calibration.source import Source, reading
from overflow_fixer.files import sha256_of
from overflow_fixer.records import Array, Batch, Feeds, InputSpec


@dataclass(frozen=True, eq=False)
class CheckedBatches:
    """A CalibrationSet over a reader's Source.

    Each walk reads the batches anew, in the same order, one at a time; each is checked when it is
    read, and CalibrationError is raised at the first that does not fit. Arrays are C-contiguous and
    of native byte order. `fingerprint`, a SHA-256 over the batches' names, the settings that change
    values and the content of the files, is computed when it is first asked for.
    """

    source: str
    synthetic: bool
    listing: Listing
    contents: Source
    inputs: tuple[InputSpec, ...]
    allow_nonfinite: bool

    def __len__(self) -> int:
        return len(self.contents.parts)

    def __iter__(self) -> Iterator[Batch]:
        for part, feeds in zip(self.contents.parts, self.contents.read(), strict=False):
            feeds = {name: _native(array) for name, array in feeds.items()}
            feeds = {**feeds, **_view_ml_dtypes(feeds, self.inputs)}
            place = f"{self.listing.root}, batch {part.name}"
            check_feeds(place, feeds, self.inputs, allow_nonfinite=self.allow_nonfinite)
            yield Batch(part.name, {spec.name: feeds[spec.name] for spec in self.inputs})

    @cached_property
    def fingerprint(self) -> str:
        files = dict.fromkeys(file for part in self.contents.parts for file in part.files)
        hashes = [[self.listing.name_of(file), _hash(file)] for file in files]
        names = [part.name for part in self.contents.parts]
        return hashlib.sha256(json.dumps([names, self.contents.settings, hashes]).encode()).hexdigest()


def limit_batches(contents: Source, max_batches: int | None) -> Source:
    """The first `max_batches` of a source; all of them for None."""
    return replace(contents, parts=contents.parts[:max_batches])


def _hash(file: Path) -> str:
    with reading(file, "a file that stays as it is while it is used"):
        return sha256_of([file])


def _native(array: Array) -> Array:
    # ONNX Runtime reads big-endian arrays as if they were little-endian, without a word.
    return np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C")


def _view_ml_dtypes(feeds: Feeds, inputs: Sequence[InputSpec]) -> Feeds:
    """The arrays that .npy stores as raw bytes, since its format has no name for bfloat16 and float8."""
    dtypes = {spec.name: expected_dtype(spec) for spec in inputs if spec.name in feeds}
    return {
        name: feeds[name].view(dtype)
        for name, dtype in dtypes.items()
        if dtype.kind == "V" and feeds[name].dtype == np.dtype(f"V{dtype.itemsize}")
    }
