"""A verification in plain JSON types, as report.json holds those of plain FP16, of the fix and of an engine's FP32."""

from __future__ import annotations

from typing import Any

from overflow_fixer.records import (
    GainedClass,
    HiddenClass,
    HiddenSlice,
    HiddenVariation,
    SignChange,
    TensorError,
    Verification,
)
from overflow_fixer.reports.numbers_json import encode_number, encode_record
from overflow_fixer.reports.verdict import is_proved

_ERROR_COUNTS = (
    "element_count",
    "compared",
    "candidate_nan",
    "candidate_inf",
    "reference_nan",
    "reference_inf",
    "mismatched",
    "quiet_count",
    "sizable_count",
    "far_off_count",
)
_ERROR_NUMBERS = (
    "max_abs_error",
    "mean_abs_error",
    "max_rel_error",
    "max_abs_reference",
    "cosine",
    "snr_db",
    "worst_batch_snr_db",
    "quiet_batch_snr_db",
    "worst_batch_agreement",
)


def describe_verification(verification: Verification | None) -> dict[str, Any] | None:
    """One of a report's verifications; None where there was none."""
    if verification is None:
        return None
    first, not_finite = verification.first_wrong, verification.first_not_finite
    return {
        "passed": is_proved(verification),
        "batch_count": int(verification.batch_count),
        "changed_count": int(verification.changed_count),
        "outputs": [
            {"error": _describe_error(found.error), "passed": found.passed, "reason": found.reason}
            for found in verification.outputs
        ],
        "first_wrong": None if first is None else _describe_error(first),
        "first_not_finite": None if not_finite is None else _describe_error(not_finite),
        "traced_in": verification.traced_in,
        "hidden": [_describe_hidden(found) for found in verification.hidden],
        "hidden_variations": [_describe_variation(found) for found in verification.hidden_variations],
        "hidden_classes": [_describe_of_output(found) for found in verification.hidden_classes],
        "gained_classes": [_describe_of_output(found) for found in verification.gained_classes],
        "sign_changes": [_describe_of_output(found) for found in verification.sign_changes],
    }


def _describe_hidden(found: HiddenSlice) -> dict[str, Any]:
    return {
        "output": found.tensor,
        "axis": int(found.axis),
        "index": int(found.index),
        "count": int(found.count),
        "snr_db": encode_number(found.snr_db),
        "rms": encode_number(found.rms),
        "output_rms": encode_number(found.output_rms),
    }


def _describe_variation(found: HiddenVariation) -> dict[str, Any]:
    return {
        "output": found.tensor,
        "snr_db": encode_number(found.snr_db),
        "rms": encode_number(found.rms),
        "output_rms": encode_number(found.output_rms),
        "within_samples": found.within_samples,
        "axis": found.axis,
        "index": found.index,
        "count": int(found.count),
    }


def _describe_of_output(found: HiddenClass | GainedClass | SignChange) -> dict[str, Any]:
    described = encode_record(found)
    return {"output": described.pop("tensor"), **described}


def _describe_error(error: TensorError) -> dict[str, Any]:
    return {
        "tensor": error.tensor,
        "part": error.part,
        **{name: int(getattr(error, name)) for name in _ERROR_COUNTS},
        **{name: encode_number(getattr(error, name)) for name in _ERROR_NUMBERS},
        "is_float": error.is_float,
        "worst_batch": error.worst_batch,
        "quiet_batch": error.quiet_batch,
        "failure": error.failure,
    }
