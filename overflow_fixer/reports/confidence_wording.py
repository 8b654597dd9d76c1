"""How sure a plan and its verification are, in words."""

from __future__ import annotations

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
    """In one or two sentences, with the values named that come nearest: tensors, and what nodes compute inside."""
    count = confidence.batch_count
    if not confidence.nearest:
        return "No value is left that more data could bring over its limit and pin another node."
    nearest = _say_growths(confidence.nearest[:1])
    if count < 2:
        return (
            f"One batch cannot tell whether more data would change the plan. Nearest to its limit: {nearest}."
        )
    if confidence.at_risk:
        named = _say_growths(confidence.at_risk[:_MOST_NAMED])
        more = (
            f" and {len(confidence.at_risk) - _MOST_NAMED} more"
            if len(confidence.at_risk) > _MOST_NAMED
            else ""
        )
        return (
            f"More data may change the plan: at the rate at which maxima grew over {count} batches, four times as many "
            f"would bring over the limit {named}{more}."
        )
    return (
        f"More data of this kind would hardly change the plan: at the rate at which maxima grew over {count} batches, "
        f"four times as many bring no other value over its limit. Nearest: {nearest}."
    )


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


def _say_growths(growths: Sequence[Growth]) -> str:
    return ", ".join(
        f"{g.tensor} (max |x| {g.max_abs:.6g}, {g.margin_bits:.2f} bits left, growing {g.growth_bits:.2f} a doubling)"
        for g in growths
    )
