"""`.h5`: one file with a leading sample axis, or a folder of files with one batch each."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from overflow_fixer.calibration.listing import Listing
from overflow_fixer.calibration.options import CalibrationOptions
from overflow_fixer.calibration.samples import Cut, name_heeded, name_samples, plan_cuts
from overflow_fixer.calibration.source import Source, open_whole_files, reading
from overflow_fixer.files import open_hdf5
from overflow_fixer.records import Array, Feeds, InputSpec

SUFFIXES: tuple[str, ...] = (".h5", ".hdf5")
_EXPECTED = "a whole HDF5 file with one dataset of plain numbers for each input"


def open_source(listing: Listing, inputs: Sequence[InputSpec], options: CalibrationOptions) -> Source:
    """Datasets are named after inputs; `a/b` is dataset b of group a. Samples are read as slices."""
    if not listing.is_file:
        return open_whole_files(listing, partial(_read_batch, inputs))
    with reading(listing.root, _EXPECTED), open_hdf5(listing.root, "r") as file:
        shapes = {name: data.shape for name, data in _datasets(file, inputs).items()}
    cuts = plan_cuts(listing.root, shapes, inputs, options.batch_size)
    parts = name_samples(listing.root, cuts[inputs[0].name])
    return Source(parts, partial(_read_samples, listing.root, inputs, cuts), heeds=name_heeded(cuts.values()))


def _read_batch(inputs: Sequence[InputSpec], path: Path) -> Feeds:
    with reading(path, _EXPECTED), open_hdf5(path, "r") as file:
        return {name: np.asarray(data[()]) for name, data in _datasets(file, inputs).items()}


def _read_samples(path: Path, inputs: Sequence[InputSpec], cuts: Mapping[str, Cut]) -> Iterator[Feeds]:
    for index in range(len(next(iter(cuts.values())).counts)):
        with reading(path, _EXPECTED), open_hdf5(path, "r") as file:
            datasets = _datasets(file, inputs)
            feeds = {name: _read_rows(datasets[name], cut, index) for name, cut in cuts.items()}
        yield feeds


def _read_rows(dataset: Any, cut: Cut, index: int) -> Array:
    start = index * cut.rows
    rows = dataset[start : start + cut.rows] if dataset.shape else dataset[()][np.newaxis]
    return cut.shape_batch(np.asarray(rows))


def _datasets(file: Any, inputs: Sequence[InputSpec]) -> dict[str, Any]:
    """Every dataset of the file, under the input's name where it is one's."""
    names = {_dataset_path(spec.name): spec.name for spec in inputs}
    paths: list[str] = []
    file.visit_links(paths.append)  # visititems tells one name of a dataset that has several
    items = {path: _open_own(file, path) for path in paths}
    return {
        names.get(path, path): _plain(path, item) for path, item in items.items() if hasattr(item, "shape")
    }


def _open_own(file: Any, path: str) -> Any:
    """What the file itself has of that name. A link to another file would be read unseen by the fingerprint."""
    target = getattr(file.get(path, getlink=True), "path", None)
    if target is not None:
        raise ValueError(f"its {path!r} is a link to {target!r}, which is not followed")
    return file[path]


def _dataset_path(name: str) -> str:
    return posixpath.normpath(name).strip("/")


def _plain(path: str, dataset: Any) -> Any:
    if dataset.dtype.hasobject or dataset.shape is None:
        raise ValueError(f"its dataset {path!r} ({dataset.dtype}) is not an array of numbers")
    # where the sources of a virtual one are not there, HDF5 fills up with zeros
    if dataset.is_virtual or dataset.external:
        raise ValueError(f"its dataset {path!r} (virtual, or stored externally) has its values elsewhere")
    return dataset
