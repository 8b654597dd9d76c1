"""Whether a recording that was read is the one that was written."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict

import numpy as np

from overflow_fixer.ranges.recording import Recording


def checksum(recording: Recording) -> str:
    """The SHA-256 of all that a recording holds, in hexadecimal; of the columns the bytes, NaN and all."""
    told = {
        "key": asdict(recording.key),
        "parts": [asdict(part) for part in recording.parts],
        "tensors": recording.tensors,
        "inner": [asdict(one) for one in recording.inner],
        "not_observed": list(recording.not_observed.items()),
        "batch_names": recording.batch_names,
        "model_stamp": recording.model_stamp,
        "fractional": sorted(recording.fractional),
    }
    digest = hashlib.sha256(json.dumps(told).encode())
    for column in (recording.totals, recording.worst_batch, recording.batch_max_abs):
        digest.update(np.ascontiguousarray(column).view(np.uint8).data)
    return digest.hexdigest()


def check_values(recording: Recording) -> None:
    """Raise ValueError for what no scan records: a tensor twice, and maxima that those of the batches contradict."""
    if len(set(recording.tensors)) < len(recording.tensors):
        raise ValueError("it has a tensor twice")
    worst, count = recording.worst_batch, len(recording.batch_names)
    if ((worst < -1) | (worst >= count)).any():
        raise ValueError(f"it names a batch as the worst that is none of its {count}")
    with np.errstate(over="ignore"):
        most = recording.totals["max_abs"].astype(np.float32)
    of_batches = np.fmax.reduce(recording.batch_max_abs, axis=1, initial=np.nan)
    if (most < 0).any() or not np.array_equal(most, of_batches, equal_nan=True):
        raise ValueError("its max_abs are not the largest of batches/max_abs")
