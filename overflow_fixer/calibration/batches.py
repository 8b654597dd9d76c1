"""The set of batches that the stages walk: read one at a time, and checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from overflow_fixer.calibration.check import check_feeds, expected_dtype
from overflow_fixer.calibration.listing import Listing
from overflow_fixer.calibration.source import Part, Source, reading
from overflow_fixer.errors import CalibrationError
from overflow_fixer.files import FileStamp, sha256_of
from overflow_fixer.records import Array, Batch, Feeds, InputSpec


@dataclass(frozen=True, eq=False)
class CheckedBatches:
    """A CalibrationSet over a reader's Source.

    Each walk reads the batches anew, in the same order, one at a time; each is checked when it is
    read, and CalibrationError is raised at the first that does not fit. Arrays are C-contiguous and
    of native byte order. `fingerprint`, a SHA-256 over the batches' names, the settings that change
    values and the content of the files, is computed when it is first asked for; a file whose content changes
    after that raises CalibrationError where it is read.
    """

    source: str
    synthetic: bool
    listing: Listing
    contents: Source
    inputs: tuple[InputSpec, ...]
    allow_nonfinite: bool
    _known: dict[Path, tuple[FileStamp, str]] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.contents.parts)

    def __iter__(self) -> Iterator[Batch]:
        for part, feeds in zip(self.contents.parts, self.contents.read(), strict=False):
            self._check_unchanged(part)
            feeds = {name: _native(array) for name, array in feeds.items()}
            feeds = {**feeds, **_view_ml_dtypes(feeds, self.inputs)}
            place = f"{self.listing.root}, batch {part.name}"
            check_feeds(place, feeds, self.inputs, allow_nonfinite=self.allow_nonfinite)
            yield Batch(part.name, {spec.name: feeds[spec.name] for spec in self.inputs})

    @cached_property
    def fingerprint(self) -> str:
        files = dict.fromkeys(file for part in self.contents.parts for file in part.files)
        self._known.update({file: (FileStamp.of(file), _hash(file)) for file in files})
        hashes = [[self.listing.name_of(file), self._known[file][1]] for file in files]
        names = [part.name for part in self.contents.parts]
        return hashlib.sha256(json.dumps([names, self.contents.settings, hashes]).encode()).hexdigest()

    def _check_unchanged(self, part: Part) -> None:
        """A stamp tells it at once; some file systems of networks give a file other stamps that nothing was written to."""
        for file in part.files:
            if file not in self._known or self._known[file][0].is_current():
                continue
            stamp, content = FileStamp.of(file), self._known[file][1]
            if _hash(file) != content:
                raise CalibrationError(
                    f"{file} changed while it was in use. Expected data that stay as they are until the command has ended. Run "
                    "again when nothing writes to them."
                )
            self._known[file] = stamp, content


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
