"""The scan: walk the batches, observe every float tensor, fold what was seen into a RangeTable."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path

from overflow_fixer.errors import FixError
from overflow_fixer.graph import Graph
from overflow_fixer.ranges.scan import Scan
from overflow_fixer.ranges.store import ScanKey, save_ranges
from overflow_fixer.ranges.walk import Observe, Walk
from overflow_fixer.records import CalibrationSet, RangeTable

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
        _run(scan, Walk(graph, scan.tensors, observe), calibration, progress, _Checkpoints(scan, store))
    return scan.table()


def _run(
    scan: Scan,
    walk: Walk,
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
