"""How sure a plan and its verification are, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from overflow_fixer.records import Confidence, Growth
from overflow_fixer.reports.numbers_json import decode_number
from overflow_fixer.reports.wording import say_batches, say_share

_MOST_NAMED = 3
_CONFIDENCE = 0.95
_ENOUGH = 59
"""The fewest batches that, all passing, leave under 5 %."""


def say_confidence(confidence: Confidence) -> str:
    """In some sentences, with the values named that come nearest: tensors, and what nodes compute inside."""
    said = _say_largest(confidence)
    return f"{said} {_say_smallest(confidence)}" if confidence.falling else said


def _say_smallest(confidence: Confidence) -> str:
    falls = confidence.falling
    named = ", ".join(
        f"{one.tensor} (min |x| {one.min_nonzero_abs:.3g}, {one.margin_bits:.2f} bits left, falling {one.fall_bits:.2f} a doubling)"
        for one in falls[:_MOST_NAMED]
    )
    rest = f" and {len(falls) - _MOST_NAMED} more" if len(falls) > _MOST_NAMED else ""
    return (
        "Small values may change it: of what is divided by, perhaps its root, or a logarithm is taken of, four times as many elements, "
        f"spread as these are, would bring under 8 of FP16's steps {named}{rest}."
    )


def _say_largest(confidence: Confidence) -> str:
    count = confidence.batch_count
    if not confidence.nearest:
        return "No value is left that more data could bring over its limit and pin another node."
    nearest = _say_growths(confidence.nearest[:1], count)
    if count < 2:
        return (
            f"One batch cannot tell whether more data would change the plan. Nearest to its limit: {nearest}."
        )
    if confidence.at_risk:
        return (
            f"More data may change the plan: at the rate at which maxima grew over {count} batches, four times as many "
            f"would bring over the limit {_say_first(confidence.at_risk, count)}.{_say_single(confidence)}"
        )
    hardly = "" if confidence.falling else "More data of this kind would hardly change the plan: "
    rate = "At the rate" if confidence.falling else "at the rate"
    return (
        f"{hardly}{rate} at which maxima grew over {count} batches, "
        f"four times as many bring no other value over its limit. Nearest: {nearest}.{_say_single(confidence)}"
    )


def _say_single(confidence: Confidence) -> str:
    """Of what rates say nothing: values that a single one of several batches shows."""
    single = [growth for growth in confidence.nearest if math.isnan(growth.growth_bits)]
    if not single:
        return ""
    named = _say_first(single, confidence.batch_count)
    return f" How what a single batch shows would grow, nobody can tell: {named}."


def bound_failures(batch_count: int) -> float:
    """The share of batches of which, with 95 % confidence, no more fail where `batch_count` (1 or more) drawn at random all pass.

    1 - 0.05^(1/n): the exact one-sided limit of a binomial proportion for no failure in n trials (Clopper and Pearson, 1934).
    """
    return float(1 - (1 - _CONFIDENCE) ** (1 / batch_count))


def say_passes(document: dict[str, Any]) -> str | None:
    """What it proves, in a report.json, that every batch passes; None where one does not, or the data are random."""
    fixed = document["verification"]["fixed"]
    count = fixed["batch_count"]
    if not _passes_everywhere(document, fixed) or not count or document["verification"]["synthetic"]:
        return None
    share, least = say_share(bound_failures(count)), say_share(bound_failures(_ENOUGH))
    more = f"; {_ENOUGH} would leave {least}" if count < _ENOUGH and share != least else ""
    return (
        f"Passing on {say_batches(count)} leaves room for up to {share} of such batches to fail, even if these were a random sample "
        f"that the plan was not made from (95 % confidence){more}. To verify on others: fix-fp16 verify --calib."
    )


def _passes_everywhere(document: dict[str, Any], fixed: dict[str, Any]) -> bool:
    """Also by the values that are equal in each batch, of outputs that are not of floats."""
    least = decode_number(document["tolerance"]["min_agreement"])
    agreements = (decode_number(found["error"]["worst_batch_agreement"]) for found in fixed["outputs"])
    return bool(fixed["passed"]) and not any(agreement < least for agreement in agreements)


def _say_first(growths: Sequence[Growth], batch_count: int) -> str:
    rest = len(growths) - _MOST_NAMED
    return _say_growths(growths[:_MOST_NAMED], batch_count) + (f" and {rest} more" if rest > 0 else "")


def _say_growths(growths: Sequence[Growth], batch_count: int) -> str:
    return ", ".join(
        f"{one.tensor} (max |x| {one.max_abs:.6g}, {one.margin_bits:.2f} bits left{_say_rate(one, batch_count)})"
        for one in growths
    )


def _say_rate(growth: Growth, batch_count: int) -> str:
    if not math.isnan(growth.growth_bits):
        return f", growing {growth.growth_bits:.2f} a doubling"
    return f", in one of {batch_count} batches" if batch_count > 1 else ""
