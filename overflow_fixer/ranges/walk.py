"""All observed tensors of one batch: constants by their value, the rest by a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from overflow_fixer.graph import Graph
from overflow_fixer.inner import SIGNED, InnerValue, Inside
from overflow_fixer.ranges.accumulation import Accumulation
from overflow_fixer.ranges.carried import Carried, Values
from overflow_fixer.ranges.constants import Constants
from overflow_fixer.ranges.observers import Look, Wanted
from overflow_fixer.ranges.openings import Opening, Settings
from overflow_fixer.ranges.product_sums import ProductObserver
from overflow_fixer.ranges.product_watch import ProductWatch
from overflow_fixer.ranges.small_values import find_small_valued
from overflow_fixer.ranges.summaries import Summaries, hide_small, no_summaries, summarize
from overflow_fixer.records import Batch


class Walk:
    """Gives the summaries [row] of a batch: of the tensors, of the values inside nodes, of the sums of products.

    And the values of the tensors `carried`, of any type, by name. Constants are read once, `beside` the session that opens and runs.
    """

    def __init__(
        self,
        graph: Graph,
        tensors: Sequence[str],
        inside: Inside,
        settings: Settings,
        opening: Opening,
        carried: Sequence[str] = (),
    ) -> None:
        names = [*tensors, *(value.tensor for value in inside.values)]
        constant_rows = {name: row for row, name in enumerate(names) if name in graph.constants}
        computed = {name: row for row, name in enumerate(names) if name not in graph.constants}
        self._computed_rows = np.array(list(computed.values()), np.int64)
        copies = {} if opening.is_tallied else _find_copies(graph, computed)
        copied = {computed[name]: constant for name, constant in copies.items()}
        self._constants = Constants(graph, constant_rows, copied, settings.beside)
        live = {name: row for name, row in computed.items() if name not in copies}
        self._live_rows = np.array(list(live.values()), np.int64)
        small = find_small_valued(graph, settings.small_values)
        self._is_taken = np.array([opening.is_tallied or name in small for name in computed], np.bool_)
        self._blank = no_summaries(len(names) + len(inside.products))
        self._product_count = len(inside.products)
        self._accumulation = Accumulation(graph, tensors, inside.products)
        self._tensors = tensors
        looks = {value.tensor: Look(_words_of(value), value.source) for value in inside.values}
        is_signed = ["min" in _words_of(value) for value in inside.values]
        self._are_unsigned = ~np.array([*is_signed, *[False] * self._product_count], np.bool_)
        row_of = {name: row for row, name in enumerate(tensors)}
        self._sources = np.array([row_of[value.source] for value in inside.values], np.int64)
        self._carried = Carried(graph, carried)
        told = list(live), small, looks, inside.extremes, self._carried.computed
        self._observer = self._open(inside, Wanted(*told, midst=opening.midst), opening)

    def _open(self, inside: Inside, wanted: Wanted, opening: Opening) -> ProductObserver:
        """Observe the graph, with the values inside nodes made tensors."""
        graph, products, watch = inside.graph, inside.products, None
        if opening.has_watches:
            know = self._constants.find_largest, self._accumulation.find_norm
            watch = ProductWatch(graph, products, *know, opening.midst, opening.select)
        return ProductObserver(graph, products, wanted, opening, watch)

    def observe(self, batch: Batch) -> tuple[Summaries, Values]:
        defaults = self._constants.row_of.keys() & batch.feeds.keys()
        fed = {name: summarize(batch.feeds[name]) for name in defaults}  # before a node can write into it
        observed = self._observer.observe(batch)
        seen: Summaries = self._blank.copy()
        self._constants.fill(seen, fed)
        seen[self._live_rows] = observed.summaries[: len(self._live_rows)]
        computed = seen[self._computed_rows]
        hide_small(computed, self._is_taken)
        seen[self._computed_rows] = computed
        own, inner = seen[: len(self._tensors)], seen[len(self._tensors) : len(seen) - self._product_count]
        is_empty = own["element_count"][self._sources] == 0
        if is_empty.any():  # the largest of no elements is -inf, and tells nothing
            inner[is_empty] = no_summaries(1)
        suspects = self._accumulation.find_suspects(
            batch, own["max_abs"], own["element_count"], self._observer.looked_at
        )
        suspects = sorted({*suspects, *self._observer.find_over()})
        if suspects:
            sums = seen[len(seen) - self._product_count :]
            counts = dict(zip(self._tensors, own["element_count"].tolist(), strict=True))
            sums[suspects] = self._observer.measure(batch, suspects, observed, counts)
        self._hide_untold(seen[len(own) :])
        return seen, self._carried.complete(batch, observed.values)

    def _hide_untold(self, inner: Summaries) -> None:
        """What is not told of values inside nodes, in place: see records.InnerRange."""
        inner["over_fp16_count"], inner["min_nonzero_abs"] = 0, -np.inf
        inner["min"][self._are_unsigned] = np.nan


def _find_copies(graph: Graph, computed: Collection[str]) -> dict[str, str]:
    """The tensors that are not looked at in the run, with the constants that they copy; a run has to give something."""
    found = {name: graph.copied_constants[name] for name in computed if name in graph.copied_constants}
    is_anything_left = any(name in graph.producers for name in computed if name not in found)
    return found if is_anything_left else {}


def _words_of(value: InnerValue) -> frozenset[str]:
    return frozenset({"max", "min"} if value.quantity in SIGNED else {"max"})
