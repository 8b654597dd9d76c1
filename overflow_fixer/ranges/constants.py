"""The statistics of constants, by their values; of a large one a piece is read at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future

import numpy as np

from overflow_fixer.graph.model import Graph
from overflow_fixer.native import probe_array
from overflow_fixer.ranges.probes import DETAILED
from overflow_fixer.ranges.readings import read_detailed
from overflow_fixer.ranges.summaries import (
    SUMMARY,
    Summaries,
    merge_summaries,
    no_summaries,
    put_rows,
    summarize,
    take_rows,
)
from overflow_fixer.records import Array
from overflow_fixer.sessions.settings import has_native_probes

_PIECE_BYTES = 1 << 19


class Constants:
    """The statistics of a graph's constants, found by another thread; `row_of` says where they stand among others.

    `copies` are rows of what copies them, each with the constant.
    """

    def __init__(
        self, graph: Graph, row_of: Mapping[str, int], copies: Mapping[int, str], beside: Executor
    ) -> None:
        self.row_of = row_of
        self._rows = np.array(list(row_of.values()), np.int64)
        self._copies = np.array(list(copies), np.int64)
        self._copied = np.array([row_of[name] for name in copies.values()], np.int64)
        self._place_of = {name: place for place, name in enumerate(row_of)}
        constants = [(graph, name) for name in row_of]
        self._found: Future[Summaries] = beside.submit(summarize_constants, constants)

    def fill(self, seen: Summaries, fed: Mapping[str, Summaries]) -> None:
        """Put them in their rows, in place; those that are `fed` as they are in the batch."""
        put_rows(seen, self._rows, self._found.result())
        for name, summary in fed.items():
            seen[self.row_of[name]] = summary
        put_rows(seen, self._copies, take_rows(seen, self._copied))

    def find_largest(self, name: str) -> float:
        """The largest magnitude of a constant; NaN where it is not observed."""
        place = self._place_of.get(name)
        return math.nan if place is None else float(self._found.result()["max_abs"][place])


def summarize_constants(constants: Sequence[tuple[Graph, str]]) -> Summaries:
    """The statistics [constant] of float constants, each named with its graph. Raises ModelError as read_pieces does."""
    pieces = list(_summarize_pieces(constants))
    rows = np.array([row for row, _ in pieces], np.int64)
    told = _tell([one for _, one in pieces])
    found, is_alone = no_summaries(len(constants)), np.bincount(rows)[rows] == 1
    found[rows[is_alone]] = told[is_alone]
    for row, one in zip(rows[~is_alone], told[~is_alone], strict=True):
        found[row] = merge_summaries(found[row], one)
    return found


def _summarize_pieces(constants: Iterable[tuple[Graph, str]]) -> Iterator[tuple[int, Array | Summaries]]:
    """The constant's number, and what is found in a piece of it: what a native probe tells, or a summary."""
    is_native, buffer = has_native_probes(), np.empty(_PIECE_BYTES, np.uint8).data
    for row, (graph, name) in enumerate(constants):
        for values in graph.read_constant_pieces(name, buffer):
            is_probed = is_native and values.dtype == np.float32 and values.flags.c_contiguous
            yield row, probe_array(values) if is_probed else summarize(values)


def _tell(found: Sequence[Array | Summaries]) -> Summaries:
    told = no_summaries(len(found))
    is_probed = np.array([one.dtype != SUMMARY for one in found], np.bool_)
    probed = [one for one in found if one.dtype != SUMMARY]
    told[is_probed] = read_detailed(np.array(probed, np.float64).reshape(-1, len(DETAILED)).T)
    told[~is_probed] = np.array([one for one in found if one.dtype == SUMMARY], SUMMARY)
    return told
