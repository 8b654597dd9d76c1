"""One model of a zoo run on a node of a Ray cluster: in place where the node sees its files, else in a folder of its own."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.outcomes import InputFile, ZooOutcome
from overflow_fixer.zoo.parcels import Parcel, move_entry, pack_results, place_below, take_root_out, unpack
from overflow_fixer.zoo.ray_module import import_ray
from overflow_fixer.zoo.running import Running, start

_POLL_SECONDS = 0.05
_REPORT_SECONDS = 0.5
_STOP_SECONDS = 10.0
"""What a process that was asked to stop has to end its batch."""
_LOSS_SECONDS = 2.0
"""A Ray worker whose node is lost kills what it has started, and goes only then: it must not tell of that as of an end."""


@dataclass(frozen=True)
class Errand:
    """What a node is told. `folder` is the one that relative paths start from, `token` a file that only those see who
    share the results' folder, `inputs` are as the sender sees them. `gpu` is "" where none may be used.
    """

    key: str
    entry: ZooEntry
    attempt: int
    threads: int
    gpu: str | None
    force: bool
    folder: Path
    token: Path
    inputs: tuple[InputFile, ...]


@dataclass(frozen=True)
class Delivery:
    """What comes back. `outcome` is None where it was stopped, `results` where they were written in place;
    `lacks_files` where the node sees no files, and none were sent.
    """

    outcome: ZooOutcome | None = None
    results: Parcel | None = None
    lacks_files: bool = False


@dataclass(frozen=True)
class Report:
    """How far a model is."""

    progress: tuple[str, int, int] | None
    seconds: float
    peak_bytes: int


@dataclass
class Board:
    """Where nodes report how far they are, and read whether to stop: an actor beside whoever runs the zoo."""

    reports: dict[str, Report] = field(default_factory=dict)
    stopped: set[str] = field(default_factory=set)

    def report(self, key: str, report: Report) -> bool:
        """Whether to stop."""
        self.reports[key] = report
        return key in self.stopped

    def read(self, keys: Sequence[str]) -> dict[str, Report]:
        """The last reports of `keys`; all others are forgotten."""
        self.reports = {key: self.reports[key] for key in keys if key in self.reports}
        self.stopped &= set(keys)
        return self.reports

    def stop(self, key: str) -> None:
        self.stopped.add(key)


def run_errand(errand: Errand, board: Any, parcels: Sequence[Any]) -> Delivery:
    """Run one model; `board` is the actor, `parcels` are references to what unpacks to its files.

    Raises OutputError where a folder cannot be written.
    """
    if _sees_files(errand):
        with _work_in(errand.folder):
            return Delivery(_run(errand, errand.entry, board))
    if not parcels:
        return Delivery(lacks_files=True)
    with TemporaryDirectory(prefix="fix-fp16-") as name:
        root = Path(name).resolve()
        entry = move_entry(errand.entry, root)
        for parcel in parcels:
            unpack(import_ray().get(parcel), root)
        with _work_in(place_below(root, errand.folder)):
            outcome = _run(errand, entry, board)
            told = None if outcome is None else take_root_out(outcome, root)
            return Delivery(told, pack_results(entry, root))


def _sees_files(errand: Errand) -> bool:
    if not errand.token.exists():
        return False
    with suppress(OSError), _work_in(errand.folder):
        return all(InputFile.of(known.path) == known for known in errand.inputs)
    return False


@contextmanager
def _work_in(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _run(errand: Errand, entry: ZooEntry, board: Any) -> ZooOutcome | None:
    """The outcome; None where it was stopped. Whatever happens, the process does not go on."""
    running = start(entry, attempt=errand.attempt, threads=errand.threads, gpu=errand.gpu, force=errand.force)
    try:
        is_stopped = _watch(running, errand.key, board)
    finally:
        if running.process.poll() is None:
            running.kill()
    if running.process.returncode == -signal.SIGKILL and running.cut is None:
        time.sleep(_LOSS_SECONDS)
    return None if is_stopped and not running.has_written else running.take_outcome()


def _watch(running: Running, key: str, board: Any) -> bool:
    """Wait for the end, reporting now and then; whether it was asked to stop, which it has some seconds for."""
    reporter, deadline = _Reporter(key, board), math.inf
    while not running.has_ended() and time.monotonic() < deadline:
        if reporter.report(running) and deadline == math.inf:
            running.stop()
            deadline = time.monotonic() + _STOP_SECONDS
        time.sleep(_POLL_SECONDS)
    return deadline < math.inf


@dataclass
class _Reporter:
    """Reports to the board without waiting for it: a limit must not."""

    key: str
    board: Any
    _answer: Any = None
    _last: float = -math.inf

    def report(self, running: Running) -> bool:
        """Whether to stop, as far as the board has answered. Raises Ray's errors where the board is gone."""
        ray = import_ray()
        if self._answer is not None and ray.wait([self._answer], timeout=0)[0]:
            answer, self._answer = self._answer, None
            return bool(ray.get(answer))
        if self._answer is None and time.monotonic() - self._last > _REPORT_SECONDS:
            self._last = time.monotonic()
            report = Report(running.read_progress(), running.seconds, running.peak_bytes)
            self._answer = self.board.report.remote(self.key, report)
        return False
