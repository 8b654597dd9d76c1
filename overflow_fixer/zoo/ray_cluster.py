"""A Ray cluster as the host of a zoo: every model is a task that asks for CPUs, memory and, to build engines, a GPU."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from overflow_fixer.errors import ConfigError
from overflow_fixer.external_data import list_data_files
from overflow_fixer.files import make_folder, refuse_os_errors
from overflow_fixer.zoo.entries import ZooEntry
from overflow_fixer.zoo.errands import Board, Delivery, Errand, Report, run_errand
from overflow_fixer.zoo.machine import describe_machine
from overflow_fixer.zoo.outcomes import (
    Basis,
    InputFile,
    Kind,
    ZooOutcome,
    describe_basis,
    find_versions,
    list_inputs,
)
from overflow_fixer.zoo.parcels import TOKEN, list_results, pack, put_in_place
from overflow_fixer.zoo.pool import Work, estimate_memory_gib, uses_gpu
from overflow_fixer.zoo.ray_module import import_ray

_GIB = 2**30
_LOSSES = 3
"""How often a model that was lost with its worker or node runs again."""
_LOOK_SECONDS = 0.5
_NODE_PATIENCE_SECONDS = 600.0
"""How long it is waited for a node on which what is next can run, where there is none."""
_REPLY_SECONDS = 60.0
_CONNECT_SECONDS = 5.0
_SAME = ("overflow_fixer", "onnxruntime")
"""What every node must have in the version that is here, for its results to be those of this machine."""


@dataclass(frozen=True)
class Ask:
    """What a task asks of a node, or what a node has."""

    cpus: int
    gpus: int
    memory_bytes: int

    def fits(self, node: Ask) -> bool:
        return self.cpus <= node.cpus and self.gpus <= node.gpus and self.memory_bytes <= node.memory_bytes


@dataclass(eq=False)
class Sent:
    """A parcel in the cluster's object store, for as long as this is held."""

    reference: Any


@dataclass(eq=False)
class RayWork:
    """One entry's task. `basis` is what it rests on as seen from here, `before` the files of the folder that were sent."""

    cluster: RayCluster
    entry: ZooEntry
    attempt: int
    ask: Ask
    errand: Errand
    basis: Basis
    sent: tuple[Sent, ...]
    before: tuple[str, ...]
    reference: Any = None
    report: Report | None = None
    delivery: Delivery | None = None
    loss: Exception | None = None

    @property
    def seconds(self) -> float:
        return 0.0 if self.report is None else self.report.seconds

    @property
    def peak_bytes(self) -> int:
        return 0 if self.report is None else self.report.peak_bytes

    def read_progress(self) -> tuple[str, int, int] | None:
        return None if self.report is None else self.report.progress

    def stop(self) -> None:
        self.cluster.stop(self)

    def kill(self) -> None:
        self.cluster.kill(self)

    def receive(self) -> None:
        """Take what came back, and put results in place that were not written there."""
        self.errand.token.unlink(missing_ok=True)
        try:
            self.delivery = self.cluster.get(self.reference)
        except self.cluster.ray.exceptions.RayError as error:
            self.loss = error
            return
        if self.delivery.results is not None:
            put_in_place(self.delivery.results, self.before, self.entry.folder)

    def take_outcome(self) -> ZooOutcome | None:
        """None where it is to run again: it was lost with its node, or needs files that were not sent."""
        if self.delivery is None:
            return self._explain_loss()
        if self.delivery.lacks_files:
            self.cluster.sends_files = True
        outcome = self.delivery.outcome
        if outcome is None:
            return None
        here = {os.path.abspath(file.path): file for file in self.errand.inputs}
        files = tuple(
            here.get(os.path.abspath(file.path), file).model_copy(update={"path": file.path})
            for file in outcome.basis.files
        )
        basis = outcome.basis.model_copy(update={"settings": self.basis.settings, "files": files})
        return outcome.model_copy(update={"basis": basis})

    def _explain_loss(self) -> ZooOutcome | None:
        """None while it may run again; what ends here is not taken for finished later."""
        reason = " ".join(str(self.loss).split())[:500].rstrip(".")
        if isinstance(self.loss, self.cluster.ray.exceptions.OutOfMemoryError):
            return self._end(
                "out_of_memory",
                f"Ray ended it where a node's memory ran out: {reason}. Expected room for the model and one batch. Set "
                "memory_gib so that fewer models run beside it.",
            )
        self.cluster.losses[self.entry.name] += 1
        if self.cluster.losses[self.entry.name] <= _LOSSES:
            return None
        return self._end(
            "crashed",
            f"It was lost {_LOSSES + 1} times with the Ray worker that it ran on, the last time for: {reason}. Expected "
            "nodes that stay, with this version of fix-fp16 and a disk to write to. See the node's Ray logs; the same "
            "command runs it again.",
        )

    def _end(self, kind: Kind, message: str) -> ZooOutcome:
        return ZooOutcome(
            name=self.entry.name,
            model=self.entry.config.model,
            folder=self.entry.folder,
            kind=kind,
            message=message,
            basis=self.basis.model_copy(update={"versions": {}}),
            attempts=self.attempt,
            seconds=self.seconds,
            peak_memory_bytes=self.peak_bytes,
        )


@dataclass(eq=False)
class RayCluster:
    """Runs models as tasks of a cluster; see `open_ray`. `workers`: at most so many at once, 0 for as many as fit.

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


@contextmanager
def open_ray(
    address: str | None = None, workers: int = 0, gpus: Sequence[str] | None = None
) -> Iterator[RayCluster]:
    """A Ray cluster to give to fix_zoo: the one at `address` ("auto": the one this machine is part of), or for None one
    of this machine alone that ends with the block.

    `workers`: models at once, and so the CPUs of each (0: one CPU a model, as many as fit). `gpus` are this machine's,
    of a cluster of its own (None: those that CUDA finds). A process that has connected to Ray already stays so.
    Raises ConfigError where there is no Ray, or no cluster that can be used.
    """
    ray = import_ray()
    is_ours = not ray.is_initialized()
    try:
        if is_ours:
            _connect(ray, address, workers, gpus)
        yield _describe(ray, workers)
    finally:
        if is_ours:
            ray.shutdown()


def _connect(ray: Any, address: str | None, workers: int, gpus: Sequence[str] | None) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is not None:
        _check_reachable(address)
        options["address"] = address
    else:
        machine = describe_machine(workers, gpus)
        options |= {
            "address": "local",
            "include_dashboard": False,
            "num_cpus": machine.workers * machine.threads,
            "num_gpus": len(machine.gpus),
            "_memory": int(machine.memory_gib * _GIB),
            "_system_config": {"worker_niceness": 0},
        }
    try:
        ray.init(**options)
    except (ConnectionError, RuntimeError, ValueError, ImportError, AssertionError, TimeoutError) as error:
        raise _refuse(address or "this machine", " ".join(str(error).split())[:500].rstrip(".")) from error


def _check_reachable(address: str) -> None:
    """Ray itself waits long for an address where nothing listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError as error:
        raise _refuse(address, str(error.strerror or error)) from error


def _describe(ray: Any, workers: int) -> RayCluster:
    nodes = list_nodes(ray)
    if not nodes:
        raise _refuse("this address", "none of its nodes has a CPU")
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    here = affinity(ray.get_runtime_context().get_node_id(), soft=True)
    board = ray.remote(num_cpus=0)(Board).options(scheduling_strategy=here, max_restarts=-1).remote()
    cluster = RayCluster(
        ray,
        workers,
        share_cpus(nodes, workers),
        nodes,
        _ask_versions(ray, affinity),
        board,
        ray.remote(run_errand),
    )
    cluster.set_nodes(nodes)
    return cluster


def list_nodes(ray: Any) -> list[Ask]:
    """What each node has on which models can run."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    asks = (Ask(int(has.get("CPU", 0)), int(has.get("GPU", 0)), int(has.get("memory", 0))) for has in alive)
    return [node for node in asks if node.cpus]


def share_cpus(nodes: Sequence[Ask], workers: int) -> int:
    """The most CPUs a model with which `workers` models find room at once; 1 for no workers, or more than CPUs."""
    most = max(node.cpus for node in nodes)
    counts = range(most, 1, -1) if workers else ()
    return next((n for n in counts if sum(node.cpus // n for node in nodes) >= workers), 1)


def _ask_versions(ray: Any, affinity: Any) -> list[dict[str, str]]:
    """The versions on the nodes, each once. Raises ConfigError for a node that cannot run what would run here."""
    ask = ray.remote(num_cpus=0, max_retries=1)(find_versions)
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    asked = {
        ask.options(scheduling_strategy=affinity(node["NodeID"], soft=False)).remote(): node for node in nodes
    }
    found: list[dict[str, str]] = []
    for reference, node in asked.items():
        name = node["NodeManagerHostname"]
        try:
            versions = ray.get(reference, timeout=_REPLY_SECONDS)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise _refuse(f"the node {name}", f"fix-fp16 cannot be used there: {reason}") from error
        _check_same(name, versions)
        found += [versions] if versions not in found else []
    return found


def _check_same(name: str, versions: dict[str, str]) -> None:
    own = find_versions()
    for library in _SAME:
        if versions[library] != own[library]:
            raise _refuse(
                f"the node {name}", f"it has {library} {versions[library]}, and this machine {own[library]}"
            )


def _refuse(where: str, reason: str) -> ConfigError:
    return ConfigError(
        f"The Ray cluster cannot be used at {where}: {reason}. Expected a cluster that runs (ray start), which this machine "
        "is part of, with the same Python, Ray, fix-fp16 and ONNX Runtime on every node. See docs/zoo.md. Nothing was run."
    )
