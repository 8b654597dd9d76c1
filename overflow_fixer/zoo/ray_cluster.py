"""A Ray cluster as the host of a zoo: every model is a task that asks for CPUs, memory and, to build engines, a GPU."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from overflow_fixer.errors import ConfigError
from overflow_fixer.files import make_folder, refuse_os_errors
from overflow_fixer.model_file.external_data import list_data_files
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.errands import Errand
from overflow_fixer.zoo.outcomes import InputFile, describe_basis, list_inputs
from overflow_fixer.zoo.parcels import TOKEN, list_results, pack
from overflow_fixer.zoo.pool import Work, estimate_memory_gib, uses_gpu
from overflow_fixer.zoo.ray_nodes import Ask, list_nodes
from overflow_fixer.zoo.ray_work import RayWork, Sent

_GIB = 2**30
_LOOK_SECONDS = 0.5
_NODE_PATIENCE_SECONDS = 600.0
"""How long it is waited for a node on which what is next can run, where there is none."""


@dataclass(eq=False)
class RayCluster:
    """Runs models as tasks of a cluster; see ray_connection.open_ray. `workers`: at most so many at once, 0 for as many as fit.

    `threads` are a model's, and the CPUs that it asks for. `sends_files`: whether a node was met that does not see them.
    """

    ray: Any
    workers: int
    threads: int
    nodes: list[Ask]
    versions: list[dict[str, str]]
    board: Any
    task: Any
    sends_files: bool = False
    losses: Counter[str] = field(default_factory=Counter)
    _sent: WeakValueDictionary[tuple[InputFile, ...], Sent] = field(default_factory=WeakValueDictionary)
    _largest: dict[bool, Ask] = field(default_factory=dict)
    _looked: float = 0.0
    _served: float = field(default_factory=time.monotonic)
    _reading: Any = None

    def has_room(self, running: Sequence[Work]) -> bool:
        return len(running) < (self.workers or self._count_slots(False) + self._count_slots(True))

    def start(self, entry: ZooEntry, attempt: int, running: Sequence[Work], *, force: bool) -> RayWork | None:
        """Hand the entry to the cluster, unless as many like it as can run are there already.

        One more is handed over, so that a cluster that grows sees that it is wanted.
        """
        ask = self._make_ask(entry)
        alike = sum(isinstance(one, RayWork) and one.ask.gpus == ask.gpus for one in running)
        if not self.has_room(running) or alike >= max(self.workers, self._count_slots(ask.gpus > 0)):
            return None
        work = self._prepare(entry, attempt, ask, force)
        options = self.task.options(
            num_cpus=ask.cpus, num_gpus=ask.gpus, memory=ask.memory_bytes, max_retries=0, name=entry.name
        )
        work.reference = options.remote(work.errand, self.board, [one.reference for one in work.sent])
        return work

    def find_ended(self, running: Sequence[Work]) -> list[Work]:
        """Raises ConfigError where, for ten minutes, no node was there on which what waits can run."""
        works = {one.reference: one for one in running if isinstance(one, RayWork)}
        if not works:
            return []
        self._look(list(works.values()))
        ended, _ = self.ray.wait(list(works), num_returns=len(works), timeout=0)
        for reference in ended:
            works[reference].receive()
        return [works[reference] for reference in ended]

    def find_versions(self) -> Sequence[dict[str, str]]:
        return self.versions

    def get(self, reference: Any) -> Any:
        return self.ray.get(reference)

    def stop(self, work: RayWork) -> None:
        """Ask the node to stop it; what was not begun is taken back."""
        self.board.stop.remote(work.errand.key)
        if work.report is None:
            self.ray.cancel(work.reference)

    def kill(self, work: RayWork) -> None:
        work.errand.token.unlink(missing_ok=True)
        self.ray.cancel(work.reference, force=True)

    def _prepare(self, entry: ZooEntry, attempt: int, ask: Ask, force: bool) -> RayWork:
        make_folder(entry.folder)
        key = uuid.uuid4().hex
        token = Path(entry.folder, f"{TOKEN}{key}").absolute()
        with refuse_os_errors(token):
            token.touch()
        inputs = tuple(map(InputFile.of, list_inputs(entry, list_data_files(entry.config.model))))
        gpu = None if ask.gpus or not uses_gpu(entry) else ""
        errand = Errand(key, entry, attempt, self.threads, gpu, force, Path.cwd(), token, inputs)
        sent = tuple(self._send(entry, inputs)) if self.sends_files else ()
        before = tuple(map(str, list_results(entry))) if self.sends_files else ()
        return RayWork(self, entry, attempt, ask, errand, describe_basis(entry), sent, before)

    def _send(self, entry: ZooEntry, inputs: tuple[InputFile, ...]) -> Iterator[Sent]:
        """The data, which other models may share; the model; and what there is to go on from."""
        data = set(list_inputs(entry)) - {entry.config.model}
        parts = [tuple(one for one in inputs if (one.path in data) is is_data) for is_data in (True, False)]
        parts.append((*map(InputFile.of, [Path.cwd(), *list_results(entry)]),))
        for part in parts:
            sent = self._sent.get(part)
            if sent is None:
                sent = self._sent[part] = Sent(self.ray.put(pack(one.path for one in part)))
            yield sent

    def _make_ask(self, entry: ZooEntry) -> Ask:
        """No more than the largest node has, so that any model runs somewhere, alone if need be."""
        has_tensorrt = any(name.startswith("tensorrt") for found in self.versions for name in found)
        on_gpu = True in self._largest and uses_gpu(entry, has_tensorrt=has_tensorrt)
        largest = self._largest[on_gpu]
        wanted = int(estimate_memory_gib(entry) * _GIB)
        return Ask(min(self.threads, largest.cpus), int(on_gpu), min(wanted, largest.memory_bytes))

    def _count_slots(self, on_gpu: bool) -> int:
        """How many models with or without a GPU can run at once by CPUs and GPUs, and one more."""
        return 1 + sum(node.gpus if on_gpu else node.cpus // self.threads for node in self.nodes)

    def _look(self, works: Sequence[RayWork]) -> None:
        """Now and then: which nodes there are, and how far the models."""
        if time.monotonic() - self._looked < _LOOK_SECONDS:
            return
        self._looked = time.monotonic()
        self.set_nodes(list_nodes(self.ray))
        self._check_served(works)
        if self._reading is not None:
            ready, _ = self.ray.wait([self._reading], timeout=0)
            if not ready:
                return
            self._take_reports(works)
        self._reading = self.board.read.remote([one.errand.key for one in works])

    def set_nodes(self, nodes: list[Ask]) -> None:
        """The nodes that are there now; the largest that ever was stays the measure of what is asked for."""
        self.nodes = nodes
        for on_gpu in (False, True):
            candidates = [node for node in nodes if node.gpus or not on_gpu]
            if candidates:
                self._largest[on_gpu] = max(candidates, key=lambda node: (node.memory_bytes, node.cpus))

    def _take_reports(self, works: Sequence[RayWork]) -> None:
        reports = self.ray.get(self._reading)
        for one in works:
            one.report = reports.get(one.errand.key, one.report)

    def _check_served(self, works: Sequence[RayWork]) -> None:
        if any(one.ask.fits(node) for one in works for node in self.nodes):
            self._served = time.monotonic()
        elif time.monotonic() - self._served > _NODE_PATIENCE_SECONDS:
            ask = works[0].ask
            raise ConfigError(
                f"The Ray cluster has had no node for {_NODE_PATIENCE_SECONDS / 60:g} minutes on which the models that are "
                f"left can run: {ask.cpus} CPUs, {ask.gpus} GPUs and {ask.memory_bytes / _GIB:.1f} GiB were asked for. "
                "Expected nodes to come back. Start some, and the same command again: it goes on."
            )
