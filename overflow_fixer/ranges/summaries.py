"""One array, or many batches of one tensor, as a handful of numbers."""

from __future__ import annotations

from functools import reduce

import numpy as np
import numpy.typing as npt

from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.records import Array

SUMMARY = np.dtype(
    [
        ("max_abs", np.float64),
        ("min", np.float64),
        ("max", np.float64),
        ("min_nonzero_abs", np.float64),
        ("element_count", np.int64),
        ("nan_count", np.int64),
        ("inf_count", np.int64),
        ("over_fp16_count", np.int64),
    ]
)
"""The statistics of records.Range; NaN in a magnitude says that no such element was seen, -inf in
min_nonzero_abs that it was not taken."""
SUMMARY_FIELDS: tuple[str, ...] = SUMMARY.names or ()
Summaries = npt.NDArray[np.void]
"""An array of dtype SUMMARY, of any shape."""

_CHUNK_ELEMENTS = 1 << 17
_NOTHING = (np.nan, np.nan, np.nan, np.nan, 0, 0, 0, 0)
_WHOLE = np.dtype((np.void, SUMMARY.itemsize))
"""A summary whose fields numpy does not know: it copies those one by one, which takes ten times as long."""
_NO_SUMMARY = np.array(_NOTHING, SUMMARY).view(_WHOLE)


def no_summaries(count: int) -> Summaries:
    """`count` summaries of nothing."""
    found = np.empty(count, _WHOLE)
    found[:] = _NO_SUMMARY
    return found.view(SUMMARY)


def take_rows(summaries: Summaries, rows: Array) -> Summaries:
    """A copy of those of the `rows`, numbers or flags [summary]."""
    return summaries.view(_WHOLE)[rows].view(SUMMARY)


def put_rows(summaries: Summaries, rows: Array, values: Summaries) -> None:
    """Set those of the `rows`, numbers or flags [summary], in place."""
    summaries.view(_WHOLE)[rows] = values.view(_WHOLE)


def hide_small(summaries: Summaries, is_taken: npt.NDArray[np.bool_]) -> None:
    """Keep min_nonzero_abs, in place, where it `is_taken` or follows from the signs; else it becomes -inf.

    Both [tensor]. It follows where all values have one sign, or none is there but zeros.
    """
    least, most = summaries["min"], summaries["max"]
    told = np.where(least > 0, least, np.where(most < 0, -most, -np.inf))
    told[np.isnan(least) | ((least == 0) & (most == 0))] = np.nan
    summaries["min_nonzero_abs"] = np.where(is_taken, summaries["min_nonzero_abs"], told)


def summarize(values: Array) -> Summaries:
    """The statistics of one array, as SUMMARY with shape ().

    values: any shape (empty and 0-d too); float16, bfloat16, float32 or float64. Sixteen bits are
    widened to float32, which is exact. NaN is counted and left out of every magnitude, infinities
    are in them, -0 is told as 0. Works in small chunks: a memory map is never held whole.
    """
    flat = values.reshape(-1)
    if not flat.size:
        return np.array(_NOTHING, SUMMARY)
    starts = range(0, flat.size, _CHUNK_ELEMENTS)
    chunks = (_summarize_chunk(flat[start : start + _CHUNK_ELEMENTS]) for start in starts)
    return reduce(merge_summaries, chunks)


def has_fractions(values: Array) -> bool:
    """Whether an element is not a whole number, as NaN and infinity are not. Of any float type and shape, read in chunks."""
    flat = values.reshape(-1)
    starts = range(0, flat.size, _CHUNK_ELEMENTS)
    chunks = (_widen(flat[start : start + _CHUNK_ELEMENTS]) for start in starts)
    return any(not np.isfinite(chunk).all() or bool((np.rint(chunk) != chunk).any()) for chunk in chunks)


def merge_summaries(first: Summaries, second: Summaries) -> Summaries:
    """Element by element, the statistics of both together. Associative, commutative and exact."""
    merged = np.empty(first.shape, SUMMARY)
    for name in ("max_abs", "max"):
        merged[name] = np.fmax(first[name], second[name])
    for name in ("min", "min_nonzero_abs"):
        merged[name] = np.fmin(first[name], second[name])
    for name in ("element_count", "nan_count", "inf_count", "over_fp16_count"):
        merged[name] = first[name] + second[name]
    return merged


def _summarize_chunk(chunk: Array) -> Summaries:
    wide = _widen(chunk)
    least, most = float(wide.min()), float(wide.max())
    if least > -FP16_OVERFLOW and most < FP16_OVERFLOW:
        return _summary(wide, least, most, (wide.size, 0, 0, 0))
    present = wide[~np.isnan(wide)]
    inf_count = int(np.count_nonzero(np.isinf(present)))
    over_count = int(np.count_nonzero(np.abs(present) >= FP16_OVERFLOW))
    counts = (wide.size, wide.size - present.size, inf_count, over_count)
    if not present.size:
        return np.array((*_NOTHING[:4], *counts), SUMMARY)
    return _summary(present, float(present.min()), float(present.max()), counts)


def _widen(chunk: Array) -> Array:
    return chunk if chunk.dtype in (np.float32, np.float64) else chunk.astype(np.float32)


def _summary(present: Array, least: float, most: float, counts: tuple[int, int, int, int]) -> Summaries:
    """The summary of a chunk of which some elements are `present`, none of them NaN, with these extremes."""
    max_abs = max(abs(least), abs(most))
    min_nonzero_abs = least if least > 0 else -most if most < 0 else _find_min_nonzero(present)
    return np.array((max_abs, least + 0.0, most + 0.0, min_nonzero_abs, *counts), SUMMARY)  # -0 becomes 0


def _find_min_nonzero(present: Array) -> float:
    magnitudes = np.abs(present)
    found = float(magnitudes.min())
    if found > 0:
        return found
    return float(np.min(magnitudes, initial=np.inf, where=magnitudes != 0)) if magnitudes.any() else np.nan
