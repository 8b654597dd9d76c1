"""Warnings that data, ranges and plan are not of each other: each may be named by itself, and replaced since."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from overflow_fixer.records import CalibrationSet, Finding, PrecisionPlan, RangeTable

_OF_VERIFIED = frozenset({"repair", "region"})
"""Rules whose batches may be of the data that were verified on, in place of those that were scanned."""


def say_changed_data(ranges: RangeTable, data: CalibrationSet) -> Iterator[str]:
    """That the data verified on have the path of data that were scanned, and are others by now."""
    if data.source in ranges.fingerprints.values() and data.fingerprint not in ranges.fingerprints:
        yield (
            f"The calibration data {data.source} are not what was scanned: the files, or the options that make batches of them, "
            "changed since. The plan was made for the ranges of what was there. Scan and plan again, or run fix-fp16 MODEL without "
            "--ranges, to have it made for these."
        )


def say_other_ranges(plan: PrecisionPlan, ranges: RangeTable, read: tuple[Path, Path]) -> Iterator[str]:
    """That a plan was made from other ranges than these, by the first finding that they do not bear out; `read` are the files of both."""
    findings = [finding for pin in plan.pins for finding in pin.findings] + list(plan.considered)
    other = next((said for finding in findings if (said := _say_contradiction(finding, ranges))), None)
    if other is not None:
        of_ranges, of_plan = read
        yield (
            f"{of_plan} was made from other ranges than {of_ranges}: {other}. What is told here of the data that were scanned, of tensors over "
            "the threshold, and of how sure the plan is, is of these ranges, and not of those. Name those that it was made from with "
            f"--ranges, or plan, build and verify again: fix-fp16 plan MODEL --ranges {of_ranges}."
        )


def _say_contradiction(finding: Finding, ranges: RangeTable) -> str | None:
    """What a rule's finding tells that ranges do not: another maximum, or a batch that is not theirs."""
    seen = ranges.get(finding.tensor)
    if finding.rule == "threshold" and seen is not None and seen.max_abs != finding.value:
        return f"it tells of max |x| {finding.value:.6g} in {finding.tensor}, and they of {seen.max_abs:.6g}"
    if (
        finding.rule not in _OF_VERIFIED
        and finding.batch is not None
        and finding.batch not in ranges.batch_names
    ):
        return f"it tells of {finding.tensor} in {finding.batch}, which is none of their batches"
    return None
