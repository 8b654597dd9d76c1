"""`.npy`: a folder of batches for a model with one input, a folder an input, or one file of samples."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from overflow_fixer.calibration.check import check_names
from overflow_fixer.calibration.listing import Listing
from overflow_fixer.calibration.npy_stream import read_array, read_header, read_rows
from overflow_fixer.calibration.options import CalibrationOptions
from overflow_fixer.calibration.samples import Cut, name_heeded, name_samples, plan_cuts
from overflow_fixer.calibration.source import Part, Source, open_whole_files, reading
from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import Array, Feeds, InputSpec

SUFFIXES: tuple[str, ...] = (".npy",)
_EXPECTED = "a whole .npy file of a plain array, as numpy.save writes it"


def open_source(listing: Listing, inputs: Sequence[InputSpec], options: CalibrationOptions) -> Source:
    """Files of one name in the inputs' folders are one batch. One file has a leading sample axis,
    read in order as a stream that holds one batch (an array in Fortran order is held whole)."""
    if listing.is_nested:
        return _open_folders(listing, inputs)
    name = _only_input(listing, inputs)
    if not listing.is_file:
        return open_whole_files(listing, lambda file: {name: _read(file)})
    with reading(listing.root, _EXPECTED), listing.root.open("rb") as file:
        shapes = {name: read_header(file, _size(listing.root)).shape}
    cut = plan_cuts(listing.root, shapes, inputs, options.batch_size)[name]
    parts = name_samples(listing.root, cut)
    return Source(parts, partial(_read_samples, listing.root, name, cut), heeds=name_heeded([cut]))


def _read(path: Path) -> Array:
    with reading(path, _EXPECTED), path.open("rb") as file:
        return read_array(file, _size(path))


def _size(path: Path) -> int:
    return path.stat().st_size


def _read_samples(path: Path, name: str, cut: Cut) -> Iterator[Feeds]:
    with reading(path, _EXPECTED):
        file = path.open("rb")
    with file:
        rows = read_rows(file, _size(path), cut.counts)
        for _ in cut.counts:
            with reading(path, _EXPECTED):
                batch = cut.shape_batch(next(rows))
            yield {name: batch}


def _only_input(listing: Listing, inputs: Sequence[InputSpec]) -> str:
    if len(inputs) == 1:
        return inputs[0].name
    folders = ", ".join(f"{folder_name(spec.name)}/" for spec in inputs)
    raise CalibrationError(
        f"{listing.root}: a .npy file holds one array ({listing.files[0].name} is the first), but the model has "
        f"{len(inputs)} inputs. Expected a folder for each input with files of the same names: {folders}. Move the "
        "files into such folders, or write .npz files."
    )


def folder_name(name: str) -> str:
    """An input's name with `_` for the characters that a file system refuses."""
    return re.sub(r'[/\\:*?"<>|\x00-\x1f]', "_", name)


def _open_folders(listing: Listing, inputs: Sequence[InputSpec]) -> Source:
    by_folder: dict[str, dict[str, Path]] = {}
    for file in listing.files:
        by_folder.setdefault(file.parent.name, {})[file.name] = file
    by_input = {_match(listing, folder, inputs): files for folder, files in by_folder.items()}
    check_names(str(listing.root), by_input, inputs)
    _check_same_files(listing, by_input)
    names = list(by_input[inputs[0].name])
    batches = [{spec.name: by_input[spec.name][name] for spec in inputs} for name in names]
    parts = tuple(Part(name, tuple(files.values())) for name, files in zip(names, batches, strict=True))
    return Source(parts, lambda: ({name: _read(file) for name, file in files.items()} for files in batches))


def _match(listing: Listing, folder: str, inputs: Sequence[InputSpec]) -> str:
    """The input whose folder this is; the folder's own name where there is none."""
    names = [spec.name for spec in inputs if folder in (spec.name, folder_name(spec.name))]
    if len(names) > 1:
        raise CalibrationError(
            f"{listing.root / folder} could be the folder of any of the inputs {names}. Expected a name that tells them "
            "apart. Write .npz files, whose keys are the inputs' own names."
        )
    return names[0] if names else folder


def _check_same_files(listing: Listing, by_input: dict[str, dict[str, Path]]) -> None:
    every = {name for files in by_input.values() for name in files}
    for name, files in by_input.items():
        missing = sorted(every - set(files))
        if missing:
            raise CalibrationError(
                f"{listing.root}: input {name!r} has no {missing[0]} ({len(missing)} of {len(every)} are missing), which "
                "another input has. Expected files of the same names in every input's folder, since those of one "
                "name are one batch. Add what is missing, or remove the others."
            )
