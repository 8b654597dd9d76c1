"""What the closing table says of the verification: the error of each output, and the first tensor to go wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from overflow_fixer.plurals import say_plural
from overflow_fixer.reports.confidence_wording import say_passes
from overflow_fixer.reports.document import Document
from overflow_fixer.reports.engine_wording import TRACE_NOTES, say_fp32_engine
from overflow_fixer.reports.layout import Name, make_table, more, note, title
from overflow_fixer.reports.wording import (
    NOTHING_COMPARED,
    make_visible,
    say_batches,
    say_compared,
    say_count,
    say_mark,
    say_match,
    say_number,
    say_outcome,
    shorten_middle,
    shorten_reason,
)

_MOST_ROWS = 10
_MARK_STYLES = {"ok": "green", "WRONG": "bold red", NOTHING_COMPARED: "yellow"}


def lay_out_errors(document: Document) -> Iterator[RenderableType]:
    """Each output before and after, those that are wrong first, and what is to be said of them."""
    before, after = (document["verification"][side] for side in ("naive", "fixed"))
    what = " (plain FP16 was not compared)" if before is None else ", before (naive FP16) and after"
    batches = f"{say_batches(after['batch_count'], after['changed_count'])}{_say_other_data(document)}"
    yield title(f"Error against FP32{what}, on {batches}")
    outputs = sorted(after["outputs"], key=lambda found: found["passed"])
    if outputs:
        yield _error_table(outputs[:_MOST_ROWS], None if before is None else before["outputs"])
        yield from more(len(outputs) - _MOST_ROWS, "output", "report.json")
        yield from _remarks(outputs)
        yield from map(note, filter(None, [say_passes(document)]))
    else:
        yield note("no output was compared", "bold red")
    reference = say_fp32_engine(document)
    if reference is not None:
        yield note(reference, "" if document["verification"]["fp32_engine"]["passed"] else "bold red")


def _say_other_data(document: Document) -> str:
    """Which data it was verified on, where these are not the ones that were scanned."""
    source = document["verification"]["source"]
    if source == document["calibration"]["source"]:
        return ""
    return f" of {shorten_middle(make_visible(source), 40)}"


def _error_table(outputs: Sequence[dict[str, Any]], before: Sequence[dict[str, Any]] | None) -> Table:
    sides = () if before is None else ("",)
    table = make_table("Output", *sides, "NaN>", "Inf>", "Max abs\nerror>", "Worst\nSNR (dB)>", "")
    naive = {say_compared(found["error"]): found for found in before or ()}
    for found in outputs:
        name = say_compared(found["error"])
        if name in naive:
            table.add_row(Name(name), "before", *_error_cells(naive[name]))
        after = () if before is None else ("after",)
        table.add_row("" if name in naive else Name(name), *after, *_error_cells(found))
    return table


def _error_cells(found: dict[str, Any]) -> Iterator[RenderableType]:
    error = found["error"]
    yield say_count(error["candidate_nan"])
    yield say_count(error["candidate_inf"])
    yield say_number(error["max_abs_error"])
    yield say_match(error)
    mark = say_mark(found)
    yield Text(mark, style=_MARK_STYLES[mark])


def _remarks(outputs: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    wrong = [found for found in outputs if not found["passed"]]
    for found in wrong[:_MOST_ROWS]:
        name = shorten_middle(make_visible(say_compared(found["error"])), 40)
        yield note(f"{name}: {shorten_reason(found['reason'])}", "red")
    broken = [f for f in outputs if f["error"]["reference_nan"] or f["error"]["reference_inf"]]
    if broken:
        count = say_plural(len(broken), "output")
        yield note(f"in the original model, {count} held NaN or Inf: see report.json", "yellow")


def lay_out_first_wrong(document: Document) -> Iterator[RenderableType]:
    """Where each verification began to go wrong, and where NaN or infinities begin."""
    yield title("First tensor to go wrong")
    found = [document["verification"][side] for side in ("naive", "fixed")]
    for verification, side in zip(found, ("before", "after"), strict=True):
        yield note(f"{side}: {_say_first_of(verification)}")
        yield from _not_finite(verification)
    for source in dict.fromkeys(side["traced_in"] for side in found if side and side["first_wrong"]):
        if TRACE_NOTES[source]:
            yield note(f"({TRACE_NOTES[source]})", "dim")


def _not_finite(verification: Document | None) -> Iterator[RenderableType]:
    """Where NaN or infinities begin, if that is further on."""
    found = verification and verification["first_not_finite"]
    if verification and found and found != verification["first_wrong"]:
        yield note(f"NaN or infinities begin in {_say_first(found)}")


def _say_first_of(verification: Document | None) -> str:
    if verification is None:
        return "not compared"
    if verification["first_wrong"] is not None:
        return _say_first(verification["first_wrong"])
    if verification["passed"]:
        return "none"
    return "not found" if say_outcome(verification) == "failed" else "nothing was compared"


def _say_first(error: dict[str, Any]) -> str:
    name = shorten_middle(make_visible(say_compared(error)), 60)
    if error.get("failure"):
        return f"{name}: it cannot be computed: {shorten_reason(error['failure'])}"
    batch = (
        f", worst in {shorten_middle(make_visible(error['worst_batch']), 40)}" if error["worst_batch"] else ""
    )
    said = f"SNR {say_match(error)} dB" if error["is_float"] else say_match(error)
    counts = f"{say_count(error['candidate_nan'])} NaN, {say_count(error['candidate_inf'])} Inf"
    return f"{name}: {counts}, {said}{batch}"
