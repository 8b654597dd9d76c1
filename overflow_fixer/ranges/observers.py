"""The ways of observing the tensors of one batch; marked outputs and reductions agree bit for bit."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from onnx import TensorProto

from overflow_fixer.errors import ModelError
from overflow_fixer.files import open_temporary
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.repeatability import is_repeatable
from overflow_fixer.ranges.carried import restore_fetched
from overflow_fixer.ranges.derivations import (
    Derivation,
    derive,
    derive_from_rows,
    find_derivations,
    leave_out_of_range,
    order_steps,
    tally,
)
from overflow_fixer.ranges.fetched import mark_tensors
from overflow_fixer.ranges.guards import find_covers
from overflow_fixer.ranges.instrument import Probed, add_probes
from overflow_fixer.ranges.lasting import find_lasting
from overflow_fixer.ranges.optimized import has_faster_kernels, optimize_probed
from overflow_fixer.ranges.probing import Probing, count_elements
from overflow_fixer.ranges.readings import Flags, read_probes, set_extremes
from overflow_fixer.ranges.summaries import (
    SUMMARY,
    Summaries,
    no_summaries,
    put_rows,
    summarize,
    take_rows,
)
from overflow_fixer.ranges.wanted import Held, Look, Observed, Observer, Wanted
from overflow_fixer.records import Array, Batch, Dim
from overflow_fixer.sessions.providers import Provider
from overflow_fixer.sessions.refusals import first_line
from overflow_fixer.sessions.session import open_session, run_session
from overflow_fixer.sessions.settings import has_native_probes

Observe = Literal["reductions", "outputs", "optimized"]


def is_native(observe: Observe, provider: Provider) -> bool:
    """Whether a scan's observers have native probes."""
    return observe != "outputs" and provider == "cpu" and has_native_probes()


def choose_observe(graph: Graph, observe: Observe, provider: Provider) -> Observe:
    """How a scan of the model observes: "optimized" only where there are other kernels to run, on the CPU."""
    if observe == "optimized" and not (provider == "cpu" and has_faster_kernels(graph)):
        return "reductions"
    return observe


class OutputObserver:
    """Every tensor marked as an output and summarized by numpy: plain, and takes the memory of all."""

    def __init__(self, graph: Graph, wanted: Wanted, provider: Provider = "cpu") -> None:
        self._graph, self._tensors, self._carried = graph, wanted.tensors, wanted.carried
        self._written = tuple(name for name in wanted.tensors if name in graph.producers)
        marked = list(dict.fromkeys((*self._written, *wanted.carried)))
        model, fetches = mark_tensors(graph, marked)
        self._fetch_of = dict(zip(marked, fetches, strict=True))
        self._session = open_session(model, graph.folder, provider=provider)

    def observe(self, batch: Batch) -> Observed:
        fed = batch.feeds.keys() & set(self._tensors)
        found = {name: summarize(batch.feeds[name]) for name in fed}  # before a node can write into it
        fetches = list(self._fetch_of.values())
        arrays = dict(zip(self._fetch_of, run_session(self._session, fetches or None, batch), strict=False))
        found |= {name: summarize(arrays[name]) for name in self._written}
        values = restore_fetched(self._graph, self._carried, [arrays[name] for name in self._carried])
        return Observed(np.array([found[name] for name in self._tensors], SUMMARY), values)


def _look_at_rows(
    looks: Mapping[str, Look], extremes: Mapping[str, tuple[str, str, str]]
) -> Iterator[tuple[str, Look]]:
    """The looks at `extremes`, each with what is taken of that tensor anyway."""
    for rows in extremes.values():
        for tensor, word in zip(rows, ("max", "min", "sum"), strict=True):
            own = looks.get(tensor, Look(frozenset()))
            yield tensor, replace(own, words=own.words | {word})


class ReductionObserver:
    """Probes in the graph, of which only short vectors leave.

    A tensor that only holds another's values, or whose extremes follow from another's, has no probe of its own. Where there are
    native probes, each other has one, unless a native node of the graph tells of it. Else it starts with a quick probe. Where
    that cannot tell all (a value out of FP16's range, a NaN), or what was derived has such a value that is not counted in what it
    is made of, the tensor gets a detailed probe from then on and the batch is run again. Where a second run of a batch could give
    other values, every tensor has a detailed probe from the start. `shapes` are those that can be relied on; what the model
    itself records is not.
    """

    _tells_in_memory = True

    def __init__(
        self,
        graph: Graph,
        wanted: Wanted,
        provider: Provider = "cpu",
        shapes: Mapping[str, Sequence[Dim]] | None = None,
    ) -> None:
        self._graph, self._provider, self._carried = graph, provider, wanted.carried
        self._watches, self._instead, self._midst = wanted.watches, wanted.instead, wanted.midst
        looks = {**wanted.looks, **dict(_look_at_rows(wanted.looks, wanted.extremes))}
        held = Held.of(graph, wanted, looks)
        self._sources, self._tensors, self._small, self._rows = held
        sources, row_of = held.sources, {name: row for row, name in enumerate(held.tensors)}
        self._row_of = row_of
        self._words = {name: look.words for name, look in looks.items()}
        guards = ((name, sources.get(look.guard or "")) for name, look in looks.items())
        self._guards = [(row_of[name], row_of[guard]) for name, guard in guards if guard is not None]
        self._is_partial = np.array([name in looks for name in self._tensors], np.bool_)
        self._is_detailed = np.full(len(self._tensors), not is_repeatable(graph))
        self._is_detailed[[row_of[sources[name]] for name in wanted.detailed]] = True
        self._shapes = graph.sure_shapes if shapes is None else shapes
        self._is_native = is_native("reductions", provider)
        self._derivations = [
            one for one in self._find_derivations(wanted.extremes) if one.tensor not in self._small
        ]
        self._in_rows = provider == "cpu"  # CUDA reduces 64 rows some 500 times slower than one
        self._lasting = dict.fromkeys(find_lasting(graph), 0) if self._is_native else {}
        if self._is_native:
            self._is_detailed |= self._find_native()
        self._open()

    def _find_native(self) -> Flags:
        """The tensors [tensor] with a native probe: all but doubles, and what can be derived."""
        is_native = np.array(
            [self._graph.dtypes[name] != TensorProto.DOUBLE for name in self._tensors], np.bool_
        )
        is_native[[self._row_of[one.tensor] for one in self._derivations]] = False
        return is_native

    def _find_derivations(self, extremes: Mapping[str, tuple[str, str, str]]) -> Iterator[Derivation]:
        """Sources come before what is derived of them; each is a tensor of which both extremes are taken."""
        partial = {name for name, words in self._words.items() if not {"max", "min"} <= words}
        everything = find_derivations(self._graph, self._sources)
        if self._is_native:
            everything = leave_out_of_range(self._graph, everything)
        found = [derivation for derivation in everything if partial.isdisjoint(derivation.sources)]
        derived = {derivation.tensor for derivation in found}
        for tensor, rows in extremes.items():
            source = self._sources.get(tensor, "")
            count = count_elements(self._shapes.get(source))
            if source in self._row_of and source not in derived and count is not None:
                derived.add(source)
                yield derive_from_rows(source, rows, count)
        yield from found

    def observe(self, batch: Batch) -> Observed:
        while True:
            vectors, fetched = self._run(batch)
            seen, is_told = self._read(vectors)
            if is_told.all():
                values = restore_fetched(self._graph, self._carried, fetched)
                return Observed(take_rows(seen, self._rows), values)
            self._is_detailed |= ~is_told
            self._open()

    def _open(self) -> None:
        self._session: Any = None  # let go of the old one's weights before the new one reads them
        derived = [one for one in self._derivations if not self._is_detailed[self._row_of[one.tensor]]]
        self._steps = order_steps(derived, self._row_of)
        self._is_probed = np.full(len(self._tensors), True)
        self._is_probed[[self._row_of[one.tensor] for one in derived]] = False
        self._derived = np.flatnonzero(~self._is_probed)
        self._open_guards = [(row, guard) for row, guard in self._guards if not self._is_detailed[row]]
        probed = [self._tensors[row] for row in np.flatnonzero(self._is_probed)]
        detailed = frozenset(self._tensors[row] for row in np.flatnonzero(self._is_detailed))
        covers = self._find_covers(frozenset(probed) - detailed)
        places = self._shapes, self._sources, self._in_rows, self._is_native, self._lasting
        follows = {one.tensor: one for one in derived}
        how = Probing(
            detailed,
            self._small,
            covers,
            self._words,
            *places,
            derivations=follows,
            in_memory=self._is_native and self._tells_in_memory,
        )
        self._probed = add_probes(self._graph, probed, how, self._carried, self._watches, self._instead)
        self._covers = [(self._row_of[name], self._row_of[cover]) for name, cover in reversed(covers.items())]
        self._session = self._open_probed(self._probed)

    def _find_covers(self, quick: Collection[str]) -> dict[str, str]:
        """The tensors of a quick probe that need no guard, with what shows their NaN."""
        if not quick:
            return {}
        known = {name: count_elements(dims) for name, dims in self._shapes.items()}
        counts = {name: count for name, count in known.items() if count is not None}
        probed = [name for row, name in enumerate(self._tensors) if self._is_probed[row]]
        covers = find_covers(self._graph, self._sources, probed, counts)
        return {name: cover for name, cover in covers.items() if name in quick}

    def _open_probed(self, probed: Probed) -> Any:
        return open_session(
            probed.build_model(), self._graph.folder, by_priority=True, provider=self._provider
        )

    def _run(self, batch: Batch) -> tuple[Sequence[Array], Sequence[Any]]:
        """What the probes tell, and what is carried."""
        probed = self._probed
        with self._midst.run(batch):
            found = run_session(self._session, probed.wanted or None, batch, self._midst.options)
        vectors, behind = found[: len(probed.fetches)], found[len(probed.fetches) :]
        return [probed.memory, *vectors], behind[: len(probed.carried)]

    def _read(self, vectors: Sequence[Array]) -> tuple[Summaries, Flags]:
        """The summaries [tensor with values of its own], and which of them tell everything."""
        found = read_probes(self._probed, vectors)
        is_quick = self._is_probed & ~self._is_detailed
        seen = no_summaries(len(self._tensors))
        put_rows(seen, is_quick, found.quick)
        put_rows(seen, self._is_detailed, found.detailed)
        has_nan = seen["nan_count"] > 0
        has_nan[is_quick] = found.may_be_nan
        for row, cover in self._covers:  # from the last on, since a cover may have one
            has_nan[row] = has_nan[cover]
        is_plain = ~has_nan & (seen["over_fp16_count"] == 0)
        is_plain[is_quick] &= found.is_in_range | (self._is_partial & np.isfinite(seen["max_abs"]))[is_quick]
        if self._steps:
            self._derive(seen, is_plain, has_nan)
        for row, guard in self._open_guards:
            is_plain[row] &= is_plain[guard]
        is_counted = self._is_detailed | (is_plain & ~self._is_partial)
        if not (is_plain | is_counted).all():
            high = np.full(len(self._tensors), np.nan)
            high[self._is_detailed] = found.high
            tally(self._steps, seen, high, is_counted)
        return seen, is_plain | is_counted

    def _derive(self, seen: Summaries, is_plain: Flags, has_nan: Flags) -> None:
        """Fill in the derived tensors, in place. A double, of which nothing is derived, may be over float32's range."""
        with np.errstate(over="ignore"):
            ends = np.stack([seen["min"], seen["max"]]).astype(np.float32)
        derive(self._steps, ends, seen["element_count"], is_plain, has_nan)
        found = take_rows(seen, self._derived)
        least, most = ends[:, self._derived].astype(np.float64)
        set_extremes(found, most, least, found["element_count"] > 0)
        put_rows(seen, self._derived, found)


class OptimizedObserver(ReductionObserver):
    """The same in a model that ONNX Runtime has optimised: as fast as inference, values off by rounding."""

    _tells_in_memory = False

    def _open_probed(self, probed: Probed) -> Any:
        try:
            with open_temporary() as work:
                model, folder = optimize_probed(probed, work)
                return open_session(model, folder, by_priority=True, pack_weights=False)
        except ModelError as error:
            super()._open_probed(probed)  # one that ONNX Runtime refuses as it stands is told as such
            raise ModelError(
                f"ONNX Runtime cannot optimise the model, or refuses what it made of it: {first_line(error.__cause__ or error)}. "
                "Expected a model that it optimises, since --fast observes what comes of that. Leave --fast out: the scan then "
                "runs the model as it stands."
            ) from error


def open_observer(
    graph: Graph,
    wanted: Wanted,
    observe: Observe,
    provider: Provider,
    shapes: Mapping[str, Sequence[Dim]] | None = None,
) -> Observer:
    """The observer of the way named, of those that choose_observe gives, for tensors that are no constants."""
    if observe == "outputs":
        return OutputObserver(graph, wanted, provider)
    if observe == "optimized":
        return OptimizedObserver(graph, wanted, shapes=shapes)
    return ReductionObserver(graph, wanted, provider, shapes)
