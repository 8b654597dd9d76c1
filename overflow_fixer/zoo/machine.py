"""This machine as the host of a zoo: models as many at once as cores, memory and GPUs allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overflow_fixer.backends.tensorrt.capabilities import is_installed
from overflow_fixer.backends.tensorrt.cuda import list_devices
from overflow_fixer.host.allotment import count_cores, find_memory_bytes
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.outcomes import find_versions
from overflow_fixer.zoo.pool import Work, estimate_memory_gib, uses_gpu
from overflow_fixer.zoo.running import Running, start

_GIB = 2**30
_SPARE = 0.9
"""The share of the memory that models may hold together."""


@dataclass(frozen=True)
class Machine:
    """What there is to share: so many models at once, threads for each, memory in GiB, and GPUs as
    CUDA_VISIBLE_DEVICES names them, one a model that uses one. `has_tensorrt`: whether engines can be built.
    """

    workers: int
    threads: int
    memory_gib: float
    gpus: tuple[str, ...] = ()
    has_tensorrt: bool = True

    def has_room(self, running: Sequence[Work]) -> bool:
        return len(running) < self.workers

    def start(self, entry: ZooEntry, attempt: int, running: Sequence[Work], *, force: bool) -> Running | None:
        """Start the entry's process. Raises OutputError where its folder cannot be written."""
        needs_gpu = bool(self.gpus) and uses_gpu(entry, has_tensorrt=self.has_tensorrt)
        gpu = self._find_gpu(running) if needs_gpu else None
        if not self._fits(entry, running) or (needs_gpu and gpu is None):
            return None
        return start(entry, attempt=attempt, threads=self.threads, gpu=gpu, force=force)

    def find_ended(self, running: Sequence[Work]) -> list[Work]:
        return [one for one in running if isinstance(one, Running) and one.has_ended()]

    def find_versions(self) -> Sequence[dict[str, str]]:
        return (find_versions(),)

    def _fits(self, entry: ZooEntry, running: Sequence[Work]) -> bool:
        """Whether there is memory left for it; alone, it runs in any case."""
        held = sum(estimate_memory_gib(one.entry) for one in running)
        return not running or held + estimate_memory_gib(entry) <= self.memory_gib

    def _find_gpu(self, running: Sequence[Work]) -> str | None:
        """A GPU that no other model uses."""
        taken = {one.gpu for one in running if isinstance(one, Running)}
        return next((gpu for gpu in self.gpus if gpu not in taken), None)


def describe_machine(workers: int = 0, gpus: Sequence[str] | None = None) -> Machine:
    """What this process may use; `workers` 0: one a core, `gpus` None: those that CUDA finds. The cores are shared out evenly."""
    cores = count_cores()
    count = workers or cores
    return Machine(
        workers=count,
        threads=max(cores // count, 1),
        memory_gib=_SPARE * find_memory_bytes() / _GIB,
        gpus=tuple(list_devices() if gpus is None else gpus),
        has_tensorrt=is_installed(),
    )
