"""The scan: walk the batches, observe every float tensor, fold what was seen into a RangeTable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

from overflow_fixer.annotations import held_to_types
from overflow_fixer.calibration.given import check_given, check_set, read_synthetic, read_text
from overflow_fixer.errors import FixError, ModelError
from overflow_fixer.files import is_utf8
from overflow_fixer.graph.model import Graph
from overflow_fixer.host.garbage import no_search_for_garbage
from overflow_fixer.host.shortages import ROOM_FOR_A_BATCH
from overflow_fixer.model_file.malformed import refuse_malformed
from overflow_fixer.ranges.bodies import ModelWalk
from overflow_fixer.ranges.coverage import not_observed
from overflow_fixer.ranges.levels import Level, find_level
from overflow_fixer.ranges.observers import Observe, choose_observe, is_native
from overflow_fixer.ranges.openings import Settings
from overflow_fixer.ranges.over_limit import OnOver, OverLimit, ignore_over
from overflow_fixer.ranges.recording import Part, Recording, ScanKey, no_batches
from overflow_fixer.ranges.resumption import Existing, find_begun
from overflow_fixer.ranges.scan import Scan
from overflow_fixer.ranges.small_values import SmallValues
from overflow_fixer.ranges.store import save_recording
from overflow_fixer.ranges.summaries import has_fractions
from overflow_fixer.records import Batch, CalibrationSet, PlanPolicy, RangeTable
from overflow_fixer.sessions.providers import Provider
from overflow_fixer.sessions.settings import hash_custom_ops

OnProgress = Callable[[int, int], None]

CHECKPOINT_SECONDS = 5.0
_CHECKPOINT_SHARE = 0.05
"""Of the time, what checkpoints may take: those of a large scan are rarer."""
_ROOM_BYTES = 32 << 20
"""Held back, untouched, so that what is done can be written where memory has run out, and what writes it be loaded."""


def ignore_progress(done: int, total: int) -> None:
    """Tell nobody."""


@held_to_types
def collect_ranges(
    graph: Graph,
    calibration: CalibrationSet,
    *,
    observe: Observe = "reductions",
    provider: Provider = "cpu",
    small_values: SmallValues = "needed",
    progress: OnProgress = ignore_progress,
    over: OnOver = ignore_over,
    limit: float = PlanPolicy.threshold,
    store: Path | str | None = None,
    existing: Existing = "keep",
) -> RangeTable:
    """Run every batch; record the range of every float tensor, in bodies too, and of what nodes compute inside.

    Values are those of a run with every tensor marked as an output and graph optimisation off, bit for bit
    ("optimized": those of other kernels); NaN and infinities are counted as records.Range says. FP16 and BF16 are
    taken as float, which is exact; a double's `batch_max_abs` is rounded to float32. Memory does not grow with the
    batches, but by 4 bytes for each tensor and batch, its max |x|. docs/scan.md tells of `observe` and `provider` (which
    must load here), docs/numerics.md of `small_values`.

    `progress` is called with (batches done, batches in all) at the start and after each batch, before that `over`
    with the ranges so far of the tensors whose max |x| is newly over `limit`, or further over it, or that show their
    first NaN. What either raises ends the scan, as a KeyboardInterrupt does.

    With `store`, what is done is written there every few seconds, at the end, and when the scan fails or is stopped.
    A scan in `store` of the same model, data, settings and versions goes on after its last batch, or is returned when
    finished: the result is the same, unless the model draws random numbers. For another file there see
    resumption.Existing.

    `calibration` is what open_calibration makes, or an object of your own with what records.CalibrationSet tells: it has a
    `source`, `synthetic` and `fingerprint`, a len() of batches, and gives these Batch objects each time it is walked.

    Raises ModelError for a model or a batch that ONNX Runtime cannot run or memory cannot hold, and where the model's files are
    written meanwhile, CalibrationError for other data than such a set (a list, a generator), for a batch that does not fit the
    model (see calibration.given.check_given), two of one name, no batch or another number than it has, OutputError when `store`
    cannot be written, PlanError when another file is in the way there, ConfigError for another word than `observe`, `provider`,
    `small_values` and `existing` may be.
    """
    check_set(calibration)
    store = None if store is None else Path(store)
    # a second a GB of weights and data to hash
    with refuse_malformed(graph.path), ThreadPoolExecutor(max_workers=1) as beside:
        observe = choose_observe(graph, observe, provider)
        hashing = beside.submit(_make_key, graph, calibration, store, observe, provider, small_values)
        is_there = store is not None and os.path.exists(store)
        with no_search_for_garbage():
            level = find_level(graph, is_native(observe, provider))
            settings = Settings(observe, provider, small_values, beside)
            batches = None if is_there else _read_ahead(iter(calibration), beside)
            walk = None if is_there else ModelWalk(level, settings)
        key = hashing.result()
        begun = None if store is None else find_begun(store, key, existing)
        scan = Scan(_begin(level, calibration, key, begun))
        watch = OverLimit(limit, over)
        watch.look(scan.recording)
        progress(scan.done, scan.total)
        if scan.done == 0 or scan.done < scan.total:  # data that give no batch are an error even so
            walk = walk or ModelWalk(level, settings)
            batches = batches or _read_ahead(islice(calibration, scan.done, None), beside)
            checked = (check_given(batch, calibration, graph.inputs, graph.defaults) for batch in batches)
            _run(scan, walk, graph, checked, progress, watch, _Checkpoints(scan, store))
    return scan.recording.table()


def _make_key(
    graph: Graph,
    calibration: CalibrationSet,
    store: Path | None,
    observe: str,
    provider: str,
    small_values: str,
) -> ScanKey:
    fingerprint = "" if store is None else read_text(calibration, "fingerprint")
    own = (observe, len(calibration), provider, small_values, hash_custom_ops())
    return ScanKey(graph.sha256, fingerprint, *own)


def _begin(level: Level, calibration: CalibrationSet, key: ScanKey, begun: Recording | None) -> Recording:
    """What there is to go on from; the data are told by the path that they have now."""
    done = 0 if begun is None else len(begun.batch_names)
    told = read_text(calibration, "source"), read_synthetic(calibration)
    part = Part(*told, key.calibration_fingerprint, done)
    if begun is None:
        begun = _begin_anew(level, key, part)
    path = os.path.abspath(level.graph.path)
    model_path = path if is_utf8(path) else ""  # HDF5 takes no other text
    return replace(begun, parts=(part,), model_stamp=level.graph.stamp, model_path=model_path)


def _begin_anew(level: Level, key: ScanKey, part: Part) -> Recording:
    rows = [row.about for row in level.rows]
    tensors = tuple(about for about in rows if isinstance(about, str))
    inner = tuple(about for about in rows if not isinstance(about, str))
    return no_batches(key, part, tensors, inner, not_observed(level.graph))


def _run(
    scan: Scan,
    walk: ModelWalk,
    graph: Graph,
    batches: Iterable[Batch],
    progress: OnProgress,
    watch: OverLimit,
    checkpoints: _Checkpoints,
) -> None:
    """Observe the batches that are not done yet."""
    try:
        for batch in batches:
            # before a node can write into what is fed
            fractional = _find_fractional(graph, batch, scan.recording.fractional)
            observed = walk.observe(batch)
            graph.check_unchanged()
            scan.add(batch.name, observed, fractional)
            checkpoints.write_if_due()
            watch.look(scan.recording)
            progress(scan.done, scan.total)
        scan.check_complete()
    except Exception as error:
        with suppress(FixError, MemoryError, OSError):  # the first error is the one to tell
            checkpoints.write_failed()
        if isinstance(error, MemoryError):
            raise _out_of_memory(scan) from error
        raise
    except BaseException:  # stopped: where what is done cannot be kept, that is the news
        checkpoints.write()
        raise
    checkpoints.write()


def _find_fractional(graph: Graph, batch: Batch, known: frozenset[str]) -> frozenset[str]:
    """The float inputs in which numbers are not whole, but for those that are known."""
    fed = {spec.name: batch.feeds.get(spec.name) for spec in graph.inputs if spec.name not in known}
    arrays = {
        name: value for name, value in fed.items() if isinstance(value, np.ndarray) and graph.is_float(name)
    }
    return frozenset(name for name, value in arrays.items() if has_fractions(value))


def _read_ahead(batches: Iterator[Batch], beside: Executor) -> Iterator[Batch]:
    """The same, the first read from now on, each other while the one before it is used."""
    return _hand_on(beside.submit(next, batches, None), batches, beside)


def _hand_on(pending: Future[Batch | None], batches: Iterator[Batch], beside: Executor) -> Iterator[Batch]:
    while (batch := pending.result()) is not None:
        pending = beside.submit(next, batches, None)
        yield batch


def _out_of_memory(scan: Scan) -> ModelError:
    return ModelError(f"Memory ran out over batch {scan.done + 1} of {scan.total}. {ROOM_FOR_A_BATCH}.")


class _Checkpoints:
    """Writes a scan to its store, only what is new, and on the way at most so often that it costs little."""

    def __init__(self, scan: Scan, store: Path | None) -> None:
        self._scan = scan
        self._store = store
        self._written = scan.done
        self._replaces = store is not None and scan.done == 0 and os.path.exists(store)
        self._last = time.monotonic()
        self._pause = CHECKPOINT_SECONDS
        self._room = None if store is None else np.empty(_ROOM_BYTES, np.uint8)

    def write_if_due(self) -> None:
        if time.monotonic() - self._last >= self._pause:
            self.write()

    def write_failed(self) -> None:
        """But for the first seconds of a scan that takes the place of another: that one stays, whole as it is."""
        if not self._replaces or self._written:
            self.write()

    def write(self) -> None:
        if self._store is None or self._scan.done == self._written:
            return
        start = time.monotonic()
        self._room = None  # HDF5 crashes where it gets no memory
        save_recording(self._scan.recording, self._store)
        self._written = self._scan.done
        self._last = time.monotonic()
        self._pause = max(CHECKPOINT_SECONDS, (self._last - start) / _CHECKPOINT_SHARE)
        with suppress(MemoryError):
            self._room = np.empty(_ROOM_BYTES, np.uint8)
