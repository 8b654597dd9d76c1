"""What is inside If, Loop and Scan: each body observed in each of its runs, at any depth.

A run of a graph gives the values that its control-flow nodes read as well. These are then interpreted, and what is
observed of a body in each run is merged: over the runs as over batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

import numpy as np

from overflow_fixer.body_graphs import Body, find_bodies
from overflow_fixer.graph import Graph
from overflow_fixer.inner import Inside, look_inside
from overflow_fixer.providers import Provider
from overflow_fixer.ranges.carried import Values
from overflow_fixer.ranges.constants import summarize_constants
from overflow_fixer.ranges.coverage import observed_tensors
from overflow_fixer.ranges.interpretation import find_carried, interpret
from overflow_fixer.ranges.observers import Observe
from overflow_fixer.ranges.recording import Inner, name_runs
from overflow_fixer.ranges.small_values import SmallValues
from overflow_fixer.ranges.summaries import SUMMARY, Summaries, merge_summaries, no_summaries
from overflow_fixer.ranges.walk import Walk
from overflow_fixer.records import Batch

_ONE_RUN = np.array([(1, 1, 1, 1, 1, 0, 0, 0)], SUMMARY)


@dataclass(frozen=True)
class Settings:
    """How a scan observes; see docs/scan.md. `beside` is a thread for what can wait."""

    observe: Observe
    provider: Provider
    small_values: SmallValues
    beside: Executor


@dataclass(frozen=True, eq=False)
class Row:
    """What one row of a recording is about: the tensor `name` of a graph, or a value inside a node."""

    graph: Graph
    name: str
    about: str | Inner
    """The tensor by its name in the recording, or the value."""

    @property
    def is_constant(self) -> bool:
        return isinstance(self.about, str) and self.name in self.graph.constants

    def put_under(self, prefix: str) -> Row:
        """The same in a graph in which names of this one begin with `prefix`."""
        if isinstance(self.about, str):
            return replace(self, about=prefix + self.about)
        return replace(self, about=replace(self.about, node=prefix + self.about.node))


@dataclass(frozen=True, eq=False)
class Level:
    """What a scan observes of one graph, and of the bodies of its nodes.

    The first `own_count` of `tensors` have rows here; the others are constants of the outer graph.
    """

    graph: Graph
    inside: Inside
    tensors: tuple[str, ...]
    own_count: int
    bodies: tuple[tuple[Body, Level], ...]

    def rows(self) -> Iterator[Row]:
        """In the order in which they are observed: those of the graph, then of each body how often it ran, and its own."""
        yield from (Row(self.graph, name, name) for name in self.tensors[: self.own_count])
        yield from (self._inner(value.node, value.quantity, value.is_bound) for value in self.inside.values)
        yield from (self._inner(product.node.label, "products", True) for product in self.inside.products)
        for body, level in self.bodies:
            yield self._inner(*name_runs(body.node.label, body.node.op_type, body.attribute), False)
            yield from (row.put_under(body.prefix) for row in level.rows())

    def _inner(self, node: str, quantity: str, is_bound: bool) -> Row:
        return Row(self.graph, "", Inner(node, quantity, is_bound))


def find_level(graph: Graph, is_native: bool = False, hidden: frozenset[str] = frozenset()) -> Level:
    """What there is to observe from this graph on. `hidden` are constants that belong to the outer one."""
    observed = observed_tensors(graph)
    own = [name for name in observed if name not in hidden]
    rest = [name for name in observed if name in hidden]
    bodies = tuple(
        (body, find_level(body.graph, is_native, body.captured_constants)) for body in find_bodies(graph).read
    )
    return Level(graph, look_inside(graph, is_native), (*own, *rest), len(own), bodies)


class ModelWalk:
    """Gives the summaries of a batch, in the order of a recording: rows of `tensors`, then rows of `inner`.

    Where the model has no control flow, there is nothing to it but a walk. Constants of bodies are present once in
    each batch, whether the body runs or not.
    """

    def __init__(self, level: Level, settings: Settings) -> None:
        self._walk = _LevelWalk(level, (), settings)
        rows = list(level.rows())
        is_inner = [isinstance(row.about, Inner) for row in rows]
        self._order = np.argsort(is_inner, kind="stable")
        self._constant_rows = [
            i for i, row in enumerate(rows) if row.is_constant and row.graph is not level.graph
        ]
        constants = [(rows[i].graph, rows[i].name) for i in self._constant_rows]
        self._constants = settings.beside.submit(summarize_constants, constants)

    def observe(self, batch: Batch) -> Summaries:
        seen, _ = self._walk.observe(batch)
        seen[self._constant_rows] = self._constants.result()
        return seen[self._order]


class _LevelWalk:
    """Gives the summaries [row of the level] of a batch, and the values of the tensors `carried`."""

    def __init__(self, level: Level, carried: Sequence[str], settings: Settings) -> None:
        graph, how = level.graph, (settings.observe, settings.provider, settings.small_values)
        inputs = [name for body, _ in level.bodies for name in body.node.inputs if name]
        captured = [name for body, _ in level.bodies for name in body.captured if name not in graph.constants]
        wanted = (*carried, *inputs, *captured)
        self._walk = Walk(graph, level.tensors, level.inside, *how, settings.beside, wanted)
        self._hidden_rows = slice(level.own_count, len(level.tensors))
        self._bodies = [_BodyWalk(body, inner, settings) for body, inner in level.bodies]

    def observe(self, batch: Batch) -> tuple[Summaries, Values]:
        own, values = self._walk.observe(batch)
        if self._hidden_rows.start < self._hidden_rows.stop:
            own = np.delete(own, self._hidden_rows)
        if not self._bodies:
            return own, values
        return np.concatenate([own, *(body.observe(batch, values) for body in self._bodies)]), values


class _BodyWalk:
    """Gives the summaries [how often it ran, row of the level] of a body, over all its runs. Opened by the first."""

    def __init__(self, body: Body, level: Level, settings: Settings) -> None:
        self._body, self._level, self._settings = body, level, settings
        self._count = 1 + sum(1 for _ in level.rows())
        given = {info.name for info in body.graph.model.graph.input}  # defaults too, that a batch may replace
        self._fed = given.intersection(body.captured)
        self._walk: _LevelWalk | None = None

    def observe(self, batch: Batch, values: Values) -> Summaries:
        """`batch` and `values` are those of the outer graph."""
        seen = no_summaries(self._count)
        outer = {name: array for name, array in {**batch.feeds, **values}.items() if name in self._fed}

        def run(inputs: Values) -> Values:
            found, carried = self._open().observe(Batch(batch.name, {**outer, **inputs}))
            seen[:] = merge_summaries(seen, np.concatenate([_ONE_RUN, found]))
            return carried

        interpret(self._body, values, run)
        return seen

    def _open(self) -> _LevelWalk:
        if self._walk is None:
            self._walk = _LevelWalk(self._level, find_carried(self._body), self._settings)
        return self._walk
