"""An artifact held against FP32 on the calibration batches."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from overflow_fixer.annotations import held_to_types
from overflow_fixer.calibration.given import check_batch
from overflow_fixer.errors import BackendError, CalibrationError, RunError
from overflow_fixer.graph.copies import copy_model
from overflow_fixer.graph.model import Graph
from overflow_fixer.metrics.channel_variations import ChannelVariationMeter
from overflow_fixer.metrics.classes import ClassMeter
from overflow_fixer.metrics.output_meters import OutputMeters
from overflow_fixer.metrics.parts import Part, find_parts
from overflow_fixer.metrics.signs import SignMeter
from overflow_fixer.metrics.slices import SliceMeter
from overflow_fixer.metrics.variations import VariationMeter, find_limit
from overflow_fixer.plurals import say_plural
from overflow_fixer.records import (
    Array,
    Batch,
    GainedClass,
    HiddenClass,
    HiddenSlice,
    HiddenVariation,
    OutputVerdict,
    Runner,
    SignChange,
    TensorError,
    Tolerance,
    Verification,
)
from overflow_fixer.rules.digits import tell_beside
from overflow_fixer.sessions.marking import mark_outputs
from overflow_fixer.sessions.session import SessionRunner, open_session
from overflow_fixer.simulation.sigmoids import write_out_given

_CACHE_BYTES = 64 << 20


@held_to_types
def open_reference(graph: Graph, extra_outputs: Sequence[str] = ()) -> Runner:
    """The original model in FP32, optimisation off, each node computed as it stands: what it has in FP16 itself, unrounded.

    Sigmoids that it gives out are written out, as in the simulation: ONNX Runtime's own is no reference for small scores.
    """
    model = copy_model(graph)
    write_out_given(model, graph)
    mark_outputs(model, extra_outputs)
    return SessionRunner(open_session(model, graph.folder))


class CachedRunner:
    """A Runner that keeps outputs for when the same feeds come again, as long as they all fit `limit_bytes`.

    Outputs that do not fit any more, or are no arrays of numbers, are computed each time. What is kept is
    handed out as it is, and cannot be written to.
    """

    def __init__(self, runner: Runner, limit_bytes: int = _CACHE_BYTES) -> None:
        self.output_names = runner.output_names
        self._runner = runner
        self._left_bytes = limit_bytes
        self._kept: dict[bytes, dict[str, Array]] = {}

    def run(self, batch: Batch) -> dict[str, Array]:
        key = _digest(batch)
        kept = self._kept.get(key)
        if kept is not None:
            return kept
        outputs = self._runner.run(batch)
        if all(isinstance(value, np.ndarray) and value.dtype.kind != "O" for value in outputs.values()):
            self._keep(key, outputs)
        return outputs

    def _keep(self, key: bytes, outputs: dict[str, Array]) -> None:
        size_bytes = sum(array.nbytes for array in outputs.values())
        if size_bytes <= self._left_bytes:
            self._left_bytes -= size_bytes
            self._kept[key] = outputs
            for array in outputs.values():
                array.flags.writeable = False


class CopyCheck:
    """Whether FP32 runs a changed copy of a batch, and gives no more NaN and infinities in it than in the batch; asked once of each."""

    def __init__(self, reference: Runner) -> None:
        self._reference = reference
        self._not_finite: dict[str, int] = {}
        self._is_borne: dict[str, bool] = {}

    def __call__(self, batch: Batch, copy: Batch) -> bool:
        if copy.name not in self._is_borne:
            self._is_borne[copy.name] = self._is_as_good(batch, copy)
        return self._is_borne[copy.name]

    def _is_as_good(self, batch: Batch, copy: Batch) -> bool:
        if batch.name not in self._not_finite:
            self._not_finite[batch.name] = _count_not_finite(self._reference.run(batch))
        try:
            return _count_not_finite(self._reference.run(copy)) <= self._not_finite[batch.name]
        except RunError:
            return False


def _count_not_finite(outputs: Mapping[str, Array]) -> int:
    arrays = (
        value for value in outputs.values() if isinstance(value, np.ndarray) and value.dtype.kind == "f"
    )
    return sum(array.size - np.count_nonzero(np.isfinite(array)) for array in arrays)


@held_to_types
def verify(
    reference: Runner,
    candidate: Runner,
    batches: Iterable[Batch],
    tolerance: Tolerance,
    progress: Callable[[int], None] = lambda done: None,
) -> Verification:
    """Compare every output, and each part that the tolerance names, over all batches, one batch in memory at a time.

    An output passes when the candidate has no NaN, no infinity that the reference does not have in
    the same place, and in every batch an SNR of at least its tolerance (or no error over
    `max_abs_error`). The reference's own NaN fail it as well: nothing can be proved about them. So does a batch
    that ONNX Runtime cannot run in the candidate and can in the reference: overflow can end in an index or a size. Raises
    BackendError when the candidate lacks an output, CalibrationError when there is no batch or what is given are no Batch objects,
    ConfigError for a part that is none.
    """
    parts = find_parts(tolerance, reference.output_names)
    _check_outputs(reference, candidate)
    meters = OutputMeters(reference.output_names, parts, tolerance.fills, samples=tolerance.samples)
    unseen = _UnseenMeters(reference.output_names, parts)
    count, changed_count = 0, 0
    for count, batch in enumerate(map(check_batch, batches), start=1):
        _compare(reference, candidate, batch, meters, unseen)
        changed_count += batch.is_changed
        progress(count - changed_count)
    if count == 0:
        raise CalibrationError(
            "There was no batch to verify on. Expected at least one: without data nothing is proved. Check the "
            "calibration data."
        )
    verdicts = tuple(judge(error, tolerance) for error in meters.results())
    return Verification(
        verdicts,
        count - changed_count,
        changed_count=changed_count,
        hidden=tuple(unseen.find_slices(tolerance)),
        hidden_variations=tuple(unseen.find_variations(verdicts, tolerance)),
        hidden_classes=tuple(unseen.find_classes()),
        gained_classes=tuple(unseen.find_gained()),
        sign_changes=tuple(unseen.find_sign_changes()),
    )


class _UnseenMeters:
    """What the SNR of a whole output, or the share of its elements that are equal, does not show."""

    def __init__(self, outputs: Iterable[str], parts: Iterable[Part]) -> None:
        names = tuple(outputs)
        self._slices = {name: SliceMeter(name) for name in names}
        self._variations = {name: VariationMeter(name) for name in names}
        self._channels = {name: ChannelVariationMeter(self._slices[name]) for name in names}
        self._classes = {name: ClassMeter(name) for name in names}
        self._signs = [SignMeter(part) for part in (*map(Part, names), *parts)]

    def add(self, expected: Mapping[str, Any], found: Mapping[str, Any], batch: str) -> None:
        """One batch's outputs, by name, without fills."""
        for name, meter in self._slices.items():
            meter.add(expected[name], found[name])
            self._variations[name].add(expected[name])
            self._channels[name].add(expected[name])
            self._classes[name].add(expected[name], found[name])
        for signs in self._signs:
            signs.add(expected[signs.part.output], found[signs.part.output], batch)

    def find_slices(self, tolerance: Tolerance) -> Iterator[HiddenSlice]:
        for name, meter in self._slices.items():
            hidden = meter.find_hidden(tolerance.min_snr_of(name))
            if hidden is not None:
                yield hidden

    def find_variations(
        self, verdicts: Iterable[OutputVerdict], tolerance: Tolerance
    ) -> Iterator[HiddenVariation]:
        """Each against the error of its output; where that shows nothing, its channels against theirs."""
        for error in (verdict.error for verdict in verdicts if not verdict.error.part):
            limit = find_limit(tolerance, error.tensor)
            whole = self._variations[error.tensor].find_hidden(error, limit)
            hidden = whole or self._channels[error.tensor].find_hidden(limit)
            if hidden is not None:
                yield hidden

    def find_classes(self) -> Iterator[HiddenClass]:
        yield from filter(None, (meter.find_hidden() for meter in self._classes.values()))

    def find_gained(self) -> Iterator[GainedClass]:
        yield from filter(None, (meter.find_gained() for meter in self._classes.values()))

    def find_sign_changes(self) -> Iterator[SignChange]:
        yield from chain.from_iterable(meter.find() for meter in self._signs)


def check_parts(found: Verification) -> None:
    """Raise ConfigError for a part that had no element in any batch, of which nothing is judged."""
    for verdict in found.outputs:
        if verdict.error.part and not verdict.error.element_count:
            raise Part(verdict.error.tensor, verdict.error.part).refuse("has no element there in any batch")


def judge(error: TensorError, tolerance: Tolerance) -> OutputVerdict:
    """Pass or fail one tensor, with the reason in words."""
    problem = _problem(error, tolerance)
    return OutputVerdict(error, problem is None, problem or _praise(error, tolerance))


def worst_snr_db(error: TensorError) -> float:
    """The SNR that an error is judged by: that of its worst batch, where it is known."""
    return error.snr_db if math.isnan(error.worst_batch_snr_db) else error.worst_batch_snr_db


def _problem(error: TensorError, tolerance: Tolerance) -> str | None:
    if error.failure is not None:
        return f"it cannot be computed on {error.worst_batch}: {error.failure}"
    share, enough = 1 - error.mismatched / max(error.element_count, 1), tolerance.min_agreement
    if not error.is_float and share >= enough:
        return None
    shape = f"it has another shape than in FP32: {error.other_shape}" if error.other_shape else ""
    if not error.is_float:
        return f"{shape}{'; ' if shape else ''}{tell_beside(100 * share, 100 * enough, 2)}% of the values are equal, under {100 * enough:.12g}%"
    if error.mismatched and error.mismatched == error.reference_nan == error.candidate_nan:
        return (
            f"{error.mismatched} of {error.element_count} values are NaN in the original model too, at the same places: there is "
            "no number that they could be verified against"
        )
    if shape and not error.candidate_nan + error.candidate_inf:
        return shape
    if error.mismatched:
        return (
            f"{shape}{'; ' if shape else ''}{error.mismatched} of {error.element_count} values do not match: {error.candidate_nan} NaN and "
            f"{error.candidate_inf} infinite, against {error.reference_nan} and {error.reference_inf} in FP32"
        )
    limit, snr_db = tolerance.min_snr_of(error.tensor, error.part), worst_snr_db(error)
    if error.compared == 0 or snr_db >= limit or error.max_abs_error <= tolerance.max_abs_error_of(error):
        return None
    where = "" if error.snr_db < limit else f" in {error.worst_batch}"
    return f"SNR {tell_beside(snr_db, limit)} dB{where} is under {limit:.12g} dB"


def _praise(error: TensorError, tolerance: Tolerance) -> str:
    if error.element_count == 0:
        return "it had no element in any batch, so there was nothing to compare"
    if not error.is_float or error.compared == 0:
        return f"{error.element_count - error.mismatched} of {error.element_count} values are equal"
    limit = tolerance.min_snr_of(error.tensor, error.part)
    return "equal" if error.snr_db == math.inf else f"SNR {tell_beside(worst_snr_db(error), limit)} dB"


def find_worst_batch(verification: Verification, batches: Iterable[Batch]) -> Batch:
    """The batch on which the first output that fails (or the first of all) is worst.

    Raises CalibrationError when `batches` do not have it any more.
    """
    failing = [verdict.error for verdict in verification.outputs if not verdict.passed]
    worst = (failing or [verdict.error for verdict in verification.outputs])[0].worst_batch
    for batch in batches:
        if batch.name == worst:
            return batch
    raise CalibrationError(
        f"The batch {worst} is not in the calibration data any more. Expected the data that was verified on. It "
        "changed meanwhile; run again."
    )


def _digest(batch: Batch) -> bytes:
    """Of the names, types, shapes and values that are fed."""
    found = hashlib.sha256()
    for name, array in sorted(batch.feeds.items()):
        found.update(repr((name, array.dtype.name, array.shape)).encode())
        found.update(repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes())
    return found.digest()


def _check_outputs(reference: Runner, candidate: Runner) -> None:
    lacking = [name for name in reference.output_names if name not in candidate.output_names]
    if lacking:
        raise BackendError(
            f"The artifact has no output {lacking[0]!r}; it has {', '.join(candidate.output_names) or 'none'}. Expected "
            f"the {say_plural(len(reference.output_names), 'output')} of the model. Verify an artifact that was built from it."
        )


def _compare(
    reference: Runner,
    candidate: Runner,
    batch: Batch,
    meters: OutputMeters,
    unseen: _UnseenMeters,
) -> None:
    expected = reference.run(batch)
    try:
        found = candidate.run(batch)
    except RunError as error:
        meters.add_failure(expected, batch.name, error.reason)
        return
    unseen.add(*meters.add(expected, found, batch.name), batch.name)
