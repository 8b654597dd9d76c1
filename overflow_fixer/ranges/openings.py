"""How a graph is observed: in a session of its own, or, a body, in the midst of the run of the graph around it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.repeatability import is_repeatable
from overflow_fixer.ranges.interleaving import Instead
from overflow_fixer.ranges.midst import Midst
from overflow_fixer.ranges.observers import Observe, choose_observe, is_native, open_observer
from overflow_fixer.ranges.small_values import SmallValues
from overflow_fixer.ranges.wanted import Observer, Wanted
from overflow_fixer.records import Batch
from overflow_fixer.sessions.providers import Provider


@dataclass(frozen=True)
class Settings:
    """How a scan observes; see docs/scan.md. `beside` is a thread for what can wait."""

    observe: Observe
    provider: Provider
    small_values: SmallValues
    beside: Executor


Select = Callable[[Batch], Batch]
"""Gives, of the batch of a run, what it feeds to a graph."""


def select_all(batch: Batch) -> Batch:
    """What it feeds to the model itself."""
    return batch


@dataclass(frozen=True, eq=False)
class Opening:
    """How the observer of a graph is opened.

    `has_watches`: its products can be watched in the midst of a run, `in_pieces`: large constants be read for them piece by
    piece. Where it `is_run_once`, no batch can be run again: all that may be wanted of it is to be taken from the start.
    What it gives of a batch `is_tallied` where it is what several runs gave.
    """

    open: Callable[[Graph, Wanted], Observer]
    midst: Midst
    has_watches: bool
    in_pieces: bool
    is_run_once: bool
    is_tallied: bool = False
    select: Select = select_all


def open_by_itself(
    graph: Graph, settings: Settings, midst: Midst | None = None, instead: Instead | None = None
) -> Opening:
    """In a session, with other nodes `instead` of its control flow."""
    chosen = choose_observe(graph, settings.observe, settings.provider)

    def open_anew(expressed: Graph, wanted: Wanted) -> Observer:
        wanted = replace(wanted, instead=instead or {})
        return open_observer(expressed, wanted, chosen, settings.provider, graph.sure_shapes)

    return Opening(
        open=open_anew,
        midst=midst or Midst(),
        has_watches=chosen == "reductions" and is_native(chosen, settings.provider),
        in_pieces=settings.provider == "cpu",
        is_run_once=not is_repeatable(graph),
    )
