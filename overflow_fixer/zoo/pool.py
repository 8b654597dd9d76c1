"""The models of a zoo run side by side, on whatever host there is for them: this machine, or a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from overflow_fixer.errors import OutputError
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.outcomes import ZooOutcome, describe_basis, make_outcome, save_outcome

_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 15.0
"""What models that were asked to stop have to end their batch."""
_GIB = 2**30
_LEAST_GIB = 1.0
_TIMES_MODEL = 6.0
"""What a model that says nothing of its memory is taken to need: this often the size of its file, and the least."""


class Work(Protocol):
    """One entry that was started. `seconds` it has run for, and the most memory that it was seen to hold."""

    @property
    def entry(self) -> ZooEntry: ...

    @property
    def attempt(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    @property
    def peak_bytes(self) -> int: ...

    def read_progress(self) -> tuple[str, int, int] | None:
        """The stage, the steps done and the steps in all; None where it has not begun."""

    def take_outcome(self) -> ZooOutcome | None:
        """What became of it, once it has ended; None where that was not the model's doing, and it is to run again."""

    def stop(self) -> None:
        """Ask it to stop: a scan ends its batch and can go on later."""

    def kill(self) -> None: ...


class Host(Protocol):
    """What runs models: `running` is always the work on it that has not ended, as far as this pool knows."""

    def has_room(self, running: Sequence[Work]) -> bool:
        """Whether anything at all could be started beside what runs."""

    def start(self, entry: ZooEntry, attempt: int, running: Sequence[Work], *, force: bool) -> Work | None:
        """Begin with an entry; None where what runs leaves no room for it. Raises OutputError where its folder cannot be written."""

    def find_ended(self, running: Sequence[Work]) -> list[Work]:
        """Look after what runs, and give what has ended."""

    def find_versions(self) -> Sequence[dict[str, str]]:
        """The versions that models are run with on it: see outcomes.find_versions."""


@dataclass
class Pool:
    """Runs entries, the most urgent first. `running` can be looked at between two outcomes."""

    host: Host
    force: bool = False
    running: list[Work] = field(default_factory=list)

    def run(self, entries: Sequence[ZooEntry]) -> Iterator[ZooOutcome | None]:
        """Each outcome as it comes, saved before, if its folder can be written; None now and then between, so that progress can be told.

        A crash is tried again as often as its entry says. However it is left, nothing goes on: what runs is asked to
        stop and, if it does not, killed.
        """
        waiting = [(entry, 1) for entry in order(entries)]
        try:
            while waiting or self.running:
                yield from self._fill(waiting)
                for one in self._take_ended():
                    yield from _settle(one, waiting)
                yield None
                time.sleep(_POLL_SECONDS)
        finally:
            self._end_all()

    def _fill(self, waiting: list[tuple[ZooEntry, int]]) -> Iterator[ZooOutcome]:
        """Start whatever fits beside what runs, in the order of urgency; gives those that cannot be."""
        for item in list(waiting):
            if not self.host.has_room(self.running):
                return
            try:
                work = self.host.start(*item, self.running, force=self.force)
            except OutputError as error:
                waiting.remove(item)
                yield make_outcome(item[0], describe_basis(item[0]), "failed", str(error), error.exit_code)
                continue
            if work is not None:
                waiting.remove(item)
                self.running.append(work)

    def _take_ended(self) -> list[Work]:
        ended = self.host.find_ended(self.running)
        for one in ended:
            self.running.remove(one)
        return ended

    def _end_all(self) -> None:
        for one in self.running:
            one.stop()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self.running and time.monotonic() < deadline:
            self._take_ended()
            time.sleep(_POLL_SECONDS)
        for one in self.running:
            one.kill()
        self.running.clear()


def _settle(ended: Work, waiting: list[tuple[ZooEntry, int]]) -> Iterator[ZooOutcome]:
    """The outcome of what ended, saved; none of what is to run again, which is put in front of what waits."""
    outcome = ended.take_outcome()
    if outcome is None:
        waiting.insert(0, (ended.entry, ended.attempt))
    elif outcome.kind == "crashed" and ended.attempt <= ended.entry.retries:
        waiting.insert(0, (ended.entry, ended.attempt + 1))
    else:
        yield _save(outcome)


def _save(outcome: ZooOutcome) -> ZooOutcome:
    """The outcome; one that cannot be written has failed."""
    try:
        save_outcome(outcome)
    except OutputError as error:
        told = {"kind": "failed", "message": str(error), "exit_code": error.exit_code}
        return outcome.model_copy(update=told)
    return outcome


def order(entries: Sequence[ZooEntry]) -> list[ZooEntry]:
    """By priority, then the longest first, by what is expected or else by the size of the file; names decide the rest."""
    return sorted(entries, key=lambda entry: (-entry.priority, -_expect_minutes(entry), entry.name))


def estimate_memory_gib(entry: ZooEntry) -> float:
    """What is set aside for it: its limit, or a guess by its size."""
    return entry.memory_gib or _LEAST_GIB + _TIMES_MODEL * _size_gib(entry)


def uses_gpu(entry: ZooEntry, *, has_tensorrt: bool = True) -> bool:
    """Whether it may build an engine, which `backend = "auto"` does where TensorRT is there, or scans on a GPU."""
    backend = entry.config.build.backend
    is_built = backend == "tensorrt" or (backend == "auto" and has_tensorrt)
    return is_built or entry.config.scan.provider != "cpu"


def _expect_minutes(entry: ZooEntry) -> float:
    """A minute a GiB where nobody said."""
    return entry.expected_minutes if entry.expected_minutes is not None else _size_gib(entry)


def _size_gib(entry: ZooEntry) -> float:
    try:
        return entry.config.model.stat().st_size / _GIB
    except OSError:
        return 0.0
