"""How far a candidate's tensor is from the reference's, batch after batch, one batch in memory at a time."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from overflow_fixer.metrics.maps import read_values, say_other_keys
from overflow_fixer.records import Array, TensorError

_CHUNK_ELEMENTS = 1 << 15
"""What is worked out of so many stays in a core's cache."""

_SAFE_EXPONENT = 400
"""Between 2^-400 and 2^400 no square, and no sum of a chunk of them, leaves float64's range."""

_SIZABLE = 2.0**-14
"""FP16's least normal number: of less it is known to lose digits."""
_FAR_OFF = 0.1
"""An error of a larger share of what it should be is no rounding."""

QUIET_SHARE = 0.01
"""A batch whose energy is under this share of the mean is judged as if it had this much."""


class ErrorMeter:
    """Accumulates one tensor's error over batches.

    Sums are float64 with an exponent of their own, so nothing overflows or vanishes. NaN and infinity
    are counted on each side; only elements finite on both sides enter the errors, and an element that
    is non-finite on one side counts as mismatched unless the other side holds the same infinity. NaN is
    never equal to anything. `part` is what is compared of the tensor: see TensorError.
    """

    def __init__(self, tensor: str, log_energy: float = -math.inf, part: str = "") -> None:
        self.tensor = tensor
        self.part = part
        self._log_energy = log_energy
        self._counts: Counter[str] = Counter()
        self._total = _Sums()
        self._batches: list[_BatchError] = []
        self._is_float = True
        self._other_shape: str | None = None

    def add(self, reference: Any, candidate: Any, batch: str) -> None:
        """Compare one batch: two arrays, two lists of arrays, of any shape and dtype, or two maps or lists of maps."""
        before, sums = self._counts.copy(), _Sums()
        references, candidates = read_values(reference), read_values(candidate)
        difference = say_other_keys(reference, candidate) or _say_shapes(references, candidates)
        if difference is not None:
            self._other_shape = self._other_shape or f"{difference} on {batch}"
            size = max(sum(a.size for a in references), sum(a.size for a in candidates), 1)
            self._counts.update(element=size, mismatched=size)
            self._is_float &= all(map(_is_float, references))
        else:
            for one, other in zip(references, candidates, strict=True):
                self._add_array(one.reshape(-1), other.reshape(-1), sums)
        self._total.add(sums)
        element, mismatched, compared = (
            self._counts[name] - before[name] for name in ("element", "mismatched", "compared")
        )
        logs = sums.reference.log10, sums.error.log10
        self._batches.append(_BatchError(batch, element, mismatched, compared, *logs))

    def add_failure(self, reference: Any, batch: str, reason: str) -> None:
        """Count a batch that the candidate could not compute, for this reason: nothing of it matches."""
        references = read_values(reference)
        size = max(sum(a.size for a in references), 1)
        self._counts.update(element=size, mismatched=size)
        self._is_float &= all(map(_is_float, references))
        self._batches.append(_BatchError(batch, size, size, 0, -math.inf, -math.inf, reason))

    def result(self) -> TensorError:
        """The error over everything added so far."""
        counts, total = self._counts, self._total
        compared = counts["compared"]
        snrs = [self._batch_snr_db(batch) for batch in self._batches]
        worst = max(zip(self._batches, snrs, strict=True), key=_badness, default=None)
        quiet = self._find_quiet()
        agreements = (1 - batch.mismatched_share for batch in self._batches)
        return TensorError(
            tensor=self.tensor,
            element_count=counts["element"],
            compared=compared,
            candidate_nan=counts["candidate_nan"],
            candidate_inf=counts["candidate_inf"],
            reference_nan=counts["reference_nan"],
            reference_inf=counts["reference_inf"],
            mismatched=counts["mismatched"],
            max_abs_error=total.max_abs_error if compared else math.nan,
            mean_abs_error=total.abs_error / compared if compared else math.nan,
            max_rel_error=total.max_rel_error if total.max_rel_error >= 0 else math.nan,
            max_abs_reference=total.max_abs_reference if compared else math.nan,
            cosine=total.cosine() if compared else math.nan,
            snr_db=_snr_db(total.reference.log10, total.error.log10) if compared else math.nan,
            worst_batch=worst[0].name if worst is not None else None,
            is_float=self._is_float,
            failure=worst[0].failure if worst is not None else None,
            worst_batch_snr_db=min((snr for snr in snrs if not math.isnan(snr)), default=math.nan),
            worst_batch_agreement=math.nan if self._is_float else min(agreements, default=math.nan),
            quiet_batch=quiet[0].name if quiet else None,
            quiet_batch_snr_db=quiet[0].snr_db if quiet else math.nan,
            quiet_count=len(quiet),
            log_energy=self._mean_log_energy() if compared else -math.inf,
            other_shape=self._other_shape,
            part=self.part,
            sizable_count=total.sizable if self._is_float else 0,
            far_off_count=total.far_off if self._is_float else 0,
        )

    def _find_quiet(self) -> list[_BatchError]:
        """The batches that are held against a share of the mean energy, the worst by its own SNR first."""
        quiet = (batch for batch in self._batches if batch.compared and batch.reference < self._floor(batch))
        return sorted(quiet, key=lambda batch: batch.snr_db)

    def _batch_snr_db(self, batch: _BatchError) -> float:
        """A batch's SNR, a quiet one held against a share of the mean energy; NaN with nothing to compare."""
        if batch.compared == 0:
            return math.nan
        return _snr_db(max(batch.reference, self._floor(batch)), batch.error)

    def _floor(self, batch: _BatchError) -> float:
        """log10 of the energy that a batch is judged as if it had at least."""
        mean = max(self._mean_log_energy(), self._log_energy)
        return mean + math.log10(QUIET_SHARE * batch.compared)

    def _mean_log_energy(self) -> float:
        return self._total.reference.log10 - math.log10(self._counts["compared"])

    def _add_array(self, reference: Array, candidate: Array, sums: _Sums) -> None:
        self._counts["element"] += reference.size
        if not (_is_float(reference) and _is_float(candidate)):
            self._is_float = False
            self._counts["mismatched"] += int(np.count_nonzero(reference != candidate))
            if reference.dtype.kind not in "iub" or candidate.dtype.kind not in "iub":
                return
        for start in range(0, reference.size, _CHUNK_ELEMENTS):
            chunk = slice(start, start + _CHUNK_ELEMENTS)
            self._add_chunk(reference[chunk].astype(np.float64), candidate[chunk].astype(np.float64), sums)

    def _add_chunk(self, reference: Array, candidate: Array, sums: _Sums) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            error = np.abs(reference - candidate)
        if error.max() < math.inf:  # not so of a NaN
            self._counts["compared"] += reference.size
            sums.add_finite(reference, candidate, error)
            return
        finite = np.isfinite(reference) & np.isfinite(candidate)
        self._counts.update(
            compared=int(np.count_nonzero(finite)),
            candidate_nan=int(np.count_nonzero(np.isnan(candidate))),
            candidate_inf=int(np.count_nonzero(np.isinf(candidate))),
            reference_nan=int(np.count_nonzero(np.isnan(reference))),
            reference_inf=int(np.count_nonzero(np.isinf(reference))),
            mismatched=int(np.count_nonzero(~finite & (reference != candidate))),
        )
        sums.add_lost(reference[np.isfinite(reference) & ~finite])
        if finite.any():
            sums.add_finite(reference[finite], candidate[finite], error[finite])


@dataclass(frozen=True)
class _BatchError:
    """One batch: its elements, those mismatched and compared, log10 of the sums of squares of reference and error, and why it failed."""

    name: str
    elements: int
    mismatched: int
    compared: int
    reference: float
    error: float
    failure: str | None = None

    @property
    def snr_db(self) -> float:
        return _snr_db(self.reference, self.error)

    @property
    def mismatched_share(self) -> float:
        return self.mismatched / max(self.elements, 1)


@dataclass
class _ScaledSum:
    """A sum of products that may leave float64's range: `total` x 2^`exponent`."""

    total: float = 0.0
    exponent: int = 0

    def add_products(self, one: _Scaled, other: _Scaled) -> None:
        """Add sum(one * other)."""
        product = float(np.einsum("i,i->", one.values, other.values))  # a BLAS would start threads for it
        self.add(_ScaledSum(product, one.exponent + other.exponent))

    def add(self, term: _ScaledSum) -> None:
        if self.total and term.total:
            largest = max(self.exponent, term.exponent)
            self.total = math.ldexp(self.total, self.exponent - largest)
            self.total += math.ldexp(term.total, term.exponent - largest)
            self.exponent = largest
        elif term.total:
            self.total, self.exponent = term.total, term.exponent

    @property
    def log10(self) -> float:
        """log10 of a sum that is not negative; -inf for 0."""
        return math.log10(self.total) + self.exponent * math.log10(2) if self.total > 0 else -math.inf


@dataclass
class _Sums:
    """Sums and maxima over elements that are finite on both sides; a maximum is -inf where there is none.

    `sizable` and `far_off` are counts as TensorError has them.
    """

    abs_error: float = 0.0
    error: _ScaledSum = field(default_factory=_ScaledSum)
    reference: _ScaledSum = field(default_factory=_ScaledSum)
    candidate: _ScaledSum = field(default_factory=_ScaledSum)
    product: _ScaledSum = field(default_factory=_ScaledSum)
    max_abs_error: float = -math.inf
    max_rel_error: float = -math.inf
    max_abs_reference: float = -math.inf
    sizable: int = 0
    far_off: int = 0

    def add_lost(self, reference: Array) -> None:
        """Count elements, float64 [n], finite in the reference alone."""
        count = int(np.count_nonzero(np.abs(reference) >= _SIZABLE))
        self.sizable += count
        self.far_off += count

    def add_finite(self, reference: Array, candidate: Array, error: Array) -> None:
        """Add elements: all float64 [n], n > 0, and all finite but for an error over float64's range, which is inf."""
        magnitude = np.abs(reference)
        largest, largest_reference = float(error.max()), float(magnitude.max())
        with np.errstate(over="ignore"):
            self.abs_error += float(error.sum())
        self.max_abs_error = max(self.max_abs_error, largest)
        self.max_abs_reference = max(self.max_abs_reference, largest_reference)
        self._add_relative(error, magnitude)
        is_near = largest <= largest_reference / 2  # then the candidate is about as large
        largest_candidate = largest_reference if is_near else float(np.abs(candidate).max())
        scaled_error = _scale_error(reference, candidate, error, largest)
        scaled_reference = _scale(reference, largest_reference)
        scaled_candidate = _scale(candidate, largest_candidate)
        self.error.add_products(scaled_error, scaled_error)
        self.reference.add_products(scaled_reference, scaled_reference)
        self.candidate.add_products(scaled_candidate, scaled_candidate)
        self.product.add_products(scaled_reference, scaled_candidate)

    def _add_relative(self, error: Array, magnitude: Array) -> None:
        """What errors are of the magnitudes that they are errors of, each float64 [n]; of those that are 0 nothing."""
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            relative = error / magnitude
        largest = _find_largest(relative, magnitude)
        self.max_rel_error = max(self.max_rel_error, largest)
        is_sizable = magnitude >= _SIZABLE
        self.sizable += int(np.count_nonzero(is_sizable))
        if largest > _FAR_OFF:
            self.far_off += int(np.count_nonzero(is_sizable & (relative > _FAR_OFF)))

    def add(self, other: _Sums) -> None:
        for name in ("abs_error", "sizable", "far_off"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("error", "reference", "candidate", "product"):
            getattr(self, name).add(getattr(other, name))
        for name in ("max_abs_error", "max_rel_error", "max_abs_reference"):
            setattr(self, name, max(getattr(self, name), getattr(other, name)))

    def cosine(self) -> float:
        """In [-1, 1]; of two zero vectors 1, of one 0."""
        if not self.reference.total or not self.candidate.total:
            return 1.0 if self.reference.total == self.candidate.total else 0.0
        shift = self.product.exponent - (self.reference.exponent + self.candidate.exponent) / 2
        product, product_exponent = math.frexp(self.product.total)
        norms, norms_exponent = math.frexp(math.sqrt(self.reference.total) * math.sqrt(self.candidate.total))
        exponent = product_exponent - norms_exponent + shift  # far over 0 where a norm's squares vanished
        return min(1.0, max(-1.0, product / norms * math.pow(2, min(exponent, 2.0))))


@dataclass(frozen=True)
class _Scaled:
    """Values [n] x 2^`exponent`."""

    values: Array
    exponent: int


def _scale(values: Array, max_abs: float, exponent: int = 0) -> _Scaled:
    """values x 2^exponent, brought near 1 where their squares would leave float64's range."""
    _, shift = math.frexp(max_abs)
    if abs(shift) <= _SAFE_EXPONENT:
        return _Scaled(values, exponent)
    return _Scaled(np.ldexp(values, -shift), exponent + shift)


def _scale_error(reference: Array, candidate: Array, error: Array, largest: float) -> _Scaled:
    if largest < math.inf:
        return _scale(error, largest)
    halves = np.abs(reference / 2 - candidate / 2)
    return _scale(halves, float(halves.max()), exponent=1)


def _find_largest(relative: Array, magnitude: Array) -> float:
    """The largest relative error where the magnitude is not 0; -inf where it is 0 throughout."""
    largest = float(np.fmax.reduce(relative))  # 0 / 0 is left out
    if math.isinf(largest):
        return float(relative.max(initial=-math.inf, where=magnitude > 0))
    return -math.inf if math.isnan(largest) else largest


def _badness(judged: tuple[_BatchError, float]) -> tuple[bool, float, float]:
    """One that failed, then the largest share of mismatches, then the lowest SNR."""
    batch, snr_db = judged
    return batch.failure is not None, batch.mismatched_share, -math.inf if math.isnan(snr_db) else -snr_db


def _snr_db(reference: float, error: float) -> float:
    """In dB, from the log10 of both sums of squares: inf without error, -inf without reference."""
    return math.inf if error == -math.inf else 10 * (reference - error)


def _say_shapes(references: list[Array], candidates: list[Array]) -> str | None:
    """How many tensors there are instead of how many, or the shapes of the first that differ; None where none do."""
    if len(references) != len(candidates):
        return f"{len(candidates)} tensors instead of {len(references)}"
    pairs = ((list(a.shape), list(b.shape)) for a, b in zip(references, candidates, strict=True))
    return next((f"{told} instead of {expected}" for expected, told in pairs if expected != told), None)


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat16", "float8"))
