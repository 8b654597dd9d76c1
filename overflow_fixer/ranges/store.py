"""Recordings to HDF5 and back. A file appears whole or not at all, finished or as a checkpoint.

Layout, one row a tensor: the datasets `tensor` (utf-8), `max_abs`, `min`, `max`,
`min_nonzero_abs` (float64), `element_count`, `nan_count`, `inf_count`, `over_fp16_count`,
`worst_batch` (int64); the group `batches` with `name` (utf-8) and `max_abs` (float32 [tensor, batch]),
the batches done; the group `inner`, one row a value inside a node, with `node`, `quantity` (utf-8), `is_bound`
(bool), the same statistics, `worst_batch` and `batches/max_abs`; the group `parts`, one row a scan that was merged
(a scan's own file has one), with `calibration`, `fingerprint`, `file` (utf-8), `synthetic` (bool) and `batch_count`
(int64); the group `not_observed` with `tensor` and `reason`;
the dataset `fractional` (utf-8), the float inputs in which numbers were seen that are not whole; what the scan depends on in the
file's attributes. In front of all of it stands its checksum: see integrity.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from overflow_fixer.annotations import held_to_types
from overflow_fixer.errors import ModelError, PlanError
from overflow_fixer.files import UTF8, open_hdf5, remove_abandoned, replace_file
from overflow_fixer.host.shortages import tells_of_memory
from overflow_fixer.plurals import say_plural
from overflow_fixer.ranges.integrity import BLOCK_BYTES, check_content, check_values, sign
from overflow_fixer.ranges.recording import FORMAT_VERSION, Inner, Part, Recording, ScanKey
from overflow_fixer.ranges.summaries import SUMMARY, SUMMARY_FIELDS
from overflow_fixer.records import RangeTable

T = TypeVar("T")
_PART_TYPES = {
    "calibration": str,
    "synthetic": bool,
    "fingerprint": str,
    "batch_count": np.int64,
    "file": str,
}
_NEWER = ("provider", "small_values", "custom_ops")
"""What files of older formats do not say."""


@dataclass(frozen=True)
class Header:
    """What a ranges file of any format says of itself."""

    key: ScanKey
    batches_done: int
    part_count: int
    model_path: str
    """Where the model lay, absolute; "" where nothing was noted of it."""

    @property
    def is_finished(self) -> bool:
        return self.batches_done == self.key.batches_total


def save_recording(recording: Recording, path: Path) -> None:
    """Write a recording to `path`, whole or not at all.

    The file is made in memory: HDF5 itself cannot recover from a full disk. Raises OutputError where
    `path` cannot be written, ModelError for a tensor name that HDF5 cannot hold.
    """
    _check_names(recording)
    buffer = io.BytesIO()
    with open_hdf5(buffer, "w", userblock_size=BLOCK_BYTES) as file:
        _write(file, recording)
    buffer.seek(0)
    buffer.write(sign(buffer.getbuffer()))
    with replace_file(path, buffer.getbuffer().nbytes) as temporary:
        temporary.write_bytes(buffer.getbuffer())
    remove_abandoned(path.parent)


@held_to_types
def load_ranges(path: Path | str) -> RangeTable:
    """Read the table of a finished scan or of a merge.

    Raises PlanError for a file that is not there, not HDF5, of another layout, or unfinished.
    """
    recording = load_recording(Path(path))
    check_finished(recording, Path(path))
    return recording.table()


def check_finished(recording: Recording, path: Path) -> None:
    """Raise PlanError for the recording of a scan that was stopped."""
    if not recording.is_finished:
        raise PlanError(
            f"{path} holds {len(recording.batch_names)} of {say_plural(recording.key.batches_total, 'batch', 'batches')}: its scan was "
            "stopped. Expected the ranges of all of them. Run the same scan again; it goes on where it stopped."
        )


def load_recording(path: Path) -> Recording:
    """Read a scan, finished or not. Raises PlanError for what is not one of this format, or not as it was
    written, MemoryError where there is no room for it.
    """
    return _load(path, _read)


def load_header(path: Path) -> Header:
    """Read what a ranges file says of itself, of whatever format. Raises PlanError for what is no such file."""
    return _load(path, _read_header)


def _load(path: Path, read: Callable[[Any], T]) -> T:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlanError(
            f"{path} cannot be read: {error.strerror or error}. Expected a ranges file, as a scan writes it. {_advise(error)}."
        ) from error
    try:
        check_content(data)
        with open_hdf5(io.BytesIO(data), "r") as file:
            return read(file)
    except Exception as error:  # h5py raises many unrelated types for a foreign or damaged file
        if tells_of_memory(error):
            raise MemoryError(str(error)) from error
        raise PlanError(
            f"{path} ({len(data)} bytes) is not a ranges file of format {FORMAT_VERSION}: {error}. Expected the HDF5 "
            "file that a scan by this version writes. Scan the model again, with --fresh where the file may be replaced."
        ) from error


def _advise(error: OSError) -> str:
    is_denied = isinstance(error, PermissionError)
    return (
        "Change its permissions (chmod)"
        if is_denied
        else "Check the path (--ranges names another), or scan the model first"
    )


def _write(file: Any, recording: Recording) -> None:
    for field in fields(recording.key):
        file.attrs[field.name] = getattr(recording.key, field.name)
    file.attrs["calibration"], file.attrs["synthetic"] = recording.calibration, recording.synthetic
    file.attrs["model_stamp"], file.attrs["model_path"] = recording.model_stamp, recording.model_path
    file.attrs["batches_done"] = len(recording.batch_names)
    file.attrs["part_count"] = len(recording.parts)
    count = len(recording.tensors)
    _write_strings(file, "tensor", recording.tensors)
    _write_rows(file, recording, slice(count))
    inner = file.create_group("inner")
    _write_strings(inner, "node", [one.node for one in recording.inner])
    _write_strings(inner, "quantity", [one.quantity for one in recording.inner])
    inner["is_bound"] = np.array([one.is_bound for one in recording.inner], np.bool_)
    _write_rows(inner, recording, slice(count, None))
    _write_strings(file, "batches/name", recording.batch_names)
    for name, kind in _PART_TYPES.items():
        column = [getattr(part, name) for part in recording.parts]
        if kind is str:
            _write_strings(file, f"parts/{name}", column)
        else:
            file[f"parts/{name}"] = np.array(column, kind)
    _write_strings(file, "fractional", sorted(recording.fractional))
    _write_strings(file, "not_observed/tensor", list(recording.not_observed))
    _write_strings(file, "not_observed/reason", list(recording.not_observed.values()))


def _write_rows(group: Any, recording: Recording, rows: slice) -> None:
    for name in SUMMARY_FIELDS:
        group[name] = recording.totals[name][rows]
    group["worst_batch"] = recording.worst_batch[rows]
    group["batches/max_abs"] = recording.batch_max_abs[rows]


def _write_strings(group: Any, name: str, values: Sequence[str]) -> None:
    group.create_dataset(name, data=np.array(values, dtype=object), dtype=UTF8)


def _read_header(file: Any) -> Header:
    given = [field for field in fields(ScanKey) if field.name not in _NEWER or field.name in file.attrs]
    key = ScanKey(**{field.name: _attribute(file, field.name) for field in given})
    part_count, model_path = int(file.attrs.get("part_count", 1)), str(file.attrs.get("model_path", ""))
    return Header(key, _attribute(file, "batches_done"), part_count, model_path)


def _read(file: Any) -> Recording:
    header = _read_header(file)
    if header.key.format_version != FORMAT_VERSION:
        raise ValueError(f"it is of format {header.key.format_version}")
    if file.userblock_size != BLOCK_BYTES:
        raise ValueError("it has no checksum in front of it")
    tensors, inner = _strings(file, "tensor"), _read_inner(file["inner"])
    outer, inside = _read_rows(file, len(tensors)), _read_rows(file["inner"], len(inner))
    totals, worst_batch, batch_max_abs = (np.concatenate(pair) for pair in zip(outer, inside, strict=True))
    recording = Recording(
        key=header.key,
        parts=_read_parts(file),
        tensors=tensors,
        inner=inner,
        not_observed=dict(
            zip(_strings(file, "not_observed/tensor"), _strings(file, "not_observed/reason"), strict=True)
        ),
        totals=totals,
        worst_batch=worst_batch,
        batch_names=_strings(file, "batches/name"),
        batch_max_abs=batch_max_abs,
        fractional=frozenset(_strings(file, "fractional")),
        model_stamp=str(file.attrs.get("model_stamp", "")),
        model_path=header.model_path,
    )
    _check_counts(recording, header)
    check_values(recording)
    return recording


def _read_inner(group: Any) -> tuple[Inner, ...]:
    is_bound = _column(group, "is_bound", np.bool_).tolist()
    return tuple(map(Inner, _strings(group, "node"), _strings(group, "quantity"), is_bound))


def _read_rows(group: Any, count: int) -> tuple[Any, Any, Any]:
    """The summaries [row], worst_batch [row] and max_abs [row, batch] of a group."""
    totals = np.empty(count, SUMMARY)
    for name in SUMMARY_FIELDS:
        totals[name] = _of_length(_column(group, name, SUMMARY[name]), count, name)
    worst_batch = _of_length(_column(group, "worst_batch", np.int64), count, "worst_batch")
    return totals, worst_batch, _column(group, "batches/max_abs", np.float32)


def _read_parts(file: Any) -> tuple[Part, ...]:
    columns = {
        name: _strings(file, f"parts/{name}")
        if kind is str
        else _column(file, f"parts/{name}", kind).tolist()
        for name, kind in _PART_TYPES.items()
    }
    return tuple(
        Part(**dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)
    )


def _check_counts(recording: Recording, header: Header) -> None:
    """Raise ValueError for a file whose pieces do not fit each other."""
    rows, batches = len(recording.names), len(recording.batch_names)
    shape = recording.batch_max_abs.shape
    in_parts = sum(part.batch_count for part in recording.parts)
    if shape != (rows, batches) or header.batches_done != batches or in_parts != batches:
        raise ValueError(
            f"{rows} rows and {batches} batches, but values of shape {shape}, {header.batches_done} batches done "
            f"and {in_parts} in its parts"
        )


def _strings(file: Any, name: str) -> tuple[str, ...]:
    return tuple(file[name].asstr()[:])


def _column(file: Any, name: str, dtype: Any) -> Any:
    return file[name][()].astype(dtype, casting="safe")


def _of_length(column: Any, length: int, name: str) -> Any:
    if column.shape != (length,):
        raise ValueError(f"{length} tensors, but {name} of shape {column.shape}")
    return column


def _attribute(file: Any, name: str) -> Any:
    """An attribute as a plain Python value."""
    if name not in file.attrs:
        raise ValueError(f"it has no attribute {name!r}")
    value = file.attrs[name]
    return value.item() if isinstance(value, np.generic) else value


def _check_names(recording: Recording) -> None:
    odd = next((name for name in (*recording.names, *recording.not_observed) if "\0" in name), None)
    if odd is not None:
        raise ModelError(
            f"The model has a tensor or node named {odd!r}, with a NUL character in it. Expected names of printable text, "
            "which is all that an HDF5 file can hold. Rename it."
        )
