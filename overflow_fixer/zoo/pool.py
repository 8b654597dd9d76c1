"""The models of a zoo run side by side, as many as cores, memory and GPUs allow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from overflow_fixer.zoo.allotment import count_cores, find_memory_bytes
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.outcomes import ZooOutcome, save_outcome
from overflow_fixer.zoo.running import Running, start

_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 15.0
"""What processes that were asked to stop have to end their batch."""
_GIB = 2**30
_SPARE = 0.9
"""The share of the memory that models may hold together."""
_LEAST_GIB = 1.0
_TIMES_MODEL = 6.0
"""What a model that says nothing of its memory is taken to need: this often the size of its file, and the least."""


@dataclass(frozen=True)
class Machine:
    """What there is to share: so many models at once, threads for each, memory in GiB, and GPUs by number."""

    workers: int
    threads: int
    memory_gib: float
    gpus: tuple[int, ...] = ()


def describe_machine(workers: int = 0, gpus: Sequence[int] = ()) -> Machine:
    """What this process may use; `workers` 0: one a core. The cores are shared out evenly."""
    cores = count_cores()
    count = workers or cores
    return Machine(count, max(cores // count, 1), _SPARE * find_memory_bytes() / _GIB, tuple(gpus))


@dataclass
class Pool:
    """Runs entries, the most urgent first. `running` can be looked at between two outcomes."""

    machine: Machine
    force: bool = False
    running: list[Running] = field(default_factory=list)

    def run(self, entries: Sequence[ZooEntry]) -> Iterator[ZooOutcome | None]:
        """Each outcome as it comes, saved before; None now and then between, so that progress can be told.

        A crash is tried again as often as its entry says. However it is left, no process goes on: those that run are
        asked to stop and, if they do not, killed.
        """
        waiting = [(entry, 1) for entry in order(entries)]
        try:
            while waiting or self.running:
                self._fill(waiting)
                for one in [one for one in self.running if one.has_ended()]:
                    self.running.remove(one)
                    outcome = one.take_outcome()
                    if outcome.kind == "crashed" and one.attempt <= one.entry.retries:
                        waiting.insert(0, (one.entry, one.attempt + 1))
                        continue
                    save_outcome(outcome)
                    yield outcome
                yield None
                time.sleep(_POLL_SECONDS)
        finally:
            self._end_all()

    def _fill(self, waiting: list[tuple[ZooEntry, int]]) -> None:
        """Start whatever fits beside what runs, in the order of urgency."""
        for item in list(waiting):
            entry, attempt = item
            gpu = self._find_gpu(entry)
            if len(self.running) >= self.machine.workers:
                return
            if self._fits(entry) and gpu is not _NO_GPU:
                waiting.remove(item)
                number = gpu if isinstance(gpu, int) else None
                self.running.append(
                    start(entry, attempt=attempt, threads=self.machine.threads, gpu=number, force=self.force)
                )

    def _fits(self, entry: ZooEntry) -> bool:
        """Whether there is memory left for it; alone, it runs in any case."""
        held = sum(estimate_memory_gib(one.entry) for one in self.running)
        return not self.running or held + estimate_memory_gib(entry) <= self.machine.memory_gib

    def _find_gpu(self, entry: ZooEntry) -> int | object | None:
        """A GPU that no other model uses; None where the entry needs none."""
        if not self.machine.gpus or entry.config.build.backend == "onnx":
            return None
        taken = {one.gpu for one in self.running}
        return next((gpu for gpu in self.machine.gpus if gpu not in taken), _NO_GPU)

    def _end_all(self) -> None:
        for one in self.running:
            one.stop()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self.running and time.monotonic() < deadline:
            self.running = [one for one in self.running if one.process.poll() is None]
            time.sleep(_POLL_SECONDS)
        for one in self.running:
            one.kill()
        self.running = []


_NO_GPU = object()


def order(entries: Sequence[ZooEntry]) -> list[ZooEntry]:
    """By priority, then the longest first, by what is expected or else by the size of the file; names decide the rest."""
    return sorted(entries, key=lambda entry: (-entry.priority, -_expect_minutes(entry), entry.name))


def estimate_memory_gib(entry: ZooEntry) -> float:
    """What is set aside for it: its limit, or a guess by its size."""
    return entry.memory_gib or _LEAST_GIB + _TIMES_MODEL * _size_gib(entry)


def _expect_minutes(entry: ZooEntry) -> float:
    """A minute a GiB where nobody said."""
    return entry.expected_minutes if entry.expected_minutes is not None else _size_gib(entry)


def _size_gib(entry: ZooEntry) -> float:
    try:
        return entry.config.model.stat().st_size / _GIB
    except OSError:
        return 0.0
