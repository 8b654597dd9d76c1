"""Tables on a terminal of any width."""

from __future__ import annotations

import io
import sys

import pytest
from rich.table import Table

from overflow_fixer.cli.tables import show


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "width"), [(20, 72), (40, 72), (90, 90), (None, 120)])
def test_a_table_is_as_wide_as_the_terminal_but_never_so_narrow_that_it_loses_cells(
    columns: int | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.StringIO() if columns is None else _Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns or 200))
    table = Table("Output", "", expand=True)
    table.add_row("y", "WRONG")
    show(table)
    lines = out.getvalue().splitlines()
    assert len(lines[0]) == width
    assert any("WRONG" in line for line in lines)
