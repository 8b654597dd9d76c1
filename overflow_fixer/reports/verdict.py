"""What a report comes down to, in one sentence that claims no more than was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from overflow_fixer.plurals import say_plural
from overflow_fixer.records import FixReport, OutputVerdict, Range, RangeTable, Verification
from overflow_fixer.reports.pin_outcomes import say_outcomes, sort_pins
from overflow_fixer.reports.wording import say_batches, shorten_middle

Status = Literal["fixed", "no_fix_needed", "nothing_pinned", "not_verified"]

_RANDOM = (
    "RANDOM DATA: the calibration data was made up at random, not taken from real inputs. Random data proves "
    "nothing about real inputs: what overflows here may not overflow there, and what is safe here may overflow "
    "there. Run again with real inputs before you trust a number below."
)
_RANDOM_PROOF = (
    "RANDOM DATA: the plan was made from ranges of other data, and verified on random data, which proves nothing about real "
    "inputs. Verify on real inputs before you trust a number below."
)
_RANDOM_RANGES = (
    "RANDOM DATA: the plan was made from ranges of random data, and verified on other data. It holds for that; what overflows "
    "in other inputs alone was not looked for in real ones. Scan real inputs before you trust it for them."
)
_NAME_WIDTH = 60
NOT_VERIFIED = "NOT verified"
"""How the sentence begins, and no other does."""


@dataclass(frozen=True)
class Verdict:
    """`passed` is True only when at least one output had an element to compare, and all that had one are right."""

    status: Status
    passed: bool
    sentence: str


def judge(report: FixReport) -> Verdict:
    """The verdict of a report. An empty verification passes nothing."""
    if not is_proved(report.fixed):
        return Verdict("not_verified", False, f"{NOT_VERIFIED}: {_why_not(report)}.")
    status, label, why = _explain(report)
    doubt = ", but on random data only" if report.synthetic else ""
    return Verdict(status, True, f"{label}{doubt}: {_say_compared(report.fixed)}. {why}")


def is_proved(verification: Verification | None) -> bool:
    """Whether something was compared and all of it is right; False for what was not compared at all."""
    return verification is not None and verification.passed


def warn_of_random(report: FixReport) -> str | None:
    """What is to be said first where the data are random that were verified on, or scanned; None for real data."""
    if report.synthetic:
        return _RANDOM if report.ranges.synthetic else _RANDOM_PROOF
    return _RANDOM_RANGES if report.ranges.synthetic else None


def select_over_threshold(report: FixReport) -> list[Range]:
    """The tensors over the plan's threshold or with non-finite values: see select_over."""
    return select_over(report.ranges, report.plan.threshold)


def select_over(ranges: RangeTable, threshold: float) -> list[Range]:
    """The tensors over a threshold or with non-finite values, lowest headroom first.

    A tensor that holds NaN and no other value comes first: it has no headroom to speak of.
    """
    over = [r for r in ranges.ranges if _is_over(r, threshold)]
    return sorted(over, key=lambda r: (-math.inf if math.isnan(r.max_abs) else r.headroom, r.tensor))


def _is_over(found: Range, threshold: float) -> bool:
    counted = found.nan_count or found.inf_count or found.over_fp16_count
    return bool(counted) or found.max_abs > threshold


def _say_over(over: list[Range], threshold: float) -> str:
    """Of tensors that are over it, or hold NaN, how many: not of NaN alone that they went over it."""
    large = [found for found in over if found.max_abs > threshold or not found.nan_count]
    told = {"went over the threshold": len(large), "held NaN": len(over) - len(large)}
    return " and ".join(f"{say_plural(count, 'tensor')} {what}" for what, count in told.items() if count)


def _explain(report: FixReport) -> tuple[Status, str, str]:
    over = select_over_threshold(report)
    pinned = _say_changes(report)
    if report.naive is None:
        return _explain_alone(report, pinned)
    if not is_proved(report.naive):
        return "fixed", "FIXED and verified", f"{pinned}; plain FP16 fails."
    if report.plan.pins or report.plan.clamps:
        return "fixed", "FIXED and verified", f"{pinned}; plain FP16 passes too on this data."
    if over:
        went_over = f"{_say_over(over, report.plan.threshold)}{_say_scanned(report)}"
        rest = f"plain FP16 passes on this data, though {went_over}."
        return "nothing_pinned", "VERIFIED, nothing pinned", f"{pinned}; {rest}"
    rest = f"no tensor went over the threshold{_say_scanned(report)} and plain FP16 passes."
    return "no_fix_needed", "FP16 needs no fix", f"{pinned}; {rest}"


def _say_scanned(report: FixReport) -> str:
    """Where tensors were looked at, if that is not what was verified on."""
    is_same = report.calibration == report.ranges.calibration
    return "" if is_same else " in the data that were scanned"


def _explain_alone(report: FixReport, pinned: str) -> tuple[Status, str, str]:
    """Nothing is known of plain FP16, so nothing is said to have been wrong, nor mended."""
    why = f"{pinned}; plain FP16 was not compared."
    if report.plan.pins or report.plan.clamps:
        return "fixed", "VERIFIED", why
    return "nothing_pinned", "VERIFIED, nothing pinned", why


def _say_changes(report: FixReport) -> str:
    plan, kept = report.plan, report.artifact.kept
    said = [f"{say_plural(len(plan.pins), 'node')} pinned to FP32{_say_proof(report)}"]
    if plan.clamps:
        said.append(f"{say_plural(len(plan.clamps), 'constant')} clamped")
    if kept and not plan.pins:
        said.append(f"{len(kept)} kept in FP32 by the backend")
    if report.artifact.fp32_nodes and not report.artifact.fp16_nodes:
        said.append("none runs in FP16")
    return ", ".join(said)


def _say_proof(report: FixReport) -> str:
    """What became of the pins in an engine: a pin that was asked for is not yet one that holds."""
    engine = report.artifact.engine
    if engine is None or not report.plan.pins:
        return ""
    states = {outcome.node: outcome.state for outcome in engine.pins}
    skipped, dropped = ({kept.node for kept in found} for found in (engine.skipped, engine.dropped))
    found = sort_pins((pin.node for pin in report.plan.pins), states, skipped, dropped)
    only = ", which TensorRT was only asked to prefer" if engine.constraints == "prefer" else ""
    return f" ({say_outcomes(found)}{only})"


def _say_compared(found: Verification) -> str:
    """How many outputs, and parts of them, were compared on what, and how many were empty in every batch."""
    compared = [verdict for verdict in found.outputs if verdict.error.element_count]
    empty = [verdict for verdict in found.outputs if not verdict.error.element_count]
    batches = say_batches(found.batch_count, found.changed_count)
    rest = f", {_count(empty)} had nothing to compare" if empty else ""
    return f"{_count(compared)} within tolerance of FP32 on {batches}{rest}"


def _count(verdicts: Sequence[OutputVerdict]) -> str:
    parts = sum(bool(verdict.error.part) for verdict in verdicts)
    counts = (("output", len(verdicts) - parts), ("part", parts))
    return " and ".join(say_plural(count, what) for what, count in counts if count)


def _why_not(report: FixReport) -> str:
    outputs = report.fixed.outputs
    if not outputs or report.fixed.batch_count <= 0:
        return "nothing was compared with FP32, so nothing is proved"
    failed = [verdict for verdict in outputs if not verdict.passed]
    if not failed:
        return "every output was empty in every batch, so nothing was compared"
    first = failed[0]
    name = shorten_middle(first.error.name, _NAME_WIDTH)
    has_parts = any(verdict.error.part for verdict in outputs)
    compared = f"{len(outputs)} outputs and parts" if has_parts else say_plural(len(outputs), "output")
    why = f"{len(failed)} of {compared} wrong: {name}: {first.reason.rstrip('. ')}"
    worse = "; plain FP16 passes, so this plan makes it worse" if is_proved(report.naive) else ""
    return why + worse + _say_fault(report)


def _say_fault(report: FixReport) -> str:
    engine = report.fp32_engine
    wrong = engine is not None and any(not verdict.passed for verdict in engine.outputs)
    return "; TensorRT's own FP32 engine is wrong too" if wrong else ""
