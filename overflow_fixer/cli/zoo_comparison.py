"""What a zoo says of an earlier run that it was compared with: a line for each kind of change, with some names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from overflow_fixer.reports.wording import make_visible, shorten_middle

_MOST_NAMES = 5
_MOST_PINS = 3
_NAME_WIDTH = 60
_KINDS = {
    "newly failing": "newly_failing",
    "newly passing": "newly_passing",
    "only in this run": "added",
    "only in the earlier run": "removed",
    "other model or data": "changed_content",
}


def say_comparison(found: Mapping[str, Any]) -> Iterator[str]:
    """The lines for the `comparison` of a summary; zoo-report.json and .html have every name."""
    lines = [
        *_say_models(found),
        *_say_plans(found["changed_plans"]),
        *_say_versions(found["changed_versions"]),
    ]
    since = f"Since the earlier run (fix-fp16 {found['tool_version']})"
    yield f"{since}:" if lines else f"{since} nothing changed: no outcome, plan, version, model or data."
    yield from (f"  {line}" for line in lines)


def _say_models(found: Mapping[str, Any]) -> Iterator[str]:
    for kind, key in _KINDS.items():
        if found[key]:
            yield f"{kind} ({len(found[key])}): {_list(found[key], _MOST_NAMES)}"


def _say_plans(changed: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if changed:
        told = "; ".join(_say_plan(plan) for plan in changed[:_MOST_NAMES])
        yield f"other pins ({len(changed)}): {told}{_say_rest(len(changed) - _MOST_NAMES)}"


def _say_plan(plan: Mapping[str, Any]) -> str:
    sides = {"gained": plan["added"], "lost": plan["removed"]}
    told = [f"{len(pins)} {side}, {_list(pins, _MOST_PINS)}" for side, pins in sides.items() if pins]
    return f"{_shorten(plan['name'])} ({'; '.join(told)})"


def _say_versions(changed: Mapping[str, Sequence[str | None]]) -> Iterator[str]:
    if changed:
        told = (f"{name} {before or 'none'} -> {now or 'none'}" for name, (before, now) in changed.items())
        yield f"other versions: {', '.join(told)}"


def _list(names: Sequence[str], most: int) -> str:
    return ", ".join(map(_shorten, names[:most])) + _say_rest(len(names) - most)


def _say_rest(count: int) -> str:
    return f", and {count} more" if count > 0 else ""


def _shorten(name: str) -> str:
    return shorten_middle(make_visible(name), _NAME_WIDTH)
