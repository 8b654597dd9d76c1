"""The way to a Ray cluster: one that runs, or one of this machine alone; its nodes must have what is here."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from overflow_fixer.errors import ConfigError
from overflow_fixer.zoo.errands import Board, run_errand
from overflow_fixer.zoo.machine import describe_machine
from overflow_fixer.zoo.outcomes import find_versions
from overflow_fixer.zoo.ray_cluster import RayCluster
from overflow_fixer.zoo.ray_module import import_ray
from overflow_fixer.zoo.ray_nodes import list_nodes, share_cpus

_GIB = 2**30
_REPLY_SECONDS = 60.0
_CONNECT_SECONDS = 5.0
_SAME = ("overflow_fixer", "onnxruntime")
"""What every node must have in the version that is here, for its results to be those of this machine."""


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
