"""What is observed of a graph, and of the bodies of its nodes, in the order of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from overflow_fixer.ranges.carried import Values
from overflow_fixer.ranges.levels import Level
from overflow_fixer.ranges.summaries import SUMMARY, Summaries
from overflow_fixer.ranges.walk import Walk
from overflow_fixer.records import Batch


class BodyWalk(Protocol):
    """Gives the summaries [how often it ran, row of its level] of a body, over all its runs."""

    def observe(self, batch: Batch, values: Values) -> Summaries:
        """`batch` and `values` are those of the outer graph."""
        ...


class LevelWalk:
    """Gives the summaries [row of the level] of a batch, and the values that the `walk` of its graph carries."""

    def __init__(self, level: Level, walk: Walk, bodies: Sequence[BodyWalk]) -> None:
        self._walk, self._bodies = walk, bodies
        self._hidden_rows = slice(level.own_count, len(level.tensors))

    def observe(self, batch: Batch) -> tuple[Summaries, Values]:
        own, values = self._walk.observe(batch)
        if self._hidden_rows.start < self._hidden_rows.stop:
            own = np.delete(own, self._hidden_rows)
        if not self._bodies:
            return own, values
        return np.concatenate([own, *(body.observe(batch, values) for body in self._bodies)]), values


def count_runs(runs: int) -> Summaries:
    """The row [1] that says how often a body ran, at least once."""
    return np.array([(1, 1, 1, 1, runs, 0, 0, 0)], SUMMARY)
