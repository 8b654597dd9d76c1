"""The scan: walk the batches, observe every float tensor, fold what was seen into a RangeTable."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np

from overflow_fixer.errors import FixError
from overflow_fixer.graph import Graph
from overflow_fixer.ranges.observers import open_observer
from overflow_fixer.ranges.scan import Scan
from overflow_fixer.ranges.store import ScanKey, save_ranges
from overflow_fixer.ranges.summaries import Summaries, no_summaries, summarize
from overflow_fixer.records import Batch, CalibrationSet, RangeTable

Observe = Literal["reductions", "outputs"]
OnProgress = Callable[[int, int], None]

CHECKPOINT_SECONDS = 5.0


def collect_ranges(
    graph: Graph,
    calibration: CalibrationSet,
    *,
    observe: Observe = "reductions",
    progress: OnProgress | None = None,
    store: Path | None = None,
    resume: bool = True,
) -> RangeTable:
    """Run every batch and record the range of every float tensor of the main graph.

    Values are those of a run with every tensor marked as an output and graph optimisation off, bit
    for bit; NaN and infinities are counted as records.Range says. FP16 and BF16 are taken as float,
    which is exact; a double's `batch_max_abs` is rounded to float32. `observe`: "outputs" marks the
    tensors literally and needs the memory of all of them; "reductions" gives the same from probes in
    the graph, of which only scalars leave. Neither needs more memory for more batches.

    `progress` is called with (batches done, batches in all) after each batch. With `store`, what is
    done is written there every few seconds, at the end, and when the scan fails or is interrupted.
    With `resume`, a scan in `store` of the same model, data and settings goes on after its last batch,
    or is returned when finished: the result is the same, unless the model draws random numbers.

    Raises ModelError for a model or a batch that ONNX Runtime cannot run, CalibrationError when the
    data gives another number of batches than it has, OutputError when `store` cannot be written.
    """
    key = ScanKey(graph.sha256, calibration.fingerprint, observe, len(calibration))
    scan = Scan(graph, calibration, key)
    if store is not None and resume:
        scan.go_on_from(store)
    if scan.done == 0 or scan.done < key.batches_total:
        _run(scan, _Walk(graph, scan.tensors, observe), calibration, progress, _Checkpoints(scan, store))
    return scan.table()


def _run(
    scan: Scan,
    walk: _Walk,
    calibration: CalibrationSet,
    progress: OnProgress | None,
    checkpoints: _Checkpoints,
) -> None:
    """Observe the batches that are not done yet."""
    try:
        for batch in islice(calibration, scan.done, None):
            scan.add(batch.name, walk.observe(batch))
            checkpoints.write_if_due()
            if progress is not None:
                progress(scan.done, scan.key.batches_total)
        scan.check_complete()
    except BaseException:
        with suppress(FixError):  # the first error is the one to tell
            checkpoints.write()
        raise
    checkpoints.write()


class _Walk:
    """Observes all tensors of a batch: constants by their value, read once, the rest by a run."""

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


class _Checkpoints:
    """Writes a scan to its store, on the way at most every CHECKPOINT_SECONDS, and only what is new."""

    def __init__(self, scan: Scan, store: Path | None) -> None:
        self._scan = scan
        self._store = store
        self._written = scan.done
        self._last = time.monotonic()

    def write_if_due(self) -> None:
        if time.monotonic() - self._last >= CHECKPOINT_SECONDS:
            self.write()

    def write(self) -> None:
        if self._store is not None and self._scan.done > self._written:
            save_ranges(self._scan.table(), self._store, self._scan.key)
            self._written = self._scan.done
            self._last = time.monotonic()
