"""Bodies run in Python: a run of a graph gives the values that its control-flow nodes read as well, which are then interpreted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overflow_fixer.graph.body_graphs import Body
from overflow_fixer.ranges.carried import Values
from overflow_fixer.ranges.interpretation import find_carried, interpret
from overflow_fixer.ranges.level_walk import LevelWalk, count_runs
from overflow_fixer.ranges.levels import Level
from overflow_fixer.ranges.openings import Settings, open_by_itself
from overflow_fixer.ranges.summaries import Summaries, merge_summaries, no_summaries
from overflow_fixer.ranges.walk import Walk
from overflow_fixer.records import Batch


def open_interpreted(level: Level, settings: Settings, carried: Sequence[str] = ()) -> LevelWalk:
    """A session of its own for each graph of the level; bodies are opened by their first run."""
    graph = level.graph
    inputs = [name for body, _ in level.bodies for name in body.node.inputs if name]
    captured = [name for body, _ in level.bodies for name in body.captured if name not in graph.constants]
    opening = open_by_itself(graph, settings)
    wanted = (*carried, *inputs, *captured)
    walk = Walk(graph, level.tensors, level.inside, settings, opening, wanted)
    return LevelWalk(level, walk, [_InterpretedBody(body, inner, settings) for body, inner in level.bodies])


class _InterpretedBody:
    """A BodyWalk."""

    def __init__(self, body: Body, level: Level, settings: Settings) -> None:
        self._body, self._level, self._settings = body, level, settings
        self._count = 1 + len(level.rows)
        given = {info.name for info in body.graph.model.graph.input}  # defaults too, that a batch may replace
        self._fed = given.intersection(body.captured)
        self._walk: LevelWalk | None = None

    def observe(self, batch: Batch, values: Values) -> Summaries:
        seen = no_summaries(self._count)
        outer = {name: array for name, array in {**batch.feeds, **values}.items() if name in self._fed}

        def run(inputs: Values) -> Values:
            found, carried = self._open().observe(Batch(batch.name, {**outer, **inputs}))
            seen[:] = merge_summaries(seen, np.concatenate([count_runs(1), found]))
            return carried

        interpret(self._body, values, run)
        return seen

    def _open(self) -> LevelWalk:
        if self._walk is None:
            self._walk = open_interpreted(self._level, self._settings, find_carried(self._body))
        return self._walk
