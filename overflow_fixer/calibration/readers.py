"""The formats of calibration data, in a table, and the data at a path opened by the format it is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from overflow_fixer.annotations import held_to_types
from overflow_fixer.calibration import hdf5, images, npy, npz, polygraphy, random
from overflow_fixer.calibration.batches import CheckedBatches, limit_batches
from overflow_fixer.calibration.check import check_feedable
from overflow_fixer.calibration.listing import Listing, list_data
from overflow_fixer.calibration.options import CalibrationOptions
from overflow_fixer.calibration.source import Part, Reader, Source
from overflow_fixer.calibration.unheeded import ALL
from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import CalibrationSet, InputSpec

READERS: Mapping[str, Reader] = {
    "npz": npz,
    "npy": npy,
    "hdf5": hdf5,
    "polygraphy": polygraphy,
    "images": images,
    "random": random,
}

_RANDOM = "random"
_DEFAULTS = CalibrationOptions()


@held_to_types
def open_calibration(
    path: Path | str, inputs: Sequence[InputSpec], options: CalibrationOptions = _DEFAULTS
) -> CalibrationSet:
    """The calibration data at `path`, whose format is found from the names of the files there.

    The string "random" asks for random data; a Path never does, so that a folder of that name can be
    given as Path("random") or "./random". A model without inputs needs no data: it gets one batch
    with no feeds, and `path` is not looked at. Raises CalibrationError here for what can be told
    without reading the data, and while walking for each batch that cannot be read or does not fit.
    """
    inputs = tuple(inputs)
    check_feedable(inputs)
    if not inputs:
        return _no_inputs(options)
    if path == _RANDOM:
        nowhere = Listing(Path(_RANDOM), ())
        contents = limit_batches(random.open_source(nowhere, inputs, options), options.max_batches)
        return CheckedBatches(random.describe(options), True, nowhere, contents, inputs, False)
    listing = list_data(Path(path))
    contents = limit_batches(_find_reader(listing).open_source(listing, inputs, options), options.max_batches)
    return CheckedBatches(str(path), False, listing, contents, inputs, options.allow_nonfinite)


def _no_inputs(options: CalibrationOptions) -> CalibrationSet:
    source = Source((Part("no inputs", ()),), lambda: iter([{}]), heeds=ALL)
    text = "no data: the model has no inputs, and is run once"
    return CheckedBatches(text, False, Listing(Path(), ()), source, (), options.allow_nonfinite)


def _find_reader(listing: Listing) -> Reader:
    """The one format that all files have."""
    found = {_format_of(file): file for file in reversed(listing.files)}
    names = {name: listing.name_of(file) for name, file in found.items()}
    if None in names:
        raise CalibrationError(
            f"{listing.root}: {names[None]} is no calibration data by its name. Expected files that end in {_suffixes()}. "
            "Convert it to one of these, or move it away."
        )
    if len(names) > 1:
        raise CalibrationError(
            f"{listing.root} mixes formats: {', '.join(sorted(names.values()))}. Expected files of one format, so that it "
            "is clear what a batch is. Move the others away."
        )
    return READERS[next(name for name in names if name is not None)]


def _format_of(file: Path) -> str | None:
    suffix = file.suffix.lower()
    return next((name for name, reader in READERS.items() if suffix in reader.SUFFIXES), None)


def _suffixes() -> str:
    return ", ".join(suffix for reader in READERS.values() for suffix in reader.SUFFIXES)
