"""All observed tensors of one batch: constants by their value, the rest by a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from overflow_fixer.graph.model import Graph
from overflow_fixer.inner import NOTHING, SIGNED, InnerValue, Inside
from overflow_fixer.ranges.accumulation import Accumulation
from overflow_fixer.ranges.carried import Carried, Values
from overflow_fixer.ranges.constants import Constants
from overflow_fixer.ranges.openings import Opening, Settings
from overflow_fixer.ranges.product_sums import ProductObserver
from overflow_fixer.ranges.product_watch import ProductWatch
from overflow_fixer.ranges.small_values import find_small_valued
from overflow_fixer.ranges.summaries import (
    Summaries,
    hide_small,
    no_summaries,
    put_rows,
    summarize,
    take_rows,
)
from overflow_fixer.ranges.untold import Untold, longest_untold
from overflow_fixer.ranges.wanted import Look, Observed, Wanted
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
        self._tensors, self._product_count = tensors, len(inside.products)
        rows = _Rows.of(graph, tensors, inside, opening.is_tallied)
        self._computed_rows = np.array(list(rows.computed.values()), np.int64)
        self._live_rows = np.array(list(rows.live.values()), np.int64)
        copied = {rows.computed[name]: constant for name, constant in rows.copies.items()}
        self._constants = Constants(graph, rows.constants, copied, settings.beside)
        self._count = rows.count + self._product_count
        divisors = {value.tensor for value in inside.values if value.may_divide}
        small = find_small_valued(graph, settings.small_values) | divisors
        self._is_taken = np.array([opening.is_tallied or name in small for name in rows.computed], np.bool_)
        self._untold = Untold(tensors, inside, opening.is_tallied)
        self._accumulation = Accumulation(graph, tensors, inside.products)
        self._carried = Carried(graph, carried)
        made = [value for value in inside.values if value.tensor != NOTHING]
        looks = {value.tensor: Look(_words_of(value), value.source, longest_untold(value)) for value in made}
        told = list(rows.live), small, looks, inside.extremes, self._carried.computed
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
        seen = self._assemble(observed, fed)
        own = seen[: len(self._tensors)]
        suspects = self._find_suspects(batch, own, observed)
        if suspects:
            sums = seen[len(seen) - self._product_count :]
            counts = dict(zip(self._tensors, own["element_count"].tolist(), strict=True))
            sums[suspects] = self._observer.measure(batch, suspects, observed, counts)
        self._untold.hide(seen[len(own) :])
        return seen, self._carried.complete(batch, observed.values)

    def _assemble(self, observed: Observed, fed: Mapping[str, Summaries]) -> Summaries:
        """All but the sums of products."""
        seen = no_summaries(self._count)
        self._constants.fill(seen, fed)
        put_rows(seen, self._live_rows, observed.summaries[: len(self._live_rows)])
        computed = take_rows(seen, self._computed_rows)
        hide_small(computed, self._is_taken)
        put_rows(seen, self._computed_rows, computed)
        self._untold.drop(seen)
        return seen

    def _find_suspects(self, batch: Batch, own: Summaries, observed: Observed) -> list[int]:
        """The products of which a sum may be over the limit, or is."""
        known, max_abs = self._observer.looked_at, own["max_abs"]
        found = self._accumulation.find_suspects(batch, max_abs, own["element_count"], known)
        over = self._observer.find_over(observed)
        return sorted({*found, *(row for row in over if self._accumulation.has_held_constants(row, max_abs))})


@dataclass(frozen=True)
class _Rows:
    """Where in the summaries of a batch each tensor stands, what is made of values inside nodes behind the graph's own.

    Of those `computed`, the `copies` of constants are not looked at in the run, and those that are `live` are.
    """

    count: int
    constants: Mapping[str, int]
    computed: Mapping[str, int]
    copies: Mapping[str, str]

    @staticmethod
    def of(graph: Graph, tensors: Sequence[str], inside: Inside, are_copies_live: bool) -> _Rows:
        names = [*tensors, *(value.tensor for value in inside.values)]
        constants = {name: row for row, name in enumerate(names) if name in graph.constants}
        computed = {
            name: row for row, name in enumerate(names) if name not in graph.constants and name != NOTHING
        }
        known = {} if are_copies_live else graph.copied_constants
        copies = {name: known[name] for name in computed if name in known}
        return _Rows(len(names), constants, computed, copies)

    @property
    def live(self) -> dict[str, int]:
        return {name: row for name, row in self.computed.items() if name not in self.copies}


def _words_of(value: InnerValue) -> frozenset[str]:
    least = {"min_nonzero_abs"} if value.may_divide else set()
    return frozenset({"max", *(["min"] if value.quantity in SIGNED else []), *least})
