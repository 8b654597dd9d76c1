"""Tables on stdout."""

from __future__ import annotations

from rich.console import Console, RenderableType

from overflow_fixer.cli.results import leave_stdout, on_stdout

_PIPED_WIDTH = 120
_LEAST_WIDTH = 72
"""In fewer columns tables would drop names and verdicts; the terminal breaks their lines instead."""


def show(*parts: RenderableType) -> None:
    """Print tables and lines, names to the letter, as wide as the terminal, but no narrower than 72 columns; a pipe gets room for
    long names.

    Raises OutputError as on_stdout.
    """
    console = _Console(markup=False, highlight=False)
    console.width = max(console.width, _LEAST_WIDTH) if console.is_terminal else _PIPED_WIDTH
    with on_stdout():
        for part in parts:
            console.print(part)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Where rich would end the process, with the exit code of a verification that failed."""
        leave_stdout()
