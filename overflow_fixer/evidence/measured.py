"""What a scan saw of tensors: whether all of it was finite, of one sign, how large in each batch, and how many elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner.quantities import Quantity
from overflow_fixer.records import InnerRange, Range, RangeTable


def are_finite(graph: Graph, ranges: RangeTable, *tensors: str) -> bool:
    """Whether they are of FP32, were measured, and had no NaN and no infinity."""
    return all(_is_finite(graph, ranges, name) for name in tensors)


def _is_finite(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    seen = ranges.get(tensor)
    if seen is None or graph.dtypes.get(tensor) != TensorProto.FLOAT:
        return False
    return not seen.nan_count and math.isfinite(seen.max_abs)


def is_never_negative(ranges: RangeTable, tensor: str) -> bool:
    """Whether no element below zero was seen: what is small there is not a difference of larger values."""
    seen = ranges.get(tensor)
    return seen is not None and seen.min >= 0


def find_least(ranges: RangeTable, tensor: str) -> float:
    """The least magnitude of a tensor, with its sign; 0 where it was seen with both, or with NaN."""
    seen = ranges.get(tensor)
    if seen is None or seen.nan_count:
        return 0.0
    return seen.min if seen.min > 0 else min(seen.max, 0.0)


def count_terms(ranges: RangeTable, node: Node, written: Range | None) -> float:
    """How many elements go into one that was `written`, or is inside the node; 1 where it is not known."""
    read = ranges.get(node.inputs[0])
    if read is None or written is None or not written.element_count:
        return 1.0
    return max(1.0, read.element_count / written.element_count)


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


def list_inner(graph: Graph, ranges: RangeTable, quantity: Quantity) -> Iterator[tuple[Node, InnerRange]]:
    """The nodes inside which that was measured, in the order of the graph, and what was seen of it."""
    for node in graph.nodes:
        inner = find_inner(ranges, node, quantity)
        if inner is not None:
            yield node, inner


def find_inner(ranges: RangeTable, node: Node, quantity: Quantity) -> InnerRange | None:
    return ranges.inner_of.get(node.label, {}).get(quantity)


def read_worst(inner: InnerRange) -> tuple[float, int]:
    """The largest of a value inside a node over the batches, and the index of its batch; what is not finite counts as 0."""
    values = np.nan_to_num(inner.batch_max_abs.astype(np.float64), posinf=0.0)
    batch = int(values.argmax()) if values.size else 0
    return float(values[batch]) if values.size else 0.0, batch
