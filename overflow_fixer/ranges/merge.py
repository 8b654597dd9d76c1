"""Scans of parts of the data, made on different machines, joined into one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path

import numpy as np

from overflow_fixer.annotations import held_to_types
from overflow_fixer.errors import PlanError
from overflow_fixer.plurals import say_plural
from overflow_fixer.ranges.recording import Part, Recording, ScanKey, fold, list_differences
from overflow_fixer.ranges.resumption import Existing, find_begun
from overflow_fixer.ranges.store import check_finished, load_recording, save_recording
from overflow_fixer.records import RangeTable

_OF_THE_DATA = ("calibration_fingerprint", "batches_total")
"""What the parts of a merge need not have in common."""


@dataclass(frozen=True, eq=False)
class _Given:
    """A part, and the file of those named that it came in: its own, or a merge."""

    file: Path
    part: Part

    def __str__(self) -> str:
        is_own = str(self.file) == self.part.file
        return self.part.file if is_own else f"{self.file} (with {self.part.file} in it)"


@held_to_types
def merge_ranges(
    files: Sequence[Path | str], store: Path | str | None = None, *, existing: Existing = "keep"
) -> RangeTable:
    """Join the finished scans in `files`, scans' own files or merges, into one table.

    Exact and associative: the batches stand in the order of the files, and any grouping gives the same
    table, bit for bit. With `store` it is written there with its parts; `existing` says what may
    become of another file there, see resumption.Existing.

    Raises PlanError for a file that is no finished scan, for scans of different models, settings or
    versions, for batches that are in two of them, and for a file in the way; OutputError when `store`
    cannot be written; ConfigError for another word than `existing` may be.
    """
    if len(files) < 2:
        raise PlanError(
            f"There is nothing to merge in {say_plural(len(files), 'ranges file')}. Expected two or more, of scans of "
            "different parts of the data. Name them all."
        )
    paths = [Path(file) for file in files]
    recordings = [_load_part(path) for path in paths]
    _check_same_scan(paths, recordings)
    merged = join(recordings)
    _check_no_batch_twice(
        merged, [path for path, one in zip(paths, recordings, strict=True) for _ in one.parts]
    )
    if store is not None:
        find_begun(Path(store), merged.key, existing)
        save_recording(merged, Path(store))
    return merged.table()


def join(recordings: Sequence[Recording]) -> Recording:
    """The batches of all recordings, one recording after the other. They must be of one model and settings."""
    first = recordings[0]
    totals, worst_batch = first.totals, first.worst_batch
    starts = accumulate(len(recording.batch_names) for recording in recordings)
    for start, more in zip(starts, recordings[1:], strict=False):
        totals, worst_batch = fold(totals, worst_batch, more.totals, more.worst_batch + start)
    parts = tuple(part for recording in recordings for part in recording.parts)
    names = tuple(name for recording in recordings for name in recording.batch_names)
    return replace(
        first,
        key=_join_keys(first.key, parts),
        parts=parts,
        model_path=next(filter(None, (recording.model_path for recording in recordings)), ""),
        totals=totals,
        worst_batch=worst_batch,
        batch_names=names,
        fractional=frozenset().union(*(recording.fractional for recording in recordings)),
        batch_max_abs=np.concatenate([recording.batch_max_abs for recording in recordings], axis=1),
    )


def _join_keys(key: ScanKey, parts: Sequence[Part]) -> ScanKey:
    fingerprints = json.dumps([part.fingerprint for part in parts])
    return replace(
        key,
        calibration_fingerprint=hashlib.sha256(fingerprints.encode()).hexdigest(),
        batches_total=sum(part.batch_count for part in parts),
    )


def _load_part(path: Path) -> Recording:
    """A finished recording; the part of a scan's own file is told by that file's name from now on."""
    recording = load_recording(path)
    check_finished(recording, path)
    return replace(
        recording, parts=tuple(replace(part, file=part.file or str(path)) for part in recording.parts)
    )


def _check_same_scan(files: Sequence[Path], recordings: Sequence[Recording]) -> None:
    first = recordings[0]
    for path, other in zip(files, recordings, strict=True):
        places = (f"in {files[0]}", f"in {path}")
        differences = list_differences(first.key, other.key, places, _OF_THE_DATA)
        if first.names != other.names:
            differences.append("the tensors observed")
        if differences:
            raise PlanError(
                f"{files[0]} and {path} cannot be merged: they differ in {'; '.join(differences)}. Expected scans of "
                "the same model file with the same settings and versions, so that the merge is what one scan of all the "
                "data would give. Scan that part again with what the others had."
            )


def _check_no_batch_twice(merged: Recording, files: Sequence[Path]) -> None:
    """Raise PlanError where two parts, which came in `files`, are of the same data, or have a batch in common.

    A batch is the same where it has the same name and the same max |x| in every tensor.
    """
    scans: dict[str, _Given] = {}
    batches: dict[tuple[str, bytes], _Given] = {}
    for path, (part, identities) in zip(files, _identify_batches(merged), strict=True):
        given = _Given(path, part)
        other = scans.setdefault(part.fingerprint, given)
        if part.fingerprint and other is not given:
            raise _found_twice(other, given, "are scans of the same data")
        for identity in identities:
            if identity in batches:
                raise _found_twice(batches[identity], given, f"both hold batch {identity[0]}")
        batches |= dict.fromkeys(identities, given)


def _identify_batches(merged: Recording) -> Iterator[tuple[Part, list[tuple[str, bytes]]]]:
    """Each part with the name and the maxima of each of its batches; without a tensor, nothing tells batches."""
    batches = iter(zip(merged.batch_names, merged.batch_max_abs.T, strict=True))
    for part in merged.parts:
        own = [(name, maxima.tobytes()) for name, maxima in islice(batches, part.batch_count)]
        yield part, own if merged.tensors else []


def _found_twice(first: _Given, second: _Given, what: str) -> PlanError:
    return PlanError(
        f"{first} and {second} {what} (of {first.part.calibration} and {second.part.calibration}). Expected every batch "
        "in one file only, or it would be counted twice. Leave one of the files out, or scan its data without what is "
        "in the other."
    )
