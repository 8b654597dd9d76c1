"""What differs between two plans of one model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from overflow_fixer.records import Pin, PrecisionPlan

_MOST_NAMED = 5


@dataclass(frozen=True)
class PlanChange:
    """Pins of the second plan that the first has not, and the other way round, in the order of the graph."""

    thresholds: tuple[float, float]
    added: tuple[Pin, ...]
    removed: tuple[Pin, ...]


def compare_plans(before: PrecisionPlan, after: PrecisionPlan) -> PlanChange:
    added = tuple(pin for pin in after.pins if pin.node not in before.pinned)
    removed = tuple(pin for pin in before.pins if pin.node not in after.pinned)
    return PlanChange((before.threshold, after.threshold), added, removed)


def say_change(change: PlanChange) -> Iterator[str]:
    """Lines that say what is pinned now, and what no longer."""
    before, after = change.thresholds
    against = (
        f"the plan there was (threshold {before:g}, now {after:g})"
        if before != after
        else "the plan there was"
    )
    if not change.added and not change.removed:
        yield f"Against {against}: the same nodes are pinned."
        return
    yield f"Against {against}: {len(change.added)} more pinned, {len(change.removed)} no longer."
    for sign, pins in (("+", change.added), ("-", change.removed)):
        for pin in pins[:_MOST_NAMED]:
            reason = pin.findings[0].reason if pin.findings else "no finding was recorded"
            yield f"  {sign} {pin.node} ({pin.op_type}): {reason}"
        if len(pins) > _MOST_NAMED:
            yield f"  {sign} {len(pins) - _MOST_NAMED} more"
