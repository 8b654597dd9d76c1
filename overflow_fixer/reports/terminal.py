"""The closing table on the terminal, and the same as plain text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from overflow_fixer.records import FixReport
from overflow_fixer.reports.document import Document, build_document
from overflow_fixer.reports.pin_groups import PinGroup, group_pins
from overflow_fixer.reports.wording import (
    make_visible,
    say_batches,
    say_bits,
    say_bytes,
    say_count,
    say_decibels,
    say_flops,
    say_match,
    say_number,
    say_plural,
    say_share,
    shorten_middle,
)

TEXT_WIDTH = 100
_MOST_TENSORS = 10
_MOST_PIN_GROUPS = 15
_MOST_ROWS = 10
_REASON_WIDTH = 160
_NAME_MIN_WIDTH = 12
_KIND_WIDTH = 24


class Name:
    """A name that shortens itself in the middle to the room it is given; never read as markup."""

    def __init__(self, text: str) -> None:
        self._text = make_visible(text)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = max(Text(self._text).cell_len, 1)
        return Measurement(min(_NAME_MIN_WIDTH, width), width).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shorten_middle(self._text, options.max_width), no_wrap=True, overflow="crop")


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
    for section in (_tensors, _pins, _clamps, _share, _errors, _first_wrong, _rounds, _files):
        parts += [Text(""), *section(document)]
    return Group(*parts)


def _head(document: Document) -> Iterator[RenderableType]:
    if document["synthetic_data_warning"]:
        yield _line(document["synthetic_data_warning"], "bold red")
    verdict = document["verdict"]
    yield _line(verdict["sentence"], "bold green" if verdict["passed"] else "bold red")
    for warning in document["warnings"]:
        yield _line(f"Warning: {warning}", "yellow")


def _tensors(document: Document) -> Iterator[RenderableType]:
    ranges = document["ranges"]
    over, total = ranges["over_threshold"], say_plural(ranges["tensor_count"], "tensor")
    limit = say_number(ranges["threshold"])
    yield _title(f"Over the threshold of {limit}, or not finite: {len(over)} of {total}")
    if over:
        yield _tensor_table(over[:_MOST_TENSORS])
    yield from _more(len(over) - _MOST_TENSORS, "tensor", "report.json")
    if ranges["not_observed"]:
        count = say_plural(len(ranges["not_observed"]), "tensor")
        yield _note(f"{count} could not be observed: see report.json", "yellow")


def _tensor_table(ranges: Sequence[dict[str, Any]]) -> Table:
    table = _table("Tensor", "Max abs>", "Headroom\n(bits)>", "NaN>", "FP16 inf>", "Batch")
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
    yield _title(f"Pinned to FP32: {say_plural(len(pins), 'node')}{_say_causes(groups)}")
    if groups:
        yield _pin_table(groups[:_MOST_PIN_GROUPS])
    rest = groups[_MOST_PIN_GROUPS:]
    if rest:
        count = say_plural(sum(len(group.pins) for group in rest), "node")
        yield _note(f"and {count} more, by {say_plural(len(rest), 'cause')}: see plan.json", "dim")
    if plan["considered"]:
        count = say_plural(len(plan["considered"]), "finding")
        yield _note(f"{count} considered and left in FP16: see plan.json", "dim")


def _say_causes(groups: Sequence[PinGroup]) -> str:
    return f", by {say_plural(len(groups), 'cause')}" if groups else ""


def _pin_table(groups: Sequence[PinGroup]) -> Table:
    table = _table("Nodes", "Why")
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
    return f"{cause['rule']}: {_shorten_reason(cause['reason'])}{seen}"


def _clamps(document: Document) -> Iterator[RenderableType]:
    clamps = document["plan"]["clamps"]
    yield _title(f"Clamped: {say_plural(len(clamps), 'constant')}")
    if clamps:
        table = _table("Constant", "To +/->", "Why")
        for clamp in clamps[:_MOST_ROWS]:
            table.add_row(
                Name(clamp["tensor"]), say_number(clamp["magnitude"]), Text(_shorten_reason(clamp["reason"]))
            )
        yield table
    yield from _more(len(clamps) - _MOST_ROWS, "constant", "plan.json")


def _share(document: Document) -> Iterator[RenderableType]:
    share, kept = document["share"], document["kept_in_fp32"]
    nodes = f"{share['fp16_nodes']} of {say_plural(share['float_nodes'], 'float node')}"
    yield _title("Runs in FP16")
    yield _note(f"{nodes} ({say_share(share['fp16_node_share'])})")
    flops = f"{say_flops(share['fp16_flops'])} of {say_flops(share['flops'])}"
    unknown = share["unknown_flops_nodes"]
    note = f"; FLOPs of {say_plural(unknown, 'node')} unknown" if unknown else ""
    yield _note(f"{flops} ({say_share(share['fp16_flops_share'])}){note}")
    if kept:
        kinds = Counter(_say_kind(found) for found in kept).most_common()
        said = ", ".join(f"{kind} x{count}" for kind, count in kinds[:4]) + (
            ", ..." if len(kinds) > 4 else ""
        )
        yield _note(f"the backend keeps {say_plural(len(kept), 'node')} in FP32 for itself: {said}")


def _errors(document: Document) -> Iterator[RenderableType]:
    before, after = (document["verification"][side] for side in ("naive", "fixed"))
    yield _title(f"Error against FP32, before (naive FP16) and after, on {say_batches(after['batch_count'])}")
    naive = {found["error"]["tensor"]: found for found in before["outputs"]}
    outputs = sorted(after["outputs"], key=lambda found: found["passed"])
    if not outputs:
        yield _note("no output was compared", "bold red")
        return
    table = _table("Output", "", "NaN>", "Inf>", "Max abs\nerror>", "SNR\n(dB)>", "")
    for found in outputs[:_MOST_ROWS]:
        name = found["error"]["tensor"]
        if name in naive:
            table.add_row(Name(name), "before", *_error_cells(naive[name]))
        table.add_row("" if name in naive else Name(name), "after", *_error_cells(found))
    yield table
    yield from _more(len(outputs) - _MOST_ROWS, "output", "report.json")
    yield from _remarks(outputs)


def _error_cells(found: dict[str, Any]) -> Iterator[RenderableType]:
    error = found["error"]
    yield say_count(error["candidate_nan"])
    yield say_count(error["candidate_inf"])
    yield say_number(error["max_abs_error"])
    yield say_match(error)
    yield Text("ok", style="green") if found["passed"] else Text("WRONG", style="bold red")


def _remarks(outputs: Sequence[dict[str, Any]]) -> Iterator[RenderableType]:
    wrong = [found for found in outputs if not found["passed"]]
    for found in wrong[:_MOST_ROWS]:
        name = shorten_middle(make_visible(found["error"]["tensor"]), 40)
        yield _note(f"{name}: {_shorten_reason(found['reason'])}", "red")
    broken = [f for f in outputs if f["error"]["reference_nan"] or f["error"]["reference_inf"]]
    if broken:
        count = say_plural(len(broken), "output")
        yield _note(f"in FP32 itself, {count} held NaN or Inf: see report.json", "yellow")


def _first_wrong(document: Document) -> Iterator[RenderableType]:
    yield _title("First tensor to go wrong")
    for side, said in (("naive", "before"), ("fixed", "after")):
        verification = document["verification"][side]
        error = verification["first_wrong"]
        if error is not None:
            yield _note(f"{said}: {_say_first(error)}")
        elif verification["passed"]:
            yield _note(f"{said}: none")
        else:
            yield _note(f"{said}: not found")


def _say_first(error: dict[str, Any]) -> str:
    name = shorten_middle(make_visible(error["tensor"]), 60)
    batch = (
        f", worst in {shorten_middle(make_visible(error['worst_batch']), 40)}" if error["worst_batch"] else ""
    )
    said = f"SNR {say_match(error)} dB" if error["is_float"] else say_match(error)
    counts = f"{say_count(error['candidate_nan'])} NaN, {say_count(error['candidate_inf'])} Inf"
    return f"{name}: {counts}, {said}{batch}"


def _rounds(document: Document) -> Iterator[RenderableType]:
    rounds = document["repair_rounds"]
    if not rounds:
        yield _title("Repair: no round was run")
        return
    start, end = document["plan"]["initial_pin_count"], len(document["plan"]["pins"])
    yield _title(f"Repair: {say_plural(len(rounds), 'round')}, from {say_plural(start, 'pin')} to {end}")
    table = _table("Round>", "Tried", "Nodes>", "Worst\nSNR (dB)>", "Mismatched>", "Result")
    for found in rounds[:_MOST_ROWS]:
        result = "passed" if found["passed"] else "failed"
        table.add_row(
            str(found["index"]),
            Text(_shorten_reason(found["action"])),
            f"+{len(found['added'])}",
            say_decibels(found["worst_snr_db"]),
            say_count(found["mismatched"]),
            f"{result}, {'kept' if found['kept'] else 'taken back'}",
        )
    yield table
    yield from _more(len(rounds) - _MOST_ROWS, "round", "report.json")


def _files(document: Document) -> Iterator[RenderableType]:
    files = document["files"]
    folders = {str(Path(found["path"]).parent) for found in files}
    one = next(iter(folders)) if len(folders) == 1 else None
    yield _title(f"Files written{f' to {make_visible(one)}' if one else ''}: {'' if files else 'none'}")
    table = Table.grid(padding=(0, 2))
    for found in files:
        name = Path(found["path"]).name if one else found["path"]
        table.add_row("", Name(name), Text(say_bytes(found["size_bytes"]), justify="right", no_wrap=True))
    if files:
        yield table


def _table(*columns: str) -> Table:
    """A table with these headers; one that ends in ">" is of numbers: to the right, never cut."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="", padding=(0, 1))
    for column in columns:
        numeric = column.endswith(">")
        table.add_column(
            Text(column.rstrip(">")), justify="right" if numeric else "left", no_wrap=numeric, overflow="fold"
        )
    return table


def _title(text: str) -> Text:
    return Text(text, style="bold")


def _line(text: str, style: str = "") -> Text:
    return Text(make_visible(text), style=style)


def _note(text: str, style: str = "") -> Padding:
    return Padding(_line(text, style), (0, 0, 0, 2), expand=False)


def _more(count: int, noun: str, file: str) -> Iterator[RenderableType]:
    if count > 0:
        yield _note(f"and {count} more {noun if count == 1 else noun + 's'}: see {file}", "dim")


def _shorten_reason(reason: str) -> str:
    return shorten_middle(make_visible(reason), _REASON_WIDTH)
