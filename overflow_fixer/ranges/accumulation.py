"""Sums of |a| |b|, measured by a second run of those batches in which a bound is over FP16's limit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from overflow_fixer.formats import FP16_MAX
from overflow_fixer.graph import Graph, infer_shapes_for
from overflow_fixer.inner.accumulators import (
    MaxAbs,
    Product,
    Shapes,
    bound_by_norm,
    bound_by_ranges,
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
        self._measured: tuple[int, ...] = ()
        self._observer: ReductionObserver | None = None

    def observe(self, batch: Batch, max_abs: Mapping[str, float]) -> Summaries:
        """`max_abs` are the largest magnitudes of the batch's tensors, NaN where there is none."""
        found = no_summaries(len(self._products))
        wanted = [row for row in range(len(self._products)) if self._is_suspect(row, batch, max_abs)]
        if wanted:
            observer = self._open(tuple(sorted({*self._measured, *wanted})))
            found[wanted] = observer.observe(batch)[[self._measured.index(row) for row in wanted]]
        return found

    def _is_suspect(self, row: int, batch: Batch, max_abs: Mapping[str, float]) -> bool:
        """Whether a partial sum may be over FP16's limit. Nothing is known where a value or the number of terms is not."""
        product, look_up = self._products[row], _look_up(max_abs)
        bound = bound_by_ranges(product, look_up, self._graph.shapes)
        if math.isnan(bound):
            bound = bound_by_ranges(product, look_up, self._infer_shapes(batch))
        if not bound > FP16_MAX:
            return False
        if row not in self._norms:  # weights are read once
            self._norms[row] = find_channel_norm(self._graph, product)
        norm = self._norms[row]
        return norm is None or bound_by_norm(product, norm, look_up) > FP16_MAX

    def _infer_shapes(self, batch: Batch) -> Shapes:
        fed = {name: array.shape for name, array in batch.feeds.items()}
        key = tuple(sorted(fed.items()))
        if key not in self._shapes:
            self._shapes[key] = infer_shapes_for(self._graph, fed)
        return self._shapes[key]

    def _open(self, rows: tuple[int, ...]) -> ReductionObserver:
        if self._observer is None or rows != self._measured:
            self._observer = None  # let go of the old session's weights
            graph, tensors = express_products(self._graph, [self._products[row] for row in rows])
            looks = dict.fromkeys(tensors, Look(frozenset({"max", "sum"})))
            self._observer = ReductionObserver(graph, tensors, (), looks, provider=self._provider)
            self._measured = rows
        return self._observer


def _look_up(max_abs: Mapping[str, float]) -> MaxAbs:
    return lambda tensor: max_abs.get(tensor, math.nan)
