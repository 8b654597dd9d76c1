"""What a scan has seen so far, batch by batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from overflow_fixer.errors import CalibrationError
from overflow_fixer.plurals import say_plural
from overflow_fixer.ranges.recording import Recording, fold
from overflow_fixer.ranges.summaries import Summaries


class Scan:
    """A recording of one part that grows by a batch at a time."""

    def __init__(self, begun: Recording) -> None:
        self.recording = begun
        self._max_abs = np.full((len(begun.totals), self.total), np.nan, np.float32)
        self._max_abs[:, : self.done] = begun.batch_max_abs
        self._names = set(begun.batch_names)

    @property
    def done(self) -> int:
        return len(self.recording.batch_names)

    @property
    def total(self) -> int:
        return self.recording.key.batches_total

    def add(self, batch: str, seen: Summaries, fractional: frozenset[str] = frozenset()) -> None:
        """Fold the summaries [row] of one more batch, and the inputs in which it has fractions. A double is rounded to float32 by
        batch only.
        """
        if self.done == self.total:
            raise self._wrong_count(f"more than {say_plural(self.done, 'batch', 'batches')}")
        if batch in self._names:
            raise CalibrationError(
                f"{self.recording.calibration} gave two batches of the name {batch!r}. Expected a name of its own for each, by which "
                "reports tell where a value came from. Name them apart."
            )
        self._names.add(batch)
        before, index = self.recording, self.done
        with np.errstate(over="ignore"):
            self._max_abs[:, index] = seen["max_abs"]
        totals, worst_batch = fold(before.totals, before.worst_batch, seen, index)
        self.recording = replace(
            before,
            parts=(replace(before.parts[0], batch_count=index + 1),),
            totals=totals,
            worst_batch=worst_batch,
            batch_names=(*before.batch_names, batch),
            batch_max_abs=self._max_abs[:, : index + 1],
            fractional=before.fractional | fractional,
        )

    def check_complete(self) -> None:
        """Raises CalibrationError when the data gave fewer batches than it said to have, or none."""
        if self.done == 0 == self.total:
            raise CalibrationError(
                f"{self.recording.calibration} gave no batch. Expected at least one: without data nothing is known of the "
                "model's values. Check the calibration data."
            )
        if self.done < self.total:
            raise self._wrong_count(say_plural(self.done, "batch", "batches"))

    def _wrong_count(self, found: str) -> CalibrationError:
        return CalibrationError(
            f"{self.recording.calibration} gave {found}. Expected the {self.total} that it had when the scan "
            "began. The data changed meanwhile; run the scan again."
        )
