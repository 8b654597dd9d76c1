"""RangeTable to HDF5 and back. A file appears whole or not at all, finished or as a checkpoint.

Layout (format 1), one row a tensor: the datasets `tensor` (utf-8), `max_abs`, `min`, `max`,
`min_nonzero_abs` (float64), `element_count`, `nan_count`, `inf_count`, `over_fp16_count`,
`worst_batch` (int64); the group `batches` with `name` (utf-8) and `max_abs` (float32 [tensor, batch]),
the batches done; the group `not_observed` with `tensor` and `reason`; what the scan depends on in the
file's attributes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import onnxruntime

from overflow_fixer import __version__
from overflow_fixer.errors import ModelError, PlanError
from overflow_fixer.files import replace_file
from overflow_fixer.ranges.summaries import SUMMARY, SUMMARY_FIELDS
from overflow_fixer.records import Range, RangeTable

FORMAT_VERSION = 1
_COLUMNS: dict[str, Any] = {name: SUMMARY[name] for name in SUMMARY_FIELDS} | {"worst_batch": np.int64}


@dataclass(frozen=True)
class ScanKey:
    """What a scan depends on: two scans with equal keys give equal ranges, bit for bit."""

    model_sha256: str
    calibration_fingerprint: str
    observe: str
    batches_total: int
    tool_version: str = __version__
    onnxruntime_version: str = onnxruntime.__version__
    format_version: int = FORMAT_VERSION


def save_ranges(table: RangeTable, path: Path, key: ScanKey | None = None) -> None:
    """Write a table to `path`, whole or not at all.

    `key` names what the scan depended on, and may say that more batches than the table has are to
    come; without it, the file is a finished one that no scan goes on from. Raises OutputError where
    `path` cannot be written, ModelError for a tensor name that HDF5 cannot hold.
    """
    _check_names(table)
    known = key or ScanKey(table.model_sha256, "", "", len(table.batch_names))
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        _write(file, table, known)
    with replace_file(path) as temporary:
        temporary.write_bytes(buffer.getbuffer())


def load_ranges(path: Path) -> RangeTable:
    """Read the table of a finished scan.

    Raises PlanError for a file that is not there, not HDF5, of another layout, or unfinished.
    """
    table, key = load_scan(path)
    if len(table.batch_names) < key.batches_total:
        raise PlanError(
            f"{path} holds {len(table.batch_names)} of {key.batches_total} batches: its scan was stopped. Expected "
            "the ranges of all of them. Run the same scan again; it goes on where it stopped."
        )
    return table


def load_scan(path: Path) -> tuple[RangeTable, ScanKey]:
    """Read a scan, finished or not. Raises PlanError for what is not one."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlanError(
            f"{path} cannot be read: {error.strerror or error}. Expected a ranges file, as a scan writes it. Check "
            "the path, or scan the model first."
        ) from error
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            return _read(file)
    except Exception as error:  # h5py raises many unrelated types for a foreign or damaged file
        raise PlanError(
            f"{path} ({len(data)} bytes) is not a ranges file of format {FORMAT_VERSION}: {error}. Expected the HDF5 "
            "file that a scan by this version writes. Scan the model again."
        ) from error


def _write(file: Any, table: RangeTable, key: ScanKey) -> None:
    for field in fields(key):
        file.attrs[field.name] = getattr(key, field.name)
    file.attrs["calibration"] = table.calibration
    file.attrs["synthetic"] = table.synthetic
    file.attrs["batches_done"] = len(table.batch_names)
    _write_strings(file, "tensor", [found.tensor for found in table.ranges])
    for name, dtype in _COLUMNS.items():
        file[name] = np.array([getattr(found, name) for found in table.ranges], dtype)
    batches = file.create_group("batches")
    _write_strings(batches, "name", table.batch_names)
    packed = {"compression": "gzip", "compression_opts": 1} if table.batch_max_abs.size else {}
    batches.create_dataset("max_abs", data=table.batch_max_abs, dtype=np.float32, **packed)
    skipped = file.create_group("not_observed")
    _write_strings(skipped, "tensor", list(table.not_observed))
    _write_strings(skipped, "reason", list(table.not_observed.values()))


def _write_strings(group: Any, name: str, values: Sequence[str]) -> None:
    data = np.array(values, dtype=object)
    group.create_dataset(name, data=data, dtype=h5py.string_dtype("utf-8"))


def _read(file: Any) -> tuple[RangeTable, ScanKey]:
    key = ScanKey(**{field.name: _attribute(file, field.name) for field in fields(ScanKey)})
    if key.format_version != FORMAT_VERSION:
        raise ValueError(f"it is of format {key.format_version}")
    names = tuple(file["batches/name"].asstr()[:])
    matrix = file["batches/max_abs"][:].astype(np.float32, copy=False)
    ranges = tuple(_read_ranges(file))
    if matrix.shape != (len(ranges), len(names)) or _attribute(file, "batches_done") != len(names):
        raise ValueError(
            f"{len(ranges)} tensors and {len(names)} batches, but values of shape {matrix.shape}"
        )
    skipped = dict(
        zip(file["not_observed/tensor"].asstr()[:], file["not_observed/reason"].asstr()[:], strict=True)
    )
    calibration, synthetic = _attribute(file, "calibration"), bool(_attribute(file, "synthetic"))
    table = RangeTable(key.model_sha256, calibration, synthetic, ranges, names, matrix, skipped)
    return table, key


def _read_ranges(file: Any) -> Iterator[Range]:
    columns = [file[name][:].astype(dtype, casting="safe").tolist() for name, dtype in _COLUMNS.items()]
    for tensor, *values in zip(file["tensor"].asstr()[:], *columns, strict=True):
        yield Range(tensor, *values)


def _attribute(file: Any, name: str) -> Any:
    """An attribute as a plain Python value."""
    if name not in file.attrs:
        raise ValueError(f"it has no attribute {name!r}")
    value = file.attrs[name]
    return value.item() if isinstance(value, np.generic) else value


def _check_names(table: RangeTable) -> None:
    tensors = [found.tensor for found in table.ranges] + list(table.not_observed)
    odd = next((name for name in tensors if "\0" in name), None)
    if odd is not None:
        raise ModelError(
            f"The model has a tensor named {odd!r}, with a NUL character in it. Expected names of printable text, "
            "which is all that an HDF5 file can hold. Rename the tensor."
        )
