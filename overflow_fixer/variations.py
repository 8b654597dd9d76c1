"""Outputs that vary so little around a mean that their SNR does not show what became of that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from overflow_fixer.metrics import QUIET_SHARE
from overflow_fixer.records import HiddenVariation, TensorError, Tolerance

_LEAST_ELEMENTS = 8
"""Of fewer there is no mean to speak of."""
_LEAST_SHARE = 2.0**-34
"""Of the energy, what varies: less, a 130,000th of the root mean square, is what FP32 itself rounds on the way."""


def find_limit(tolerance: Tolerance, output: str) -> float:
    """The SNR in dB that what varies should have: the output's own, but no more than by default, for more is asked to have that."""
    return min(tolerance.min_snr_of(output), Tolerance.min_snr_db)


@dataclass
class VariationMeter:
    """Accumulates how an output in FP32 varies over batches: within each sample, of which axis 0 tells, or else among all elements.

    Nothing is taken of what is no array of floats, has no element, or holds NaN or infinities. Sums are float64; squares over
    its range make the variation unknown.
    """

    tensor: str
    elements: int = 0
    sum: float = 0.0
    energy: float = 0.0
    within_samples: float = 0.0
    least_width: float = math.inf

    def add(self, reference: Any) -> None:
        """One batch."""
        is_array = isinstance(reference, np.ndarray) and reference.dtype.kind == "f" and reference.size
        if not is_array or not np.isfinite(reference).all():
            return
        samples = reference.reshape(len(reference) if reference.ndim > 1 else 1, -1)
        width = samples.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            sums = samples.sum(axis=1, dtype=np.float64)
            energies = np.einsum("ij,ij->i", samples, samples, dtype=np.float64, casting="same_kind")
            self.within_samples += float((energies - sums**2 / width).sum())
            self.energy += float(energies.sum())
        self.sum += float(sums.sum())
        self.elements += reference.size
        self.least_width = min(self.least_width, width)

    def find_hidden(self, error: TensorError, min_snr_db: float) -> HiddenVariation | None:
        """What varies, where it is under 1 % of the energy and, against the output's `error`, under this SNR; else None."""
        is_within = self.least_width >= _LEAST_ELEMENTS
        if self.elements < _LEAST_ELEMENTS or not 0 < self.energy < math.inf:
            return None
        varying = self.within_samples if is_within else self.energy - self.sum**2 / self.elements
        share = varying / self.energy
        if not _LEAST_SHARE < share < QUIET_SHARE:
            return None
        snr_db = error.snr_db + 10 * math.log10(share)
        rms = math.sqrt(varying / self.elements)
        found = HiddenVariation(self.tensor, snr_db, self.sum / self.elements, rms, is_within)
        return found if snr_db < min_snr_db else None
