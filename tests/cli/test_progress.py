"""Progress: few plain lines where no terminal is, bars and the worst tensors on one, nothing when quiet."""

from __future__ import annotations

import io
import math
import threading
import time
from dataclasses import replace

import pytest
from rich.console import Console

from overflow_fixer.cli import console, progress_lines
from overflow_fixer.cli.console import show_progress
from overflow_fixer.cli.progress_bars import ProgressBars
from overflow_fixer.cli.progress_lines import ProgressLines, say_over
from overflow_fixer.records import Range


def found(tensor: str, max_abs: float, nan_count: int = 0, inf_count: int = 0) -> Range:
    return Range(tensor, max_abs, 0.0, max_abs, 1.0, 10, nan_count, inf_count, 0, 0)


class Told:
    """Lines that were said, by a clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self.progress = ProgressLines(self.lines.append, lambda: self.now)

    def remind_at(self, seconds: float) -> list[str]:
        """What is said of itself at this time."""
        self.now = seconds
        self.lines.clear()
        self.progress.remind()
        return list(self.lines)

    def at(self, seconds: float, done: int, total: int = 100, stage: str = "scan") -> list[str]:
        """What is said when `done` is told at this time."""
        self.now = seconds
        self.lines.clear()
        self.progress.advance(stage, done, total)
        return list(self.lines)


def test_lines_come_at_a_tenth_or_half_a_minute_and_not_in_the_first_seconds() -> None:
    told = Told()
    assert told.at(0, 0) == []
    assert told.at(1.9, 50) == []
    assert told.at(2, 50) == ["scan: 50 of 100, 0:00:02 left"]
    assert told.at(20, 59) == []
    assert told.at(21, 60) == ["scan: 60 of 100, 0:00:14 left"]
    assert told.at(50.9, 61) == []
    assert told.at(51, 62) == ["scan: 62 of 100, 0:00:31 left"]
    assert told.at(60, 100) == ["scan: 100 of 100"]
    assert told.at(60, 0, 10, "verify") == []
    assert told.at(63, 1, 10, "verify") == ["verify: 1 of 10, 0:00:27 left"]


def test_the_time_left_is_reckoned_from_where_a_scan_went_on() -> None:
    told = Told()
    assert told.at(100, 80) == []
    assert told.at(130, 80) == ["scan: 80 of 100"]
    assert told.at(140, 90) == ["scan: 90 of 100, 0:00:40 left"]


def test_a_stage_that_begins_again_is_a_new_one() -> None:
    told = Told()
    assert told.at(0, 0, 10, "repair") == []
    assert told.at(100, 10, 10, "repair") == ["repair: 10 of 10"]
    assert told.at(1000, 0, 10, "repair") == []
    assert told.at(1002, 1, 10, "repair") == ["repair: 1 of 10, 0:00:18 left"]


def test_a_step_of_which_nothing_is_told_is_reminded_of_each_half_minute() -> None:
    """An engine's build: one step, of minutes."""
    told = Told()
    assert told.remind_at(1000) == []
    assert told.at(1000, 0, 1, "naive: build") == []
    assert told.remind_at(1029.9) == []
    assert told.remind_at(1030) == ["naive: build: 0 of 1; the next step has taken 0:00:30 so far"]
    assert told.remind_at(1059) == []
    assert told.remind_at(1061) == ["naive: build: 0 of 1; the next step has taken 0:01:01 so far"]
    assert told.at(1070, 1, 1, "naive: build") == ["naive: build: 1 of 1"]
    assert told.remind_at(1100) == ["naive: build: 1 of 1; what follows has taken 0:00:30 so far"]
    assert told.at(1101, 0, 10, "verify") == []


def test_a_reminder_takes_no_step_from_the_next_line() -> None:
    told = Told()
    assert told.at(0, 0) == []
    assert told.at(1, 8) == []
    assert told.remind_at(31) == ["scan: 8 of 100; the next step has taken 0:00:30 so far"]
    assert told.at(34, 10) == ["scan: 10 of 100, 0:05:06 left"]


def test_a_reminder_names_the_tensors_over_the_limit() -> None:
    told = Told()
    told.at(0, 1)
    told.progress.over([found("a", 3e5)])
    assert told.remind_at(30) == [
        "over the threshold or not finite: max |x| 300000       a",
        "scan: 1 of 100; the next step has taken 0:00:30 so far",
    ]


def test_reminders_come_from_a_thread_that_ends_with_the_display(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "_REMIND_SECONDS", 0.01)
    monkeypatch.setattr(progress_lines, "_LATEST_SECONDS", 0.05)
    before = threading.active_count()
    with show_progress(quiet=False) as progress:
        progress("naive: build", 0, 1)
        time.sleep(0.5)
    assert threading.active_count() == before
    said = capsys.readouterr().err
    assert said.startswith("naive: build: 0 of 1; the next step has taken 0:00:00 so far\n")
    assert said.count("\n") > 1


def test_a_limit_of_seconds_is_no_total() -> None:
    told = Told()
    assert told.at(0, 0, 717, "repair: search, seconds") == []
    assert told.at(31, 31, 717, "repair: search, seconds") == ["repair: search: 31 of at most 717 seconds"]


def test_each_tensor_over_the_limit_is_named_once() -> None:
    told = Told()
    told.at(0, 0)
    told.progress.over([found("b", 2e4), found("a", 3e5)])
    told.progress.over([found("b", 4e5)])
    assert told.at(1, 1) == []
    told.progress.over([found("c", math.nan, nan_count=7)])
    assert told.at(3, 2) == [
        "over the threshold or not finite: max |x| nan          c, 7 NaN",
        "over the threshold or not finite: max |x| 300000       a",
        "over the threshold or not finite: max |x| 20000        b",
        "scan: 2 of 100, 0:02:27 left; 3 tensors over the threshold or not finite",
    ]
    told.progress.over([found("c", math.inf, 7, 1)])
    assert told.at(6, 3) == []


def test_of_many_tensors_twenty_are_named() -> None:
    told = Told()
    told.at(0, 0)
    told.progress.over([found(f"t{i}", 2e4 + i) for i in range(15)])
    assert len(told.at(3, 1)) == 16
    told.progress.over([found(f"u{i}", 2e4 + i) for i in range(500)])
    said = told.at(6, 2)
    assert [line[-3:] for line in said[:-1]] == ["499", "498", "497", "496", "495"]
    assert said[-1].endswith("; 515 tensors over the threshold or not finite")
    told.progress.over([found("v", 2e9)])
    assert told.at(9, 3) == ["scan: 3 of 100, 0:04:51 left; 516 tensors over the threshold or not finite"]


def test_a_name_cannot_steer_the_terminal() -> None:
    assert (
        say_over(found("a\x1b[2J\nb", 7e4, inf_count=2)) == "max |x| 70000        a\\x1b[2J\\nb, 2 infinite"
    )


@pytest.fixture
def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=60, height=30, color_system=None)


def drawn(bars: ProgressBars) -> list[str]:
    paper = Console(file=io.StringIO(), width=60)
    with paper.capture() as captured:
        paper.print(bars._bars.get_renderable())
    return captured.get().splitlines()


def test_bars_show_the_worst_tensors_in_few_lines(terminal: Console) -> None:
    bars = ProgressBars(terminal)
    bars.advance("scan", 3, 10)
    bars.over([found(f"tensor{i}", 2e4 + i) for i in range(40)])
    bars.over([found("tensor7", 9e4), found("broken" * 20, math.nan, nan_count=1)])
    lines = drawn(bars)
    assert "3/10" in lines[0]
    assert lines[1] == "41 tensors over the threshold or not finite, the worst firs…"
    assert len(lines) == 10
    assert "brokenbroken" in lines[2]
    assert lines[3].split() == ["max", "|x|", "90000", "tensor7"]
    assert lines[4].split() == ["max", "|x|", "20039", "tensor39"]
    bars.advance("verify", 1, 10)
    assert [line.split()[0] for line in drawn(bars)] == ["scan", "verify"]
    bars.close()


def test_a_scan_that_went_on_is_not_reckoned_as_fast_as_if_it_had_begun(terminal: Console) -> None:
    bars = ProgressBars(terminal)
    bars.advance("scan", 900, 1000)
    (task,) = bars._bars.tasks
    assert (task.completed, task.speed) == (900, None)
    bars.close()


def test_a_bar_tells_what_its_first_step_has_taken(terminal: Console) -> None:
    bars = ProgressBars(terminal)
    bars.advance("naive: build", 0, 1)
    assert "0/1 0:00:00 so far" in drawn(bars)[0]
    bars.advance("naive: build", 1, 1)
    assert "1/1 0:00:00" in drawn(bars)[0]
    assert "so far" not in drawn(bars)[0]
    bars.close()


def test_quiet_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(quiet=True) as progress:
        progress("scan", 0, 2)
        progress.over([replace(found("a", 7e4))])
        progress("scan", 2, 2)
    assert capsys.readouterr() == ("", "")


def test_bars_tell_a_limit_of_seconds_as_that_and_begin_again(terminal: Console) -> None:
    bars = ProgressBars(terminal)
    bars.advance("repair: search, seconds", 0, 717)
    bars.advance("repair: search, seconds", 3, 717)
    bars.advance("verify", 9, 10)
    bars.advance("verify", 10, 10)
    bars.advance("verify", 1, 10)
    first, second = (" ".join(line.split()) for line in drawn(bars))
    assert first.startswith("repair: search")
    assert first.endswith("3/717 s")
    assert second.endswith("1/10 -:--:--")
    bars.close()
