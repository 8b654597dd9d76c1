"""A host of a zoo that fixes each model in this very process, as soon as it is started: no process begins, and none can be ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.outcomes import ZooOutcome, find_versions
from overflow_fixer.zoo.pool import Work
from overflow_fixer.zoo.worker import Job, run_job


@dataclass
class DoneWork:
    """Work that has ended."""

    entry: ZooEntry
    attempt: int
    outcome: ZooOutcome
    seconds: float = 0.0
    peak_bytes: int = 0

    def read_progress(self) -> tuple[str, int, int] | None:
        return None

    def take_outcome(self) -> ZooOutcome:
        return self.outcome

    def stop(self) -> None: ...

    def kill(self) -> None: ...


class InProcessHost:
    """Does what a worker does with its job, which comes as JSON."""

    def has_room(self, running: Sequence[Work]) -> bool:
        return not running

    def start(self, entry: ZooEntry, attempt: int, running: Sequence[Work], *, force: bool) -> DoneWork:
        job = Job.of(entry, threads=1, attempt=attempt, force=force)
        return DoneWork(entry, attempt, run_job(Job.model_validate_json(job.model_dump_json())))

    def find_ended(self, running: Sequence[Work]) -> list[Work]:
        return list(running)

    def find_versions(self) -> Sequence[dict[str, str]]:
        return (find_versions(),)
