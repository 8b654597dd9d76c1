"""What a scan has seen so far, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from overflow_fixer.errors import CalibrationError, PlanError
from overflow_fixer.graph import Graph
from overflow_fixer.ranges.coverage import not_observed, observed_tensors
from overflow_fixer.ranges.store import ScanKey, load_scan
from overflow_fixer.ranges.summaries import SUMMARY, SUMMARY_FIELDS, Summaries, merge_summaries, no_summaries
from overflow_fixer.records import CalibrationSet, Range, RangeTable


@dataclass(frozen=True, eq=False)
class _State:
    """What is known after the batches in `batch_names`. Replaced whole, so that it is never half new.

    `batch_max_abs` is float32 [tensor, batches in all]; what is not done yet is NaN.
    """

    totals: Summaries
    worst_batch: npt.NDArray[np.int64]
    batch_names: tuple[str, ...]
    batch_max_abs: npt.NDArray[np.float32]


class Scan:
    """The running totals of every observed tensor, and how many batches are in them."""

    def __init__(self, graph: Graph, calibration: CalibrationSet, key: ScanKey) -> None:
        self.key = key
        self.tensors = observed_tensors(graph)
        self._skipped = not_observed(graph)
        self._source, self._synthetic = calibration.source, calibration.synthetic
        matrix = np.full((len(self.tensors), key.batches_total), np.nan, np.float32)
        worst_batch = np.full(len(self.tensors), -1, np.int64)
        self._state = _State(no_summaries(len(self.tensors)), worst_batch, (), matrix)

    @property
    def done(self) -> int:
        return len(self._state.batch_names)

    def add(self, batch: str, seen: Summaries) -> None:
        """Fold the summaries [tensor] of one more batch. A double is rounded to float32 by batch only."""
        if self.done == self.key.batches_total:
            raise self._wrong_count(f"more than {self.done}")
        state = self._state
        before, now = state.totals["max_abs"], seen["max_abs"]
        is_worse = (now > before) | (np.isnan(before) & ~np.isnan(now))
        with np.errstate(over="ignore"):
            state.batch_max_abs[:, self.done] = now
        self._state = _State(
            merge_summaries(state.totals, seen),
            np.where(is_worse, self.done, state.worst_batch),
            (*state.batch_names, batch),
            state.batch_max_abs,
        )

    def check_complete(self) -> None:
        """Raises CalibrationError when the data gave fewer batches than it said to have."""
        if self.done < self.key.batches_total:
            raise self._wrong_count(str(self.done))

    def go_on_from(self, store: Path) -> None:
        """Take over what `store` holds, if it is a scan of the same with the same settings."""
        try:
            table, key = load_scan(store)
        except PlanError:
            return
        tensors = tuple(found.tensor for found in table.ranges)
        if key != self.key or not key.calibration_fingerprint or tensors != self.tensors:
            return
        columns = [tuple(getattr(found, name) for name in SUMMARY_FIELDS) for found in table.ranges]
        worst_batch = np.array([found.worst_batch for found in table.ranges], np.int64)
        matrix = self._state.batch_max_abs
        matrix[:, : len(table.batch_names)] = table.batch_max_abs
        self._state = _State(np.array(columns, SUMMARY), worst_batch, table.batch_names, matrix)

    def table(self) -> RangeTable:
        """What was seen of the batches done."""
        state = self._state
        columns = {name: state.totals[name].tolist() for name in SUMMARY_FIELDS}
        columns |= {"tensor": self.tensors, "worst_batch": state.worst_batch.tolist()}
        return RangeTable(
            model_sha256=self.key.model_sha256,
            calibration=self._source,
            synthetic=self._synthetic,
            ranges=tuple(
                Range(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)
            ),
            batch_names=state.batch_names,
            batch_max_abs=state.batch_max_abs[:, : self.done],
            not_observed=self._skipped,
        )

    def _wrong_count(self, found: str) -> CalibrationError:
        return CalibrationError(
            f"{self._source} gave {found} batches. Expected the {self.key.batches_total} that it had when the scan "
            "began. The data changed meanwhile; run the scan again."
        )
