"""Progress on a terminal: a bar a stage, and under the scan's the tensors over the limit, the worst first."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from datetime import timedelta

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from overflow_fixer.cli.progress_lines import count_over, say_over, worst_first
from overflow_fixer.progress import TIMED, is_timed
from overflow_fixer.records import Range

_MOST_TENSORS = 8
_SPEED_SECONDS = 3600.0
"""Over which the time left is reckoned: a batch may take minutes."""


class ProgressBars:
    """Bars that are gone when closed. The list of tensors stands as long as the scan does."""

    def __init__(self, console: Console) -> None:
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}
        self._over: dict[str, Range] = {}
        self._bars = _BarsAndLines(console)
        self._bars.start()

    def advance(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            name = stage.removesuffix(TIMED)
            self._tasks[stage] = self._bars.add_task(name, total=total, completed=done, stage=stage)
        task = self._tasks[stage]
        if done < self._done.get(stage, 0):
            self._bars.reset(task)
        self._done[stage] = done
        self._bars.update(task, completed=done, total=total)
        if stage != "scan":
            self._bars.lines = ()

    def over(self, ranges: Sequence[Range]) -> None:
        self._over |= {found.tensor: found for found in ranges}
        worst = heapq.nsmallest(_MOST_TENSORS, self._over.values(), key=worst_first)
        head = f"{count_over(len(self._over))}, the worst first:"
        self._bars.lines = (head, *(f"  {say_over(found)}" for found in worst))

    def say(self, text: str) -> None:
        self._bars.console.print(Text(text))

    def close(self) -> None:
        self._bars.stop()


class _Steps(MofNCompleteColumn):
    """How far a stage is; seconds of a limit as that."""

    def render(self, task: Task) -> Text:
        steps = super().render(task)
        return steps + Text(" s") if is_timed(task.fields["stage"]) else steps


class _TimeLeft(TimeRemainingColumn):
    """What is left of a stage, or what its first step has taken; of one with a limit of seconds nobody knows."""

    def render(self, task: Task) -> Text:
        if is_timed(task.fields["stage"]):
            return Text("")
        if task.completed == 0 and task.elapsed is not None:
            return Text(f"{timedelta(seconds=int(task.elapsed))} so far", style="progress.elapsed")
        return super().render(task)


class _BarsAndLines(Progress):
    """rich's bars with lines of text under them."""

    def __init__(self, console: Console) -> None:
        self.lines: Sequence[str] = ()
        columns = (
            TextColumn("{task.description:>14}"),
            BarColumn(),
            _Steps(),
            _TimeLeft(),
        )
        super().__init__(*columns, console=console, transient=True, speed_estimate_period=_SPEED_SECONDS)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        for line in self.lines:
            yield Text(line, no_wrap=True, overflow="ellipsis")
