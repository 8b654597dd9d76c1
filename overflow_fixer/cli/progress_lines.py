"""Progress where no terminal is: plain lines, few of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from threading import Lock

from overflow_fixer.plurals import say_plural
from overflow_fixer.progress import TIMED, is_timed, say_steps
from overflow_fixer.records import Range
from overflow_fixer.reports.wording import make_visible

_SOONEST_SECONDS, _LATEST_SECONDS = 2.0, 30.0
_SHARE = 0.1
_MOST_TENSORS = 20


def say_over(found: Range) -> str:
    """A tensor over the limit, its max |x| first and NaN and infinities counted."""
    counts = ((found.nan_count, "NaN"), (found.inf_count, "infinite"))
    said = "".join(f", {count} {what}" for count, what in counts if count)
    return f"max |x| {found.max_abs:<12.6g} {make_visible(found.tensor)}{said}"


def count_over(count: int) -> str:
    return f"{say_plural(count, 'tensor')} over the threshold or not finite"


def worst_first(found: Range) -> tuple[bool, float]:
    """What to sort by: tensors that are not finite, then the largest."""
    return not (found.nan_count or found.inf_count), found.headroom


class ProgressLines:
    """A line each tenth of a stage or half minute, and each tensor over the limit once.

    Nothing is said in a stage's first seconds, so that a short one says nothing; of many tensors the
    first twenty are named. A stage that begins again is a new one. `remind` is for another thread.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.say = say
        self._clock = clock
        self._lock = Lock()
        self._stage = ""
        self._done = self._total = 0
        self._began = self._said = (0.0, 0)
        self._moved = 0.0
        self._new: list[Range] = []
        self._over: set[str] = set()

    def advance(self, stage: str, done: int, total: int) -> None:
        with self._lock:
            self._advance(stage, done, total, self._clock())

    def remind(self) -> None:
        """Say how long the step at hand has taken, where nothing was said for half a minute."""
        with self._lock:
            now = self._clock()
            if not self._stage or now - self._said[0] < _LATEST_SECONDS:
                return
            self._say_new()
            steps = say_steps(self._done, self._total, self._stage)
            step = "the next step" if self._done < self._total else "what follows"
            taken = timedelta(seconds=round(now - self._moved))
            self.say(f"{self._stage.removesuffix(TIMED)}: {steps}; {step} has taken {taken} so far")
            self._said = (now, self._said[1])

    def _advance(self, stage: str, done: int, total: int, now: float) -> None:
        if stage != self._stage or done < self._done:
            self._stage, self._began = stage, (now, done)
            self._said = self._began
        self._done, self._total, self._moved = done, total, now
        waited, gained = now - self._said[0], done - self._said[1]
        if waited >= _LATEST_SECONDS or (
            waited >= _SOONEST_SECONDS and (self._new or gained >= _SHARE * total)
        ):
            self._say_new()
            steps = f"{say_steps(done, total, stage)}{self._time_left(now, done, total)}"
            self.say(f"{stage.removesuffix(TIMED)}: {steps}{self._count_over()}")
            self._said = (now, done)

    def over(self, ranges: Sequence[Range]) -> None:
        with self._lock:
            self._new += [found for found in ranges if found.tensor not in self._over]
            self._over |= {found.tensor for found in ranges}

    def _say_new(self) -> None:
        room = max(_MOST_TENSORS - (len(self._over) - len(self._new)), 0)
        for found in sorted(self._new, key=worst_first)[:room]:
            self.say(f"over the threshold or not finite: {say_over(found)}")
        self._new = []

    def _time_left(self, now: float, done: int, total: int) -> str:
        start, first = self._began
        if is_timed(self._stage) or not first < done < total:
            return ""
        seconds = (now - start) / (done - first) * (total - done)
        return f", {timedelta(seconds=round(seconds))} left"

    def _count_over(self) -> str:
        shown = self._stage == "scan" and self._over
        return f"; {count_over(len(self._over))}" if shown else ""
