"""Two ways of observing the tensors of one batch, which agree bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import onnx

from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.graph import Graph, Node, bodies
from overflow_fixer.ranges.instrument import add_probes, mark_tensors
from overflow_fixer.ranges.sources import find_sources
from overflow_fixer.ranges.summaries import SUMMARY, Summaries, no_summaries, summarize
from overflow_fixer.records import Array, Batch
from overflow_fixer.sessions import open_session, run_session

_RANDOM_OPS = frozenset(
    "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial Sampling "
    "BiasDropout BitmaskDropout BitmaskBiasDropout".split()
)


class Observer(Protocol):
    """Runs one batch and gives the summaries [tensor] of the tensors it was opened for."""

    def observe(self, batch: Batch) -> Summaries: ...


class OutputObserver:
    """Every tensor marked as an output and summarized by numpy: plain, and takes the memory of all."""

    def __init__(self, graph: Graph, tensors: Sequence[str]) -> None:
        self._tensors = tensors
        self._written = tuple(name for name in tensors if name in graph.producers)
        model, self._fetches = mark_tensors(graph, self._written)
        self._session = open_session(model, graph.folder)

    def observe(self, batch: Batch) -> Summaries:
        fed = batch.feeds.keys() & set(self._tensors)
        found = {name: summarize(batch.feeds[name]) for name in fed}  # before a node can write into it
        arrays = run_session(self._session, self._fetches or None, batch)
        found |= {name: summarize(array) for name, array in zip(self._written, arrays, strict=False)}
        return np.array([found[name] for name in self._tensors], SUMMARY)


class ReductionObserver:
    """Probes in the graph, of which only scalars leave.

    A tensor that only holds another's values has no probe of its own. Each other starts with a quick probe. Where that cannot tell all (a value out of FP16's range, a
    NaN), the tensor gets a detailed probe from then on and the batch is run again. Where a second run
    of a batch could give other values, every probe is a detailed one from the start.
    """

    def __init__(self, graph: Graph, tensors: Sequence[str]) -> None:
        self._graph = graph
        sources = find_sources(graph, tensors)
        self._tensors = tuple(dict.fromkeys(sources.values()))
        row_of = {name: row for row, name in enumerate(self._tensors)}
        self._rows = np.array([row_of[sources[name]] for name in tensors], np.int64)
        self._is_detailed = np.full(len(self._tensors), not is_repeatable(graph))
        self._open()

    def observe(self, batch: Batch) -> Summaries:
        while True:
            vectors = run_session(self._session, self._fetches or None, batch)
            seen, complete = self._read(vectors[: len(self._fetches)])
            if complete.all():
                return seen[self._rows]
            self._is_detailed |= ~complete
            self._open()

    def _open(self) -> None:
        self._session: Any = None  # let go of the old one's weights before the new one reads them
        detailed = frozenset(
            name for name, is_detailed in zip(self._tensors, self._is_detailed, strict=True) if is_detailed
        )
        probed = add_probes(self._graph, self._tensors, detailed)
        self._fetches, self._quick, self._detailed = probed.fetches, probed.quick, probed.detailed
        self._session = open_session(probed.model, self._graph.folder, by_priority=True)

    def _read(self, vectors: Sequence[Array]) -> tuple[Summaries, npt.NDArray[np.bool_]]:
        """The summaries [tensor with a probe], and for each whether it tells everything."""
        scalars = np.concatenate([np.zeros(0), *vectors])
        seen = no_summaries(len(self._tensors))
        complete = self._is_detailed.copy()
        seen[~self._is_detailed], complete[~self._is_detailed] = _read_quick(scalars[self._quick])
        seen[self._is_detailed] = _read_detailed(scalars[self._detailed])
        return seen, complete


def open_observer(graph: Graph, tensors: Sequence[str], observe: str) -> Observer:
    """The observer of the way named, "reductions" or "outputs", for tensors that are no constants."""
    return (OutputObserver if observe == "outputs" else ReductionObserver)(graph, tensors)


def is_repeatable(graph: Graph) -> bool:
    """Whether a second run of the same batch is sure to give the same values."""
    return not any(_changes(graph, proto) for node in graph.nodes for proto in _with_bodies(node))


def _changes(graph: Graph, proto: onnx.NodeProto) -> bool:
    """Whether a node draws random numbers, or writes into its inputs as BatchNormalization in training does."""
    if proto.op_type == "BatchNormalization":
        return sum(map(bool, proto.output)) > 1
    if proto.op_type != "Dropout":
        return proto.op_type in _RANDOM_OPS
    if len(proto.input) < 3 or not proto.input[2]:
        return False
    training_mode = graph.read_constant(proto.input[2])
    return training_mode is None or bool(training_mode)


def _with_bodies(node: Node) -> Iterator[onnx.NodeProto]:
    pending = [node.proto]
    while pending:
        proto = pending.pop()
        yield proto
        pending += [inner for body in bodies(proto) for inner in body.node]


def _read_quick(values: npt.NDArray[np.float64]) -> tuple[Summaries, npt.NDArray[np.bool_]]:
    """values: [tensor, QUICK]. The summaries, and whether each tells everything."""
    most, least, l1, min_nonzero_abs, size = values.T
    complete = np.isfinite(l1) & (most < FP16_OVERFLOW) & (least > -FP16_OVERFLOW)
    seen = no_summaries(len(values))
    seen["element_count"] = size
    _set_magnitudes(seen, most, least, size > 0)
    seen["min_nonzero_abs"] = np.where(min_nonzero_abs < FP16_OVERFLOW, min_nonzero_abs, np.nan)
    return seen, complete


def _read_detailed(values: npt.NDArray[np.float64]) -> Summaries:
    """values: [tensor, DETAILED]."""
    most, least, min_nonzero_abs, size, nan, below, finite = values.T
    seen = no_summaries(len(values))
    seen["element_count"], seen["nan_count"] = size, nan
    seen["inf_count"], seen["over_fp16_count"] = size - nan - finite, size - nan - below
    _set_magnitudes(seen, most, least, size > nan)
    is_none = np.isinf(min_nonzero_abs) & (seen["inf_count"] == 0)
    seen["min_nonzero_abs"] = np.where(is_none, np.nan, min_nonzero_abs)
    return seen


def _set_magnitudes(
    seen: Summaries, most: npt.NDArray[Any], least: npt.NDArray[Any], present: npt.NDArray[np.bool_]
) -> None:
    """Set max_abs, min and max where an element is `present`; adding 0 turns -0 into 0."""
    seen["max"] = np.where(present, most + 0.0, np.nan)
    seen["min"] = np.where(present, least + 0.0, np.nan)
    seen["max_abs"] = np.where(present, np.maximum(np.abs(most), np.abs(least)), np.nan)
