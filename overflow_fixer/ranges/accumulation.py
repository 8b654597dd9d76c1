"""Of which sums of products a bound is over FP16's limit in a batch, so that sum |a| |b| is to be measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest

import numpy as np

from overflow_fixer.formats import FP16_MAX
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.tensor_types import infer_shapes
from overflow_fixer.inner.accumulators import bound_by_norm, bound_by_ranges, bound_by_sizes
from overflow_fixer.inner.channel_norms import ChannelNorm, find_channel_norm
from overflow_fixer.inner.products import Product, Shapes
from overflow_fixer.records import Array, Batch

_ONE, _UNKNOWN = -2, -1
"""Rows behind those of the tensors: of 1, and of NaN."""


class Accumulation:
    """Finds the products of which a partial sum may be over FP16's limit, by bounds that cost next to nothing."""

    def __init__(self, graph: Graph, tensors: Sequence[str], products: Sequence[Product]) -> None:
        self._graph, self._products = graph, products
        self._tensors = tensors
        self._row_of = row_of = {name: row for row, name in enumerate(tensors)}
        factors = zip_longest(
            *([row_of.get(name, _UNKNOWN) for name in p.factors] for p in products), fillvalue=_ONE
        )
        self._factors = [np.array(rows) for rows in factors]  # the first of each product, the second, ...
        self._biases = np.array(
            [row_of.get(p.bias, _UNKNOWN) if p.bias else _ONE for p in products], np.int64
        )
        self._outputs = np.array([row_of.get(p.node.outputs[0], _UNKNOWN) for p in products], np.int64)
        self._shapes: dict[object, Shapes] = {}
        self._norms: dict[int, ChannelNorm | None] = {}
        self._slopes: Array | None = None
        self._shifts = np.zeros(len(products))

    def find_suspects(
        self, batch: Batch, max_abs: Array, counts: Array, looked_at: Collection[int] = ()
    ) -> list[int]:
        """Their numbers; none where FP16 cannot hold what is added up, or the output: such a node has to run in FP32 anyway.

        `max_abs` [tensor] are the largest magnitudes, NaN where there is none, `counts` [tensor] the sizes. Of products
        `looked_at` no shape is inferred: the run itself has looked at theirs.
        """
        bounds, is_in_range = self._bound(max_abs)
        rows = np.flatnonzero(is_in_range & ~(bounds <= FP16_MAX))
        bound_of = dict(zip(rows.tolist(), bounds[rows].tolist(), strict=True))
        suspects = {row for row, bound in bound_of.items() if math.isnan(bound) and row in looked_at}
        unsure = bound_of.keys() - suspects
        if unsure:
            largest, sizes = (dict(zip(self._tensors, of.tolist(), strict=True)) for of in (max_abs, counts))
            suspects |= {row for row in unsure if self._is_suspect(row, bound_of[row], batch, largest, sizes)}
        return sorted(suspects)

    def has_held_constants(self, row: int, max_abs: Array) -> bool:
        """Whether FP16 can hold those of the product's factors, and its bias, that are constant."""
        product = self._products[row]
        names = self._graph.constants.keys() & self._row_of.keys() & {*product.factors, product.bias}
        return all(max_abs[self._row_of[name]] <= FP16_MAX for name in names)

    def _bound(self, max_abs: Array) -> tuple[Array, Array]:
        """What inner.accumulators.Bound.at gives [product], and whether FP16 can hold all that the node reads and writes."""
        if self._slopes is None:
            bounds = [bound_by_ranges(product, self._graph.fixed_dims) for product in self._products]
            self._slopes = np.array([bound.slope for bound in bounds])
            self._shifts = np.array([bound.shift if bound.product.bias else 0.0 for bound in bounds])
        read = np.append(max_abs, [1.0, np.nan])
        bias = read[self._biases]
        is_in_range = (bias <= FP16_MAX) & ~(read[self._outputs] > FP16_MAX)
        most = np.ones(len(self._products))
        with np.errstate(over="ignore", invalid="ignore"):
            for factor in self._factors:
                most = most * read[factor]
                is_in_range &= read[factor] <= FP16_MAX
            return self._slopes * most + self._shifts * bias, is_in_range

    def _is_suspect(
        self, row: int, bound: float, batch: Batch, max_abs: Mapping[str, float], counts: Mapping[str, int]
    ) -> bool:
        """Whether a partial sum may be over FP16's limit where the cheapest `bound` does not say that none is."""
        product, look_up = self._products[row], max_abs.__getitem__
        if math.isnan(bound):
            bound = self._bound_unknown_length(product, batch, max_abs, counts)
        if bound <= FP16_MAX:
            return False
        norm = self.find_norm(row, batch)
        return norm is None or not bound_by_norm(product, norm, look_up) <= FP16_MAX

    def _bound_unknown_length(
        self, product: Product, batch: Batch, max_abs: Mapping[str, float], counts: Mapping[str, int]
    ) -> float:
        """Where no constant tells how many products are added: by sizes, and only then by shapes, which may be inferred."""
        look_up = max_abs.__getitem__
        by_sizes = bound_by_sizes(product, counts).at(look_up)
        if by_sizes <= FP16_MAX:
            return by_sizes
        bound = bound_by_ranges(product, self._infer_shapes({})).at(look_up)
        if math.isnan(bound) and math.isnan(by_sizes):
            fed = {name: array.shape for name, array in batch.feeds.items() if isinstance(array, np.ndarray)}
            return bound_by_ranges(product, self._infer_shapes(fed)).at(look_up)
        return by_sizes if math.isnan(bound) else bound

    def find_norm(self, row: int, batch: Batch) -> ChannelNorm | None:
        """Of a product's constant weights, which are read once; those that a batch feeds are none."""
        product = self._products[row]
        if any(name in batch.feeds for name in product.factors if name in self._graph.constants):
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
            self._shapes[key] = infer_shapes(self._graph.model, fed) if key else self._graph.sure_shapes
        return self._shapes[key]
