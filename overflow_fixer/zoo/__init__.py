"""Many models, each fixed in a process of its own, and one summary of them all."""

from typing import TYPE_CHECKING

from overflow_fixer.lazy_names import lazy_names

if TYPE_CHECKING:
    from overflow_fixer.zoo.entries import Zoo, ZooEntry
    from overflow_fixer.zoo.fixing import fix_zoo
    from overflow_fixer.zoo.machine import Machine, describe_machine
    from overflow_fixer.zoo.outcomes import ZooOutcome
    from overflow_fixer.zoo.ray_cluster import RayCluster
    from overflow_fixer.zoo.ray_connection import open_ray

__all__ = [
    "Machine",
    "RayCluster",
    "Zoo",
    "ZooEntry",
    "ZooOutcome",
    "describe_machine",
    "fix_zoo",
    "open_ray",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "entries": ("Zoo", "ZooEntry"),
            "fixing": ("fix_zoo",),
            "machine": ("Machine", "describe_machine"),
            "outcomes": ("ZooOutcome",),
            "ray_cluster": ("RayCluster",),
            "ray_connection": ("open_ray",),
        },
    )
