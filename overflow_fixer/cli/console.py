"""What a verb says on the terminal: progress on stderr, results on stdout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from overflow_fixer.cli.guard import note_stage
from overflow_fixer.progress import Progress

_PIPED_WIDTH = 120


def open_console() -> Console:
    """stdout as it is: names are printed to the letter, and a pipe gets room for long ones."""
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=_PIPED_WIDTH)


@contextmanager
def show_progress(quiet: bool) -> Iterator[Progress]:
    """A callback that draws a bar a stage with the time left; draws nothing when stderr is no terminal."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda stage, done, total: note_stage(stage)
        return
    columns = (TextColumn("{task.description:>14}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(stage: str, done: int, total: int) -> None:
            note_stage(stage)
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield advance
