"""What the closing table says of the plan: the nodes pinned to FP32, and the constants clamped, each with why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from overflow_fixer.plurals import say_plural
from overflow_fixer.reports.document import Document
from overflow_fixer.reports.engine_section import lay_out_proof
from overflow_fixer.reports.layout import Name, make_table, more, note, title
from overflow_fixer.reports.pin_groups import PinGroup, group_pins
from overflow_fixer.reports.wording import make_visible, say_kind, say_number, shorten_middle, shorten_reason

_MOST_PIN_GROUPS = 15
_MOST_ROWS = 10


def lay_out_pins(document: Document) -> Iterator[RenderableType]:
    """The pins, cause by cause, what became of them, and how sure the plan is."""
    plan = document["plan"]
    pins, groups = plan["pins"], group_pins(plan["pins"])
    yield title(f"Pinned to FP32: {say_plural(len(pins), 'node')}{_say_causes(groups)}")
    if groups:
        yield _pin_table(groups[:_MOST_PIN_GROUPS])
    rest = groups[_MOST_PIN_GROUPS:]
    if rest:
        count = say_plural(sum(len(group.pins) for group in rest), "node")
        yield note(f"and {count} more, by {say_plural(len(rest), 'cause')}: see plan.json", "dim")
    yield from lay_out_proof(document)
    yield from _considered(plan["considered"])
    yield note(document["confidence"]["sentence"])


def _considered(findings: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    protected = sum(found["action"] == "protected" for found in findings)
    if protected:
        count = say_plural(protected, "finding")
        yield note(f"{count} inside nodes that the backend computes in FP32 by itself: see plan.json", "dim")
    if len(findings) > protected:
        nouns = "finding for the record, which pins nothing", "findings for the record, which pin nothing"
        yield note(f"{say_plural(len(findings) - protected, *nouns)}: see plan.json", "dim")


def _say_causes(groups: Sequence[PinGroup]) -> str:
    return f", by {say_plural(len(groups), 'cause')}" if groups else ""


def _pin_table(groups: Sequence[PinGroup]) -> Table:
    table = make_table("Nodes", "Why")
    for group in groups:
        table.add_row(
            Group(Name(group.pins[0]["node"]), Text(_say_operators(group), style="dim")),
            Text(_say_cause(group)),
        )
    return table


def _say_operators(group: PinGroup) -> str:
    first, *others = (say_kind(pin) for pin in group.pins)
    if not others:
        return first
    kinds = Counter(others).most_common()
    said = ", ".join(kind for kind, _ in kinds[:3]) + (", ..." if len(kinds) > 3 else "")
    return f"{first}, and {len(others)} more ({said})"


def _say_cause(group: PinGroup) -> str:
    cause = group.cause
    if cause is None:
        return "no finding was recorded"
    batch = cause["batch"]
    seen = f" [{shorten_middle(make_visible(batch), 40)}]" if batch and batch not in cause["reason"] else ""
    return f"{cause['rule']}: {shorten_reason(cause['reason'])}{seen}"


def lay_out_clamps(document: Document) -> Iterator[RenderableType]:
    """The constants that are clamped, with why."""
    clamps = document["plan"]["clamps"]
    yield title(f"Clamped: {say_plural(len(clamps), 'constant')}")
    table = make_table("Constant", "To +/->", "Why")
    for clamp in clamps[:_MOST_ROWS]:
        table.add_row(
            Name(clamp["tensor"]), say_number(clamp["magnitude"]), Text(shorten_reason(clamp["reason"]))
        )
    yield table
    yield from more(len(clamps) - _MOST_ROWS, "constant", "plan.json")
