"""Whether a ranges file that is read is the one that was written."""

from __future__ import annotations

import hashlib

import numpy as np

from overflow_fixer.ranges.recording import Recording

BLOCK_BYTES = 512
"""The least that HDF5 leaves to its user in front of a file."""
_MARK = b"fix-fp16 ranges; SHA-256 of what follows these 512 bytes: "
_HDF5 = b"\x89HDF"


def sign(content: memoryview) -> bytes:
    """What the first block of a ranges file holds: the SHA-256 of all that follows it, padded."""
    digest = hashlib.sha256(content[BLOCK_BYTES:]).hexdigest()
    return (_MARK + digest.encode() + b"\n").ljust(BLOCK_BYTES, b"\0")


def check_content(content: bytes) -> None:
    """Raise ValueError for a file that is not what was written; none of a format that had no such block.

    Before HDF5 reads it, which can go on for ever on what is torn.
    """
    if content.startswith(_HDF5):
        return
    if not content.startswith(_MARK):
        raise ValueError("it does not begin as such a file does")
    if content[:BLOCK_BYTES] != sign(memoryview(content)):
        raise ValueError("its content is not what was written, by the checksum in front of it")


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
