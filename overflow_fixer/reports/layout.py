"""What the sections of the closing table are laid out with: names, titles, notes and tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from overflow_fixer.reports.wording import make_visible, shorten_middle

_NAME_MIN_WIDTH = 12


class Name:
    """A name that shortens itself in the middle to the room it is given; never read as markup."""

    def __init__(self, text: str) -> None:
        self._text = make_visible(text)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        width = max(Text(self._text).cell_len, 1)
        return Measurement(min(_NAME_MIN_WIDTH, width), width).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(shorten_middle(self._text, options.max_width), no_wrap=True, overflow="crop")


def make_table(*columns: str) -> Table:
    """A table with these headers; one that ends in ">" is of numbers: to the right, never cut."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="", padding=(0, 1))
    for column in columns:
        numeric = column.endswith(">")
        table.add_column(
            Text(column.rstrip(">")), justify="right" if numeric else "left", no_wrap=numeric, overflow="fold"
        )
    return table


def title(text: str) -> Text:
    return Text(text, style="bold")


def line(text: str, style: str = "") -> Text:
    return Text(make_visible(text), style=style)


def note(text: str, style: str = "", indent: int = 2) -> Padding:
    return Padding(line(text, style), (0, 0, 0, indent), expand=False)


def more(count: int, noun: str, file: str) -> Iterator[RenderableType]:
    if count > 0:
        yield note(f"and {count} more {noun if count == 1 else noun + 's'}: see {file}", "dim")
