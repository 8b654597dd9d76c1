"""A plan that was built and verified, and which of two fares better."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from overflow_fixer.records import Artifact, PrecisionPlan, TensorError, Tolerance, Verification
from overflow_fixer.verification.comparison import judge, worst_snr_db

MIN_GAIN_DB = 0.5
"""What of SNR counts as a gain."""


@dataclass(frozen=True)
class Attempt:
    """A plan with the artifact it gives and how that fares."""

    plan: PrecisionPlan
    artifact: Artifact
    verification: Verification

    @property
    def mismatched(self) -> int:
        errors = [verdict.error for verdict in self.verification.outputs]
        return sum(error.mismatched for error in errors if not error.part)

    @property
    def failing(self) -> list[TensorError]:
        """The errors of the outputs, and parts of them, that do not pass."""
        return [verdict.error for verdict in self.verification.outputs if not verdict.passed]

    @property
    def worst_snr_db(self) -> float:
        """The least of any output's; NaN where one has none, since nothing of it is finite on both sides and not all matches."""
        errors = [verdict.error for verdict in self.verification.outputs if verdict.error.is_float]
        if any(error.mismatched and not error.compared for error in errors):
            return math.nan
        return min((worst_snr_db(error) for error in errors if error.compared), default=math.nan)

    def worst_margin_db(self, tolerance: Tolerance) -> float:
        """The smallest distance of an output's SNR from its tolerance; inf where there is no SNR."""
        errors = [verdict.error for verdict in self.verification.outputs if verdict.error.is_float]
        margins = [worst_snr_db(e) - tolerance.min_snr_of(e.tensor, e.part) for e in errors if e.compared]
        return min(margins, default=math.inf)

    @property
    def builds(self) -> int:
        """How many it took."""
        return self.artifact.engine.builds if self.artifact.engine is not None else 1

    def wrong_inside(self, tolerance: Tolerance) -> int:
        """How many of the traced tensors are wrong."""
        return sum(not judge(error, tolerance).passed for error in self.verification.trace)


def is_better(attempt: Attempt, best: Attempt, tolerance: Tolerance) -> bool:
    """Whether an attempt passes where the best does not, has fewer mismatches, a better SNR, or less wrong inside.

    An output can stay as wrong as it was while one of two causes is mended; then fewer of the inner
    tensors are wrong.
    """
    if attempt.verification.passed != best.verification.passed:
        return attempt.verification.passed
    if attempt.mismatched != best.mismatched:
        return attempt.mismatched < best.mismatched
    margin, best_margin = attempt.worst_margin_db(tolerance), best.worst_margin_db(tolerance)
    if abs(margin - best_margin) > MIN_GAIN_DB:
        return margin > best_margin
    return attempt.wrong_inside(tolerance) < best.wrong_inside(tolerance)


def may_lose_by_tf32(attempt: Attempt) -> bool:
    """Whether it is an engine that may run in TF32, whose outputs are finite wherever they are in FP32.

    Some kernel is seen to, or is in a region that shows none, and then something is pinned. TF32 has FP32's range.
    """
    engine = attempt.artifact.engine
    if engine is None or not engine.tf32:
        return False
    may_run = engine.tf32_layers or (engine.opaque_layers and attempt.plan.pins)
    return bool(may_run) and not any(error.is_float and error.mismatched for error in attempt.failing)


def is_hopeless(error: TensorError, tolerance: Tolerance) -> bool:
    """Whether an output fails by nothing but what is NaN in FP32, which no precision can mend."""
    rest = replace(error, mismatched=0)
    return 0 < error.mismatched <= error.reference_nan and judge(rest, tolerance).passed
