"""What a scan saw of tensors: whether all of it was finite, and the largest of each batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable


def are_finite(graph: Graph, ranges: RangeTable, *tensors: str) -> bool:
    """Whether they are of FP32, were measured, and had no NaN and no infinity."""
    return all(_is_finite(graph, ranges, name) for name in tensors)


def _is_finite(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    seen = ranges.get(tensor)
    if seen is None or graph.dtypes.get(tensor) != TensorProto.FLOAT:
        return False
    return not seen.nan_count and math.isfinite(seen.max_abs)


def read_maxima(ranges: RangeTable, tensor: str) -> npt.NDArray[np.float64]:
    """The tensor's max |x| by batch, or that of a value inside a node, as InnerRange names it.

    NaN where a batch has no element of it, or none but NaN, or it was not measured.
    """
    row = _rows(ranges).get(tensor)
    if row is None:
        return np.full(len(ranges.batch_names), math.nan)
    maxima: npt.NDArray[np.float64] = row.astype(np.float64)
    return maxima


@lru_cache(maxsize=1)
def _rows(ranges: RangeTable) -> Mapping[str, npt.NDArray[np.float32]]:
    inner = {one.seen.tensor: one.batch_max_abs for one in ranges.inner}
    return inner | {seen.tensor: row for seen, row in zip(ranges.ranges, ranges.batch_max_abs, strict=True)}
