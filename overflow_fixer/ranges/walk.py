"""All observed tensors of one batch: constants by their value, the rest by a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from overflow_fixer.graph import Graph
from overflow_fixer.ranges.observers import open_observer
from overflow_fixer.ranges.summaries import Summaries, no_summaries, summarize
from overflow_fixer.records import Batch

Observe = Literal["reductions", "outputs"]


class Walk:
    """Gives the summaries [tensor] of a batch; constants are read once."""

    def __init__(self, graph: Graph, tensors: Sequence[str], observe: Observe) -> None:
        self._constants = no_summaries(len(tensors))
        self._constant_rows = {name: row for row, name in enumerate(tensors) if name in graph.constants}
        for name, row in self._constant_rows.items():
            self._constants[row] = _summarize_constant(graph, name)
        live = {name: row for row, name in enumerate(tensors) if name not in graph.constants}
        self._live_rows = np.array(list(live.values()), np.int64)
        self._observer = open_observer(graph, list(live), observe)

    def observe(self, batch: Batch) -> Summaries:
        seen: Summaries = self._constants.copy()
        for name in self._constant_rows.keys() & batch.feeds.keys():  # fed in place of its default
            seen[self._constant_rows[name]] = summarize(batch.feeds[name])
        seen[self._live_rows] = self._observer.observe(batch)
        return seen


def _summarize_constant(graph: Graph, tensor: str) -> Summaries:
    """In a function of its own, so that of large weights only one is in memory at a time."""
    value = graph.read_constant(tensor)
    return no_summaries(1)[0] if value is None else summarize(value)
