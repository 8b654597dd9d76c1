"""Pins that one cause explains, put together: a long list of nodes becomes a short list of causes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from overflow_fixer.reports.numbers_json import decode_number


@dataclass(frozen=True)
class PinGroup:
    """Nodes pinned for the same rule and tensor, in the plan's order.

    `pins` are entries of a report's `plan.pins`; `cause` is the finding of the first that is
    furthest from its limit, or None when a pin has no finding.
    """

    pins: tuple[dict[str, Any], ...]
    cause: dict[str, Any] | None


def group_pins(pins: Sequence[dict[str, Any]]) -> list[PinGroup]:
    """Group pins by the rule and tensor of their worst finding, the furthest from its limit first."""
    members: dict[tuple[str, str], list[dict[str, Any]]] = {}
    causes: dict[tuple[str, str], dict[str, Any] | None] = {}
    for pin in pins:
        cause = _worst(pin["findings"])
        key = (cause["rule"], cause["tensor"]) if cause else ("", "")
        members.setdefault(key, []).append(pin)
        causes.setdefault(key, cause)
    groups = [PinGroup(tuple(found), causes[key]) for key, found in members.items()]
    return sorted(groups, key=lambda group: -_excess(group.cause))


def _worst(findings: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    pinning = [finding for finding in findings if finding["action"] == "pin"]
    return max(pinning or findings, key=_excess, default=None)


def _excess(finding: dict[str, Any] | None) -> float:
    """How many doublings lie between a value and its limit; -1 where the evidence is not a number."""
    if finding is None:
        return -1.0
    value, limit = abs(decode_number(finding["value"])), abs(decode_number(finding["limit"]))
    if math.isnan(value) or math.isnan(limit):
        return -1.0
    if min(value, limit) == 0 or math.isinf(max(value, limit)):
        return math.inf if value != limit else 0.0
    return abs(math.log2(value) - math.log2(limit))
