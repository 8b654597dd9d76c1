"""Outputs that vary so little beside their size that their SNR does not show what became of that."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from overflow_fixer.metrics.error_meter import QUIET_SHARE
from overflow_fixer.records import Array, HiddenVariation, TensorError, Tolerance

_LEAST_ELEMENTS = 8
"""Of fewer there is no mean to speak of."""
LEAST_SHARE = 2.0**-34
"""Of the energy, what varies: less, a 130,000th of the root mean square, is what FP32 itself rounds on the way."""
_CHUNK_ELEMENTS = 1 << 20


def find_limit(tolerance: Tolerance, output: str) -> float:
    """The SNR in dB that what varies should have: that of the output, but where it was raised, the default.

    An output is asked for more so that what varies of it has its own.
    """
    return min(tolerance.min_snr_of(output), Tolerance.min_snr_db)


@dataclass
class VariationMeter:
    """Accumulates how an output in FP32 varies over batches: within each sample, of which axis 0 tells, or else among all elements.

    Nothing is taken of what is no array of floats, or has no element; of outputs with NaN or infinities nothing is told. Sums
    are float64; squares over its range make the variation unknown.
    """

    tensor: str
    elements: int = 0
    sum: float = 0.0
    energy: float = 0.0
    within_samples: float = 0.0
    has_samples: bool = True

    def add(self, reference: Any) -> None:
        """One batch."""
        if not isinstance(reference, np.ndarray) or reference.dtype.kind != "f" or not reference.size:
            return
        self.elements += reference.size
        width = reference.size // len(reference) if reference.ndim > 1 else 1
        self.has_samples &= width >= _LEAST_ELEMENTS
        samples = reference.reshape(-1, width) if self.has_samples else reference.reshape(1, -1)
        rows = max(_CHUNK_ELEMENTS // samples.shape[1], 1)
        for start in range(0, len(samples), rows):
            self._add_samples(samples[start : start + rows])

    def _add_samples(self, samples: Array) -> None:
        """[sample, element]"""
        with np.errstate(over="ignore", invalid="ignore"):
            sums = samples.sum(axis=1, dtype=np.float64)
            energies = np.einsum("ij,ij->i", samples, samples, dtype=np.float64, casting="same_kind")
            self.within_samples += float((energies - sums**2 / samples.shape[1]).sum())
        self.sum += float(sums.sum())
        self.energy += float(energies.sum())

    def find_hidden(self, error: TensorError, min_snr_db: float) -> HiddenVariation | None:
        """What varies, where it is under 1 % of the energy and, against the output's `error`, under this SNR; else None."""
        if self.elements < _LEAST_ELEMENTS or not 0 < self.energy < math.inf:
            return None
        among_all = self.energy - self.sum**2 / self.elements
        varying = self.within_samples if self.has_samples else among_all
        share = varying / self.energy
        if not LEAST_SHARE < share < QUIET_SHARE:
            return None
        snr_db = error.snr_db + 10 * math.log10(share)
        rms, output_rms = (math.sqrt(energy / self.elements) for energy in (varying, self.energy))
        found = HiddenVariation(self.tensor, snr_db, rms, output_rms, self.has_samples)
        return found if snr_db < min_snr_db else None
