"""How sure a plan and its verification are, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overflow_fixer.records import Confidence, Growth
from overflow_fixer.reports.wording import say_batches, say_share

_MOST_NAMED = 3
_CONFIDENCE = 0.95
_ENOUGH = 59
"""The fewest batches that, all passing, leave at most 5 %."""


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

    1 - 0.05^(1/n): the exact upper limit of a binomial proportion for no failure in n trials (Clopper and Pearson, 1934).
    """
    return float(1 - (1 - _CONFIDENCE) ** (1 / batch_count))


def say_passes(verification: dict[str, Any]) -> str | None:
    """What it proves that every batch of a verification in report.json passes; None where one does not."""
    count = verification["batch_count"]
    if not verification["passed"] or not count:
        return None
    more = (
        f"; {_ENOUGH} that pass would leave {say_share(bound_failures(_ENOUGH))}" if count < _ENOUGH else ""
    )
    return (
        f"Passing on {say_batches(count)} leaves room for up to {say_share(bound_failures(count))} of such batches to fail (with 95 % "
        f"confidence, of a random sample that the plan was not made from){more}."
    )


def _say_growths(growths: Sequence[Growth]) -> str:
    return ", ".join(
        f"{g.tensor} (max |x| {g.max_abs:.6g}, {g.margin_bits:.2f} bits left, growing {g.growth_bits:.2f} a doubling)"
        for g in growths
    )
