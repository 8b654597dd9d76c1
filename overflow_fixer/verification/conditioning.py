"""Outputs that FP32 itself does not settle: its last digit in the inputs changes them by as much as verification allows.

No other device, and no other order of summation, comes to the same there, so what is pinned for them may buy nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from overflow_fixer.calibration import make_copy
from overflow_fixer.errors import RunError
from overflow_fixer.metrics.output_meters import OutputMeters
from overflow_fixer.metrics.parts import find_parts
from overflow_fixer.records import Batch, Runner, TensorError, Tolerance
from overflow_fixer.verification.comparison import worst_snr_db

LAST_DIGIT = 2.0**-23
"""The most by which a value is changed, relatively: a step of FP32."""
_IN_HAND_DB = 10.0


def find_unsettled(
    reference: Runner, batches: Iterable[Batch], tolerance: Tolerance
) -> tuple[TensorError, ...]:
    """The outputs, and parts, of which FP32 against itself has less than 10 dB over what they must have.

    Each batch is held against a copy of which every float is x (1 + u), u drawn from [-2^-23, 2^-23), within the range of
    its input. Copies that are no others, or that FP32 cannot run, tell nothing; nor do values that are not finite on either side.
    """
    parts = find_parts(tolerance, reference.output_names)
    meters = OutputMeters(reference.output_names, parts, tolerance.fills, samples=tolerance.samples)
    for index, batch in enumerate(batches):
        copy = None if batch.is_changed else _copy(batch, index)
        if copy is None:
            continue
        try:
            found = reference.run(copy)
        except RunError:
            continue
        meters.add(reference.run(batch), found, batch.name)
    return tuple(error for error in meters.results() if not _is_settled(error, tolerance))


def _copy(batch: Batch, index: int) -> Batch | None:
    return make_copy(batch, f"{batch.name} (last digits changed)", np.random.default_rng(index), LAST_DIGIT)


def _is_settled(error: TensorError, tolerance: Tolerance) -> bool:
    if error.other_shape is not None:
        return False
    if not error.is_float:
        return error.mismatched <= (1 - tolerance.min_agreement) * error.element_count
    is_small = error.compared == 0 or error.max_abs_error <= tolerance.max_abs_error_of(error)
    return is_small or worst_snr_db(error) >= tolerance.min_snr_of(error.tensor, error.part) + _IN_HAND_DB
