"""What is inside If, Loop and Scan: each body observed in each of its runs, at any depth, and merged over them as over batches."""

from __future__ import annotations

import numpy as np

from overflow_fixer.ranges.constants import summarize_constants
from overflow_fixer.ranges.interpreted_bodies import open_interpreted
from overflow_fixer.ranges.levels import Level
from overflow_fixer.ranges.openings import Settings
from overflow_fixer.ranges.recording import Inner
from overflow_fixer.ranges.summaries import Summaries, put_rows, take_rows
from overflow_fixer.ranges.tallied_bodies import can_tally, open_tallied
from overflow_fixer.records import Batch


class ModelWalk:
    """Gives the summaries of a batch, in the order of a recording: rows of `tensors`, then rows of `inner`.

    Where the model has no control flow, there is nothing to it but a walk. Constants of bodies are present once in
    each batch, whether the body runs or not.
    """

    def __init__(self, level: Level, settings: Settings) -> None:
        open_level = open_tallied if can_tally(level, settings) else open_interpreted
        self._walk = open_level(level, settings)
        rows = level.rows
        is_inner = [isinstance(row.about, Inner) for row in rows]
        self._order = np.argsort(is_inner, kind="stable")
        held = [i for i, row in enumerate(rows) if row.is_constant and row.graph is not level.graph]
        self._constant_rows = np.array(held, np.int64)
        constants = [(rows[i].graph, rows[i].name) for i in held]
        self._constants = settings.beside.submit(summarize_constants, constants)

    def observe(self, batch: Batch) -> Summaries:
        seen, _ = self._walk.observe(batch)
        put_rows(seen, self._constant_rows, self._constants.result())
        return take_rows(seen, self._order)
