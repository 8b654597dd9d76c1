"""Sum |a| |b| of a product of matrices with a large constant, of which a piece is read and multiplied at a time.

In the model's session it would be held twice: packed for the product itself, and as it is for its magnitudes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import reduce

import numpy as np
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.inner.products import Product, summed_axis, sums_first_axis
from overflow_fixer.model_file.weights import PIECE_BYTES
from overflow_fixer.ranges.carried import Values
from overflow_fixer.ranges.product_sessions import ProductSessions
from overflow_fixer.ranges.summaries import Summaries, merge_summaries, summarize
from overflow_fixer.records import Array, Batch

_FLOAT_BYTES = 4


class PiecewiseSum:
    """Measures the sums of `product`, of which the factor at `place` is a large constant (see find_large_factor)."""

    def __init__(self, graph: Graph, product: Product, place: int, sessions: ProductSessions) -> None:
        self._graph, self._node, self._place = graph, product.node, place
        self._sessions = sessions
        self._weights, self._other, self._bias = (
            product.factors[place],
            product.factors[1 - place],
            product.bias,
        )
        self._dims = tuple(graph.constants[self._weights].dims)
        self._is_summed = sums_first_axis(product.node, len(self._dims), is_right=place == 1)
        self.reads = tuple(filter(None, (self._other, self._bias)))
        """What the run of a batch must give."""

    def measure(self, batch: Batch, values: Values) -> Summaries:
        """The summary, of shape (), of a batch in which the tensors read have these values."""
        found = self._add_up(batch, values) if self._is_summed else self._multiply(batch, values)
        return reduce(merge_summaries, map(summarize, found))

    def _multiply(self, batch: Batch, values: Values) -> Iterator[Array]:
        """The sums of each piece's channels."""
        start, other = 0, values[self._other]
        for piece in self._cut(batch, other):
            stop = start + len(piece)
            bias = self._cut_bias(values[self._bias], start, stop) if self._bias else None
            yield self._run(batch, piece, other, bias)
            start = stop

    def _add_up(self, batch: Batch, values: Values) -> Iterator[Array]:
        """The sums, to which each piece adds a part."""
        other, bias = values[self._other], values[self._bias] if self._bias else None
        axis = summed_axis(self._node, is_right=self._place == 0)
        start, found = 0, np.zeros(0)
        for piece in self._cut(batch, other):
            part = np.take(other, range(start, start + len(piece)), axis)
            sums = self._run(batch, piece, part, bias)
            found = np.add(found, sums, out=found) if start else sums.astype(np.float64)
            bias = None if bias is None else np.zeros_like(bias)  # it is added once
            start += len(piece)
        with np.errstate(over="ignore"):
            rounded = found.astype(np.float32)
        yield rounded

    def _run(self, batch: Batch, piece: Array, other: Array, bias: Array | None) -> Array:
        feeds = {f"input_{self._place}": piece, f"input_{1 - self._place}": other}
        if bias is not None:
            feeds["input_2"] = bias
        return self._sessions.run(self._node, Batch(batch.name, feeds))

    def _cut(self, batch: Batch, other: Array) -> Iterator[Array]:
        """The constant in pieces, or what the batch feeds in its place.

        They are larger where the sums are, since each piece that adds to them takes a pass over all of them.
        """
        if self._weights in batch.feeds:
            yield batch.feeds[self._weights]
            return
        held, sums = math.prod(self._dims), other.size * math.prod(self._dims[1:]) // self._dims[0]
        most = max(PIECE_BYTES, min(held // 16, sums) * _FLOAT_BYTES) if self._is_summed else PIECE_BYTES
        yield from self._graph.read_constant_rows(self._weights, most)

    def _cut_bias(self, bias: Array, start: int, stop: int) -> Array:
        """What of it is added to the channels from `start` on; it may be the same for all."""
        axis = -2 if self._place == 0 else -1
        if bias.ndim < -axis or bias.shape[axis] == 1:
            return bias
        return np.take(bias, range(start, stop), axis)


def find_large_factor(
    graph: Graph, product: Product, counts: Mapping[str, int], least_bytes: int
) -> int | None:
    """The place of a factor of a MatMul or Gemm that is a matrix of `least_bytes` in a file, larger than the other; None: there is none.

    `counts` are numbers of elements. The other factor has to leave the run. Convolutions read their weights as they lie.
    """
    if product.node.op_type not in ("MatMul", "Gemm"):
        return None
    for place, name in enumerate(product.factors):
        tensor, other = graph.constants.get(name), product.factors[1 - place]
        if tensor is None or len(tensor.dims) != 2 or tensor.data_location != TensorProto.EXTERNAL:
            continue
        count = math.prod(tensor.dims)
        if count * _FLOAT_BYTES >= least_bytes and count > counts.get(other, math.inf):
            return place
    return None
