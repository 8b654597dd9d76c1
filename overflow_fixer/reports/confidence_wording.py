"""How sure a plan is, in words."""

from __future__ import annotations

from collections.abc import Sequence

from overflow_fixer.records import Confidence, Growth

_MOST_NAMED = 3


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


def _say_growths(growths: Sequence[Growth]) -> str:
    return ", ".join(
        f"{g.tensor} (max |x| {g.max_abs:.6g}, {g.margin_bits:.2f} bits left, growing {g.growth_bits:.2f} a doubling)"
        for g in growths
    )
