"""Tables on stdout."""

from __future__ import annotations

from rich.console import Console, RenderableType

from overflow_fixer.cli.results import leave_stdout, on_stdout

_PIPED_WIDTH = 120


def show(*parts: RenderableType) -> None:
    """Print tables and lines, names to the letter, as wide as the terminal; a pipe gets room for long names.

    Raises OutputError as on_stdout.
    """
    console = _Console(markup=False, highlight=False)
    if not console.is_terminal:
        console = _Console(markup=False, highlight=False, width=_PIPED_WIDTH)
    with on_stdout():
        for part in parts:
            console.print(part)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Where rich would end the process, with the exit code of a verification that failed."""
        leave_stdout()
