"""The closing table on the terminal, and the same as plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from overflow_fixer.plurals import say_plural
from overflow_fixer.records import FixReport
from overflow_fixer.reports.confidence_wording import say_passes
from overflow_fixer.reports.document import Document, build_document
from overflow_fixer.reports.engine_section import lay_out_engine, lay_out_proof
from overflow_fixer.reports.engine_wording import OPAQUE_NOTE, TRACE_NOTES, say_alerts, say_fp32_engine
from overflow_fixer.reports.layout import Name, line, make_table, more, note, title
from overflow_fixer.reports.pin_groups import PinGroup, group_pins
from overflow_fixer.reports.price_section import lay_out_price
from overflow_fixer.reports.wording import (
    NOTHING_COMPARED,
    make_visible,
    say_batches,
    say_bits,
    say_bytes,
    say_compared,
    say_count,
    say_decibels,
    say_flops_share,
    say_fused,
    say_mark,
    say_match,
    say_number,
    say_outcome,
    say_share,
    shorten_middle,
    shorten_reason,
)

TEXT_WIDTH = 100
_MOST_TENSORS = 10
_EXACT = (("reductions", "cpu"), ("outputs", "cpu"))
_MOST_PIN_GROUPS = 15
_MOST_ROWS = 10
_KIND_WIDTH = 24
_MARK_STYLES = {"ok": "green", "WRONG": "bold red", NOTHING_COMPARED: "yellow"}


def closing_table(report: FixReport) -> Group:
    """What to print on a rich Console when the main job ends; fits 80 columns."""
    return lay_out(build_document(report))


def render_text(report: FixReport) -> str:
    """The closing table as plain text, 100 columns wide, without colours."""
    return print_document(build_document(report))


def print_document(document: Document, width: int = TEXT_WIDTH) -> str:
    """A report's document (see `build_document`) as plain text, `width` columns wide."""
    console = Console(
        file=StringIO(),
        width=width,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        legacy_windows=False,
    )
    with console.capture() as capture:
        console.print(lay_out(document))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def lay_out(document: Document) -> Group:
    """The closing table of a report's document."""
    parts: list[RenderableType] = [*_head(document)]
    engine = () if document["engine"] is None else (lay_out_engine,)
    price = () if document["engine"] is None and document["price"] is None else (lay_out_price,)
    clamps = (_clamps,) if document["plan"]["clamps"] else ()
    before, after = (_tensors, _pins, *clamps), (_errors, _first_wrong, _rounds, _files)
    for section in (*before, *engine, _share, *price, *after):
        parts += [Text(""), *section(document)]
    return Group(*parts, Text(""), _verdict(document))


def _head(document: Document) -> Iterator[RenderableType]:
    if document["synthetic_data_warning"]:
        yield line(document["synthetic_data_warning"], "bold red")
    yield _verdict(document)
    for alert in say_alerts(document):
        yield line(alert, "bold red")
    for warning in document["warnings"]:
        yield line(f"Warning: {warning}", "yellow")
    if document["fused"] is not None:
        yield line(say_fused(document["fused"]))


def _verdict(document: Document) -> Text:
    """Said first, and last again: by then the first line may have left the screen."""
    verdict = document["verdict"]
    return line(verdict["sentence"], "bold green" if verdict["passed"] else "bold red")


def _tensors(document: Document) -> Iterator[RenderableType]:
    ranges = document["ranges"]
    over, total = ranges["over_threshold"], say_plural(ranges["tensor_count"], "tensor")
    limit = say_number(ranges["threshold"])
    yield title(f"Over the threshold of {limit}, or not finite: {len(over)} of {total}")
    if over:
        yield _tensor_table(over[:_MOST_TENSORS])
    yield from more(len(over) - _MOST_TENSORS, "tensor", "report.json")
    if (ranges["observe"], ranges["provider"]) not in _EXACT:
        yield note(f"values are {ranges['values']}", "yellow")
    if ranges["not_observed"]:
        count = say_plural(len(ranges["not_observed"]), "tensor")
        yield note(f"{count} could not be observed: see report.json", "yellow")


def _tensor_table(ranges: Sequence[dict[str, Any]]) -> Table:
    table = make_table("Tensor", "Max abs>", "Headroom\n(bits)>", "NaN>", "FP16 inf>", "Batch")
    for found in ranges:
        table.add_row(
            Name(found["tensor"]),
            say_number(found["max_abs"]),
            say_bits(found["headroom_bits"]),
            say_count(found["nan_count"]),
            say_count(found["over_fp16_count"]),
            Name(found["batch"] or "-"),
        )
    return table


def _pins(document: Document) -> Iterator[RenderableType]:
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
    first, *others = (_say_kind(pin) for pin in group.pins)
    if not others:
        return first
    kinds = Counter(others).most_common()
    said = ", ".join(kind for kind, _ in kinds[:3]) + (", ..." if len(kinds) > 3 else "")
    return f"{first}, and {len(others)} more ({said})"


def _say_kind(node: dict[str, Any]) -> str:
    return shorten_middle(make_visible(node["op_type"]), _KIND_WIDTH)


def _say_cause(group: PinGroup) -> str:
    cause = group.cause
    if cause is None:
        return "no finding was recorded"
    batch = cause["batch"]
    seen = f" [{shorten_middle(make_visible(batch), 40)}]" if batch and batch not in cause["reason"] else ""
    return f"{cause['rule']}: {shorten_reason(cause['reason'])}{seen}"


def _clamps(document: Document) -> Iterator[RenderableType]:
    clamps = document["plan"]["clamps"]
    yield title(f"Clamped: {say_plural(len(clamps), 'constant')}")
    table = make_table("Constant", "To +/->", "Why")
    for clamp in clamps[:_MOST_ROWS]:
        table.add_row(
            Name(clamp["tensor"]), say_number(clamp["magnitude"]), Text(shorten_reason(clamp["reason"]))
        )
    yield table
    yield from more(len(clamps) - _MOST_ROWS, "constant", "plan.json")


def _share(document: Document) -> Iterator[RenderableType]:
    share, kept = document["share"], document["kept_in_fp32"]
    nodes = f"{share['fp16_nodes']} of {say_plural(share['float_nodes'], 'float node')}"
    yield title("Runs in FP16")
    yield note(f"{nodes} ({say_share(share['fp16_node_share'])})")
    yield note(say_flops_share(share))
    if document["engine"] is not None and document["engine"]["opaque_layers"]:
        yield note(OPAQUE_NOTE, "dim")
    if kept:
        kinds = Counter(_say_kind(found) for found in kept).most_common()
        said = ", ".join(f"{kind} x{count}" for kind, count in kinds[:4]) + (
            ", ..." if len(kinds) > 4 else ""
        )
        yield note(f"the backend keeps {say_plural(len(kept), 'node')} in FP32 for itself: {said}")


def _errors(document: Document) -> Iterator[RenderableType]:
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


def _first_wrong(document: Document) -> Iterator[RenderableType]:
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


def _rounds(document: Document) -> Iterator[RenderableType]:
    rounds = document["repair_rounds"]
    if not rounds:
        yield title("Repair: no round was run")
        return
    start, end = document["plan"]["initial_pin_count"], len(document["plan"]["pins"])
    yield title(f"Repair: {say_plural(len(rounds), 'round')}, from {say_plural(start, 'pin')} to {end}")
    table = make_table("Round>", "Tried", "Nodes>", "Worst\nSNR (dB)>", "Mismatched>", "Result")
    for found in rounds[:_MOST_ROWS]:
        result = "passed" if found["passed"] else "failed"
        table.add_row(
            str(found["index"]),
            Text(shorten_reason(found["action"])),
            f"+{len(found['added'])}",
            say_decibels(found["worst_snr_db"]),
            say_count(found["mismatched"]),
            f"{result}, {'kept' if found['kept'] else 'taken back'}",
        )
    yield table
    yield from more(len(rounds) - _MOST_ROWS, "round", "report.json")


def _files(document: Document) -> Iterator[RenderableType]:
    files = document["files"]
    folders = {str(Path(found["path"]).parent) for found in files}
    one = next(iter(folders)) if len(folders) == 1 else None
    yield title(f"Files written{f' to {make_visible(one)}' if one else ''}: {'' if files else 'none'}")
    table = Table.grid(padding=(0, 2))
    for found in files:
        name = Path(found["path"]).name if one else found["path"]
        table.add_row("", Name(name), Text(say_bytes(found["size_bytes"]), justify="right", no_wrap=True))
    if files:
        yield table
