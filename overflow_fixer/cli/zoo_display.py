"""What a zoo says while it runs: a live table on a terminal, a line a model elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from overflow_fixer.plurals import say_plural
from overflow_fixer.progress import TIMED, is_timed, say_steps
from overflow_fixer.reports.layout import Name
from overflow_fixer.reports.wording import make_visible, say_count, say_decibels, shorten_sentence
from overflow_fixer.zoo.outcomes import OUTCOME_FILE, ZooOutcome
from overflow_fixer.zoo.pool import Work

_STILL_SECONDS = 60.0
"""How often, without a terminal, it is said what runs."""
_MESSAGE_WIDTH = 1000
"""A paragraph with what was expected and what to do; that of a crash has the end of a log in it, as long as that may be."""


class ZooDisplay:
    """Counts outcomes, and tells them and what runs. `console` is None where nothing is to be said."""

    def __init__(self, total: int, console: Console | None) -> None:
        self._total = total
        self._console = console
        self._done = 0
        self._taken = 0
        self._start = self._last = time.monotonic()
        self._live = (
            Live(console=console, refresh_per_second=4)
            if console is not None and console.is_terminal
            else None
        )

    def __enter__(self) -> ZooDisplay:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.update(Text(""))
            self._live.__exit__(None, None, None)

    def show_outcome(self, outcome: ZooOutcome) -> None:
        self._done += 1
        self._taken += outcome.is_earlier
        self._say(f"[{self._done}/{self._total}] {describe(outcome)}")

    def show_running(self, running: Sequence[Work]) -> None:
        if self._live is not None:
            self._live.update(Group(self._draw(running), Text(self._say_left(), "dim")))
        elif time.monotonic() - self._last > _STILL_SECONDS:
            self._last = time.monotonic()
            told = "; ".join(f"{make_visible(one.entry.name)}: {say_stage(one)}" for one in running)
            self._say(f"running {told}. {self._say_left()}")

    def _draw(self, running: Sequence[Work]) -> Table:
        table = Table(box=None)
        for heading in ("Model", "Stage", "Seconds", "Memory (MB)"):
            table.add_column(heading)
        for one in running:
            table.add_row(
                Name(one.entry.name), say_stage(one), f"{one.seconds:.0f}", f"{one.peak_bytes / 1e6:.0f}"
            )
        return table

    def _say_left(self) -> str:
        """At the rate so far, models that were finished before left out."""
        ran = self._done - self._taken
        left = self._total - self._done
        if not ran:
            return f"{left} to go"
        minutes = (time.monotonic() - self._start) / ran * left / 60
        return f"{left} to go, about {minutes:.1f} minutes"

    def _say(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(Text(text))
        elif self._console is not None:
            click.echo(text, err=True)


def describe(outcome: ZooOutcome) -> str:
    """An outcome in one line."""
    kind, name = outcome.kind.replace("_", " "), make_visible(outcome.name)
    before = ", finished before" if outcome.is_earlier else f", {outcome.seconds:.1f} s"
    if outcome.result is None:
        return f"{name}: {kind}{before}: {_tell_message(outcome)}"
    pins, snr = len(outcome.result.pins), say_decibels(outcome.result.fixed_snr_db)
    mismatched = outcome.result.fixed_mismatched
    wrong = f", {say_count(mismatched)} mismatched" if mismatched else ""
    doubts = len(outcome.result.warnings)
    warned = f", {say_plural(doubts, 'warning')}" if doubts else ""
    return f"{name}: {kind}, {say_plural(pins, 'pin')}, {snr} dB{wrong}{warned}{before}"


def _tell_message(outcome: ZooOutcome) -> str:
    """The message; of one that is cut, where it is whole."""
    said = shorten_sentence(outcome.message, _MESSAGE_WIDTH)
    return said if said == outcome.message else f"{said} (whole: {outcome.folder / OUTCOME_FILE})"


def say_stage(running: Work) -> str:
    progress = running.read_progress()
    if progress is None:
        return "start"
    stage, done, total = progress
    return (
        f"{stage.removesuffix(TIMED)} {say_steps(done, total, stage)}"
        if is_timed(stage)
        else f"{stage} {done}/{total}"
    )


@contextmanager
def open_display(total: int, quiet: bool) -> Iterator[ZooDisplay]:
    """A display on stderr; one that says nothing where `quiet`."""
    with ZooDisplay(total, None if quiet else Console(stderr=True)) as display:
        yield display
