"""The errors of a model's outputs, and of the parts of them that are judged by themselves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from overflow_fixer.metrics.error_meter import ErrorMeter
from overflow_fixer.metrics.fills import without_fills
from overflow_fixer.metrics.parts import Part
from overflow_fixer.records import TensorError


class OutputMeters:
    """An ErrorMeter for each output, and behind it for each of its `parts`; of other outputs' parts there is none.

    `log_energies` are those that a meter takes, by TensorError.name; `fills` and `samples` those of Tolerance.
    """

    def __init__(
        self,
        outputs: Iterable[str],
        parts: Sequence[Part],
        fills: Mapping[str, Sequence[float]],
        log_energies: Mapping[str, float] | None = None,
        samples: Collection[str] = (),
    ) -> None:
        self._fills, self._samples = fills, samples
        known = log_energies or {}
        ordered = (
            part
            for output in outputs
            for part in (Part(output), *(one for one in parts if one.output == output))
        )
        self._meters = [
            (part, ErrorMeter(part.output, known.get(part.name, -math.inf), part.text)) for part in ordered
        ]

    def add(
        self, expected: Mapping[str, Any], found: Mapping[str, Any], batch: str
    ) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Compare one batch's outputs, by name; gives both without fills, and samples as FP32. Raises ConfigError where an output has not got a part."""
        expected, found = without_fills(self._fills, expected, found)
        expected, found = (_as_floats(outputs, self._samples) for outputs in (expected, found))
        for part, meter in self._meters:
            meter.add(*_take(part, expected[part.output], found[part.output]), batch)
        return expected, found

    def add_failure(self, expected: Mapping[str, Any], batch: str, reason: str) -> None:
        """Count a batch that the candidate could not compute, for this reason. Raises as `add` does."""
        expected = _as_floats(expected, self._samples)
        for part, meter in self._meters:
            meter.add_failure(part.take(expected[part.output]), batch, reason)

    def results(self) -> list[TensorError]:
        """The errors over everything added so far, an output's parts behind it."""
        return [meter.result() for _, meter in self._meters]


def _as_floats(outputs: Mapping[str, Any], samples: Collection[str]) -> Mapping[str, Any]:
    """Integers of 8 or 16 bits, which FP32 holds."""
    return {name: value.astype(np.float32) if name in samples else value for name, value in outputs.items()}


def _take(part: Part, expected: Any, found: Any) -> tuple[Any, Any]:
    """The part on both sides; all of both where they are of different shapes, so that it matches nowhere."""
    right = part.take(expected)
    is_alike = isinstance(found, np.ndarray) and found.shape == np.shape(expected) if part.text else True
    return (right, part.take(found)) if is_alike else (expected, found)
