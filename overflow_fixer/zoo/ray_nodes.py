"""The nodes of a Ray cluster: what they have, and what tasks ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ask:
    """What a task asks of a node, or what a node has."""

    cpus: int
    gpus: int
    memory_bytes: int

    def fits(self, node: Ask) -> bool:
        return self.cpus <= node.cpus and self.gpus <= node.gpus and self.memory_bytes <= node.memory_bytes


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
