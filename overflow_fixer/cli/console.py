"""The progress that a verb shows, on stderr."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn, Protocol

import click
from rich.console import Console

from overflow_fixer.cli.guard import leave_bars, note_stage
from overflow_fixer.cli.heartbeat import Heartbeat
from overflow_fixer.cli.interrupts import STOPPED_AT_ONCE, Interrupts
from overflow_fixer.cli.late_answers import LateAnswers
from overflow_fixer.cli.progress_bars import ProgressBars
from overflow_fixer.cli.progress_lines import ProgressLines
from overflow_fixer.errors import EXIT_STOPPED
from overflow_fixer.records import Range

_STDERR = 2
_REMIND_SECONDS = 1.0
_PATIENT_STAGE = "scan"
"""The stage in which a signal waits for the batch at hand."""


class Display(Protocol):
    """Draws the progress of one stage after another."""

    def advance(self, stage: str, done: int, total: int) -> None: ...

    def over(self, ranges: Sequence[Range]) -> None: ...

    def say(self, text: str) -> None: ...

    def close(self) -> None: ...


class ShownProgress:
    """The callback that verbs give to the stages; `over` takes the tensors that a scan finds over the limit."""

    def __init__(self, display: Display | None, interrupts: Interrupts) -> None:
        self._display = display
        self._interrupts = interrupts

    def __call__(self, stage: str, done: int, total: int) -> None:
        note_stage(f"{stage} ({done} of {total} done)")
        if stage == _PATIENT_STAGE:
            self._interrupts.begin()
            self._interrupts.check(done, total)
        if self._display is not None:
            self._display.advance(stage, done, total)
        if stage != _PATIENT_STAGE or done == total:
            self._interrupts.end()

    def over(self, ranges: Sequence[Range]) -> None:
        if self._display is not None:
            self._display.over(ranges)


@contextmanager
def show_progress(quiet: bool) -> Iterator[ShownProgress]:
    """A callback that draws on stderr: bars on a terminal, few lines elsewhere, nothing when quiet.

    While a scan runs, Ctrl-C, SIGTERM and SIGHUP stop it after the batch at hand: see interrupts, and late_answers for
    what else runs.
    """
    display = None if quiet else _open_display()

    def tell(text: str) -> None:
        if display is not None:
            display.say(text)

    interrupts, answers = Interrupts(tell, _end_process), LateAnswers(tell)
    answers.begin()
    try:
        yield ShownProgress(display, interrupts)
    finally:
        interrupts.end()
        answers.end()
        if display is not None:
            display.close()


class RemindingLines(ProgressLines):
    """Lines on stderr, also where a step takes long: an engine's build tells nothing until it is done."""

    def __init__(self) -> None:
        super().__init__(lambda text: click.echo(text, err=True))
        self._heartbeat = Heartbeat(self.remind, _REMIND_SECONDS)

    def close(self) -> None:
        self._heartbeat.stop()


def _open_display() -> Display:
    console = Console(stderr=True)
    return ProgressBars(console) if console.is_terminal else RemindingLines()


def _end_process() -> NoReturn:
    """End on the spot, past whatever draws on stderr."""
    leave_bars()
    with suppress(OSError):
        os.write(_STDERR, f"fix-fp16: {STOPPED_AT_ONCE}\n".encode())
    os._exit(EXIT_STOPPED)
