"""Sums of |a| |b|, measured by a second run of those batches in which a bound is over FP16's limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from overflow_fixer.formats import FP16_MAX
from overflow_fixer.graph import Graph, infer_shapes_for
from overflow_fixer.inner.accumulators import (
    Bound,
    Product,
    Shapes,
    bound_by_norm,
    bound_by_ranges,
    bound_by_sizes,
    express_products,
    find_channel_norm,
)
from overflow_fixer.providers import Provider
from overflow_fixer.ranges.observers import Look, ReductionObserver
from overflow_fixer.ranges.summaries import Summaries, no_summaries
from overflow_fixer.records import Batch


class Accumulation:
    """Gives the summaries [product] of a batch: of a node whose bound is in range, those of nothing."""

    def __init__(self, graph: Graph, products: Sequence[Product], provider: Provider) -> None:
        self._graph, self._provider, self._products = graph, provider, products
        self._shapes: dict[object, Shapes] = {}
        self._norms: dict[int, tuple[str, float] | None] = {}
        self._bounds: list[Bound] = []
        self._measured: tuple[int, ...] = ()
        self._observer: ReductionObserver | None = None

    def observe(self, batch: Batch, max_abs: Mapping[str, float], counts: Mapping[str, int]) -> Summaries:
        """`max_abs` are the largest magnitudes of the batch's tensors, NaN where there is none, `counts` their sizes."""
        found = no_summaries(len(self._products))
        if not self._bounds:
            self._bounds = [bound_by_ranges(product, self._infer_shapes({})) for product in self._products]
        wanted = [row for row in range(len(self._products)) if self._is_suspect(row, batch, max_abs, counts)]
        if wanted:
            observer = self._open(tuple(sorted({*self._measured, *wanted})))
            found[wanted] = observer.observe(batch)[[self._measured.index(row) for row in wanted]]
        return found

    def _is_suspect(
        self, row: int, batch: Batch, max_abs: Mapping[str, float], counts: Mapping[str, int]
    ) -> bool:
        """Whether a partial sum may be over FP16's limit. Where a value is not finite, sums are not either."""
        product = self._products[row]
        read = (*product.factors, product.bias) if product.bias else product.factors
        if not all(math.isfinite(max_abs.get(tensor, math.nan)) for tensor in read):
            return False
        look_up = max_abs.__getitem__
        bound = self._bounds[row].at(look_up)
        if math.isnan(bound):
            bound = bound_by_sizes(product, counts).at(look_up)
        if math.isnan(bound):
            fed = {name: array.shape for name, array in batch.feeds.items() if isinstance(array, np.ndarray)}
            bound = bound_by_ranges(product, self._infer_shapes(fed)).at(look_up)
        if bound <= FP16_MAX:
            return False
        norm = self._find_norm(row, batch)
        return norm is None or not bound_by_norm(product, norm, look_up) <= FP16_MAX

    def _find_norm(self, row: int, batch: Batch) -> tuple[str, float] | None:
        """Weights are read once; those that a batch feeds are none."""
        product = self._products[row]
        if not batch.feeds.keys().isdisjoint(self._graph.initializers):
            return find_channel_norm(self._graph, product, batch.feeds)
        if row not in self._norms:
            self._norms[row] = find_channel_norm(self._graph, product)
        return self._norms[row]

    def _infer_shapes(self, fed: Mapping[str, tuple[int, ...]]) -> Shapes:
        """Of a batch of these shapes; of any batch where none is told."""
        key = tuple(sorted(fed.items()))
        if key not in self._shapes:
            if key:
                self._shapes = {(): self._infer_shapes({})}  # of one batch at a time
            self._shapes[key] = infer_shapes_for(self._graph, fed) if key else self._graph.sure_shapes
        return self._shapes[key]

    def _open(self, rows: tuple[int, ...]) -> ReductionObserver:
        if self._observer is None or rows != self._measured:
            self._observer = None  # let go of the old session's weights
            graph, tensors = express_products(self._graph, [self._products[row] for row in rows])
            looks = dict.fromkeys(tensors, Look(frozenset({"max", "sum"})))
            self._observer = ReductionObserver(graph, tensors, (), looks, provider=self._provider)
            self._measured = rows
        return self._observer
