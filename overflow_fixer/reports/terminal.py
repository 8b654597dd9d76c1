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
from overflow_fixer.reports.document import Document, build_document
from overflow_fixer.reports.engine_section import lay_out_engine
from overflow_fixer.reports.engine_wording import OPAQUE_NOTE, say_alerts
from overflow_fixer.reports.error_section import lay_out_errors, lay_out_first_wrong
from overflow_fixer.reports.layout import Name, line, make_table, more, note, title
from overflow_fixer.reports.pins_section import lay_out_clamps, lay_out_pins
from overflow_fixer.reports.price_section import lay_out_price
from overflow_fixer.reports.wording import (
    make_visible,
    say_bits,
    say_bytes,
    say_count,
    say_decibels,
    say_flops_share,
    say_fused,
    say_kind,
    say_number,
    say_share,
    shorten_reason,
)

TEXT_WIDTH = 100
_MOST_TENSORS = 10
_EXACT = (("reductions", "cpu"), ("outputs", "cpu"))
_MOST_ROWS = 10


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
    clamps = (lay_out_clamps,) if document["plan"]["clamps"] else ()
    before, after = (_tensors, lay_out_pins, *clamps), (lay_out_errors, lay_out_first_wrong, _rounds, _files)
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


def _share(document: Document) -> Iterator[RenderableType]:
    share, kept = document["share"], document["kept_in_fp32"]
    nodes = f"{share['fp16_nodes']} of {say_plural(share['float_nodes'], 'float node')}"
    yield title("Runs in FP16")
    yield note(f"{nodes} ({say_share(share['fp16_node_share'])})")
    yield note(say_flops_share(share))
    if document["engine"] is not None and document["engine"]["opaque_layers"]:
        yield note(OPAQUE_NOTE, "dim")
    if kept:
        kinds = Counter(say_kind(found) for found in kept).most_common()
        said = ", ".join(f"{kind} x{count}" for kind, count in kinds[:4]) + (
            ", ..." if len(kinds) > 4 else ""
        )
        yield note(f"the backend keeps {say_plural(len(kept), 'node')} in FP32 for itself: {said}")


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
    yield title(f"Files{f' in {make_visible(one)}' if one else ''}: {'' if files else 'none'}")
    table = Table.grid(padding=(0, 2))
    for found in files:
        name = Path(found["path"]).name if one else found["path"]
        table.add_row("", Name(name), Text(say_bytes(found["size_bytes"]), justify="right", no_wrap=True))
    if files:
        yield table
