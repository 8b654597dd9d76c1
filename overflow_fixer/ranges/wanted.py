"""What is wanted of the run of a batch, and what an observer gives of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges.carried import Values
from overflow_fixer.ranges.interleaving import Instead
from overflow_fixer.ranges.midst import Midst
from overflow_fixer.ranges.sources import find_sources
from overflow_fixer.ranges.summaries import Summaries
from overflow_fixer.ranges.watches import Watch
from overflow_fixer.records import Batch


@dataclass(frozen=True)
class Look:
    """What is taken of a tensor of which not everything matters: some of the words "max", "min" and "sum".

    Values over FP16's range are not counted, but for one that may hold a NaN. That is shown by the sum, or by
    `guard`, another tensor: where that holds a value out of range, infinite or NaN, this one is counted. Where several runs
    are added up, it is taken in those in which the guard holds more than `longest_untold` elements for each of its own, and
    FP16 can hold all that is in the tensors `held`.
    """

    words: frozenset[str]
    guard: str | None = None
    longest_untold: int = 0
    held: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wanted:
    """What an observer takes of a batch.

    `small` are the `tensors` whose smallest magnitude is taken, `looks` those of which not everything is. `extremes`
    names, for a tensor, others that hold, of each of its rows, the largest, the smallest, and what is NaN where an
    element is. `carried` are tensors, of any type, that nodes write and whose values are wanted as well. `detailed` are
    tensors known to hold NaN, or what FP16 cannot hold, so that these are counted from the first batch on. Where there are
    native probes, `watches` stand in the run, and `instead` of control-flow nodes others do, by their labels; what these
    do takes place in the `midst` of it.
    """

    tensors: Sequence[str]
    small: Collection[str] = ()
    looks: Mapping[str, Look] = field(default_factory=dict)
    extremes: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    carried: Sequence[str] = ()
    detailed: Collection[str] = ()
    watches: Sequence[Watch] = ()
    instead: Instead = field(default_factory=dict)
    midst: Midst = field(default_factory=Midst)


class Observed(NamedTuple):
    """Of one batch: the summaries [tensor] of Wanted.tensors, and the values of those carried."""

    summaries: Summaries
    values: Values


class Observer(Protocol):
    """Runs one batch and gives what it was opened for."""

    def observe(self, batch: Batch) -> Observed: ...


class Held(NamedTuple):
    """The `tensors` that hold values of their own, and which of them holds those of each tensor: see sources.find_sources.

    `small` are those whose smallest magnitude is taken, `rows` [tensor of Wanted.tensors] say where each stands.
    """

    sources: Mapping[str, str]
    tensors: tuple[str, ...]
    small: frozenset[str]
    rows: npt.NDArray[np.int64]

    @staticmethod
    def of(graph: Graph, wanted: Wanted, looks: Iterable[str]) -> Held:
        """`looks` are tensors of which something is taken as well."""
        sources = find_sources(graph, list(dict.fromkeys((*wanted.tensors, *looks))))
        tensors = tuple(dict.fromkeys(sources.values()))
        small = frozenset(sources[name] for name in wanted.tensors if name in wanted.small)
        row_of = {name: row for row, name in enumerate(tensors)}
        return Held(
            sources, tensors, small, np.array([row_of[sources[name]] for name in wanted.tensors], np.int64)
        )
