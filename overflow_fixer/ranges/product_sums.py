"""Sum |a| |b| of products, measured by the observer of the model itself, which is opened anew for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from overflow_fixer.formats import FP16_MAX
from overflow_fixer.graph.model import Graph
from overflow_fixer.inner.products import Product, express_products
from overflow_fixer.ranges.carried import Carried
from overflow_fixer.ranges.openings import Opening
from overflow_fixer.ranges.piecewise import PiecewiseSum, find_large_factor
from overflow_fixer.ranges.product_sessions import ProductSessions
from overflow_fixer.ranges.product_watch import ProductWatch
from overflow_fixer.ranges.summaries import Summaries, no_summaries
from overflow_fixer.ranges.wanted import Look, Observed, Observer, Wanted
from overflow_fixer.records import Batch

_LARGE_BYTES = 1 << 20
"""Of a constant that the session would hold twice: packed for the product itself, and as it is for its magnitudes."""


class ProductObserver:
    """Observes `wanted` in a graph, and of its `products` those sums that are asked for.

    A product is measured from the first batch on in which somebody asks for it: the session is opened anew, the old one
    let go before, and that batch run again. Where it is run once, all are from the start. Those that `watch` measures in the
    midst of each run need none of this.
    """

    def __init__(
        self,
        graph: Graph,
        products: Sequence[Product],
        wanted: Wanted,
        opening: Opening,
        watch: ProductWatch | None = None,
    ) -> None:
        self._watch = watch
        self._watched: Collection[int] = () if watch is None else watch.watches.keys()
        self.looked_at = range(len(products)) if opening.is_run_once else self._watched
        """Those of which the run itself tells whether a sum may be over the limit."""
        if watch is not None:
            wanted = replace(wanted, watches=tuple(watch.watches.values()))
        self._graph, self._products, self._wanted, self._opening = graph, products, wanted, opening
        self._observed = frozenset(wanted.tensors)
        self._place_of: dict[int, int] = {}
        self._pieces: dict[int, PiecewiseSum] = {}
        self._sessions = ProductSessions(graph)
        self._observer: Observer | None = None
        others = [number for number in range(len(products)) if number not in self._watched]
        self._open(others if opening.is_run_once else ())

    def observe(self, batch: Batch) -> Observed:
        """The summaries of Wanted.tensors come first; `measure` knows what else there is."""
        assert self._observer is not None
        return self._observer.observe(batch)

    def find_over(self, observed: Observed) -> list[int]:
        """Those with a sum over the limit that was measured in one of several runs, of which the others may hide it."""
        if not self._opening.is_tallied:
            return []
        found = {number: observed.summaries[place] for number, place in self._place_of.items()}
        found |= self._watch.found if self._watch is not None else {}
        return [number for number, seen in found.items() if seen["max_abs"] > FP16_MAX]

    def measure(
        self, batch: Batch, products: Sequence[int], observed: Observed, counts: Mapping[str, int]
    ) -> Summaries:
        """The summaries of these sums, of a batch that was `observed`; `counts` are its tensors' numbers of elements."""
        new = set(products) - self._place_of.keys() - self._pieces.keys() - set(self._watched)
        if new:
            self._take(new, counts, self._find_detailed(observed))
            observed = self.observe(batch)
        values = self._read.complete(batch, observed.values)
        found = no_summaries(len(products))
        for row, number in enumerate(products):
            if self._watch is not None and number in self._watched:
                if number in self._watch.found:
                    found[row] = self._watch.found[number]
            elif number in self._pieces:
                found[row] = self._pieces[number].measure(batch, values)
            else:
                found[row] = observed.summaries[self._place_of[number]]
        return found

    def _take(self, new: Collection[int], counts: Mapping[str, int], detailed: Collection[str]) -> None:
        """Measure these products too, from now on."""
        inside = set(self._place_of)
        for number in new:
            product = self._products[number]
            place = (
                find_large_factor(self._graph, product, counts, _LARGE_BYTES)
                if self._opening.in_pieces
                else None
            )
            if place is None:
                inside.add(number)
            else:
                self._pieces[number] = PiecewiseSum(self._graph, product, place, self._sessions)
        self._open(sorted(inside), detailed)

    def _open(self, inside: Sequence[int], detailed: Collection[str] = ()) -> None:
        """With the sums of the products `inside` in the session."""
        self._observer = None  # let go of the old one's weights before the new one reads them
        graph, wanted, known = self._graph, self._wanted, self._wanted.tensors
        self._read = Carried(graph, (name for piece in self._pieces.values() for name in piece.reads))
        carried = tuple(dict.fromkeys((*wanted.carried, *self._read.computed)))
        wanted = replace(wanted, carried=carried, detailed=detailed)
        if inside:
            graph, sums = express_products(graph, [self._products[number] for number in inside])
            found = (self._look_at(self._products[number]) for number in inside)
            looks = {**wanted.looks, **dict(zip(sums, found, strict=True))}
            wanted = replace(wanted, tensors=(*known, *sums), looks=looks)
        self._observer = self._opening.open(graph, wanted)
        self._place_of = {number: len(known) + place for place, number in enumerate(inside)}

    def _look_at(self, product: Product) -> Look:
        names = (*product.factors, product.bias, product.node.outputs[0])
        return Look(frozenset({"max", "sum"}), held=tuple(name for name in names if name in self._observed))

    def _find_detailed(self, observed: Observed) -> Collection[str]:
        """The tensors that are known to hold what is to be counted."""
        seen = observed.summaries[: len(self._wanted.tensors)]
        found = np.flatnonzero((seen["over_fp16_count"] > 0) | (seen["nan_count"] > 0))
        return {self._wanted.tensors[row] for row in found.tolist()}.difference(self._wanted.looks)
