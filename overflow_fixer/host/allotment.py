"""What this process may use of its machine: a container, or a batch job, has fewer cores and less memory.

Linux tells it in control groups, version 2: https://docs.kernel.org/admin-guide/cgroup-v2.html
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

_OWN = Path("/proc/self/cgroup")
_ROOT = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


def count_cores(own: Path = _OWN, root: Path = _ROOT) -> int:
    """Cores that this process may run on, or whose time it may use up, whichever are fewer; at least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = (text.split() for text in _read_limits("cpu.max", own, root))
    quotas = (int(quota) // int(period) for quota, period in limits if quota != "max")
    return max(min([cores, *quotas]), 1)


@cache
def count_threads() -> int:
    """Threads that it is worth to compute with: one a core, however many threads of its own a core has."""
    cores = count_cores()
    return min(_count_whole_cores() or cores, cores)


def _count_whole_cores(root: Path = _CPUS) -> int | None:
    """Those that this process may run on, where Linux tells, else the machine's; None where nobody does."""
    try:
        told = [root / f"cpu{number}" / "topology" for number in os.sched_getaffinity(0)]
        return len({(one / "core_cpus_list").read_text() for one in told})
    except (AttributeError, OSError):
        return psutil.cpu_count(logical=False)  # which takes milliseconds


def find_memory_bytes(own: Path = _OWN, root: Path = _ROOT) -> int:
    """The machine's memory, or what this process and those beside it in a control group may hold, in bytes."""
    limits = (int(text) for text in _read_limits("memory.max", own, root) if text != "max")
    return min([psutil.virtual_memory().total, *limits])


def _read_limits(name: str, own: Path, root: Path) -> Iterator[str]:
    """A limit in each of the groups that this process is in, from its own up to the root."""
    with suppress(OSError):
        lines = own.read_text().splitlines()
        path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
        for group in (root / path, *(root / path).parents):
            if group.is_relative_to(root) and (group / name).is_file():
                yield (group / name).read_text().strip()
