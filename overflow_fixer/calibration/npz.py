"""`.npz`: a folder of files with one batch each, or one file with a leading sample axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO
from zipfile import ZipFile, ZipInfo

from overflow_fixer.calibration.listing import Listing
from overflow_fixer.calibration.npy_stream import read_array, read_header, read_rows
from overflow_fixer.calibration.options import CalibrationOptions
from overflow_fixer.calibration.samples import Cut, name_heeded, name_samples, plan_cuts
from overflow_fixer.calibration.source import Source, open_whole_files, reading
from overflow_fixer.records import Array, Feeds, InputSpec

SUFFIXES: tuple[str, ...] = (".npz",)
_EXPECTED = "a whole .npz file of plain arrays, as numpy.savez writes it"


def open_source(listing: Listing, inputs: Sequence[InputSpec], options: CalibrationOptions) -> Source:
    """Keys are input names. Samples are read in order as a stream, compressed or not, so that a walk
    decompresses each array once and holds one batch (an array in Fortran order is held whole)."""
    if not listing.is_file:
        return open_whole_files(listing, _read_batch)
    cuts = plan_cuts(listing.root, _read_shapes(listing.root), inputs, options.batch_size)
    parts = name_samples(listing.root, cuts[inputs[0].name])
    return Source(parts, partial(_read_samples, listing.root, cuts), heeds=name_heeded(cuts.values()))


def _read_batch(path: Path) -> Feeds:
    with reading(path, _EXPECTED), ZipFile(path) as archive:
        return {name: _read_member(archive, member) for name, member in _members(archive).items()}


def _read_member(archive: ZipFile, member: ZipInfo) -> Array:
    with archive.open(member) as file:
        return read_array(file, member.file_size)


def _read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    shapes = {}
    with reading(path, _EXPECTED), ZipFile(path) as archive:
        for name, member in _members(archive).items():
            with archive.open(member) as file:
                shapes[name] = read_header(file, member.file_size).shape
    return shapes


def _read_samples(path: Path, cuts: Mapping[str, Cut]) -> Iterator[Feeds]:
    with ExitStack() as stack:
        with reading(path, _EXPECTED):
            archive = stack.enter_context(ZipFile(path))
            members = _members(archive)
            columns = {
                name: _cut_member(stack.enter_context(archive.open(members[name])), members[name], cut)
                for name, cut in cuts.items()
            }
        for _ in next(iter(cuts.values())).counts:
            with reading(path, _EXPECTED):
                feeds = {name: next(column) for name, column in columns.items()}
            yield feeds


def _cut_member(file: IO[bytes], member: ZipInfo, cut: Cut) -> Iterator[Array]:
    return map(cut.shape_batch, read_rows(file, member.file_size, cut.counts))


def _members(archive: ZipFile) -> dict[str, ZipInfo]:
    """The archive's members by array name. Raises ValueError where two have one name."""
    found: dict[str, ZipInfo] = {}
    for member in archive.infolist():
        name = member.filename.removesuffix(".npy")
        if name in found:
            raise ValueError(
                f"the array {name!r} is in it twice, as {found[name].filename} and {member.filename}"
            )
        found[name] = member
    return found
