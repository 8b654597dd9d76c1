"""What other programs take of the machine while something is measured."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_IDLE_SHARE = 0.9
_LOOK_SECONDS = 0.3


@dataclass(frozen=True)
class CpuTimes:
    """Seconds since the machine started, summed over its cores: `busy` of `total`, `ours` by our children."""

    busy: float
    total: float
    ours: float


def read_cpu_times() -> CpuTimes:
    """The first line of /proc/stat, and what the children of this process took that have ended."""
    first = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    ticks = [float(value) for value in first]  # user nice system idle iowait irq softirq steal
    second = os.sysconf("SC_CLK_TCK")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    idle = ticks[3] + ticks[4]
    return CpuTimes((sum(ticks) - idle) / second, sum(ticks) / second, usage.ru_utime + usage.ru_stime)


def others_share(before: CpuTimes, after: CpuTimes) -> float:
    """The share of all cores' time, 0 to 1, that went to programs that are not our children."""
    total = after.total - before.total
    others = (after.busy - before.busy) - (after.ours - before.ours)
    return min(max(others / total, 0.0), 1.0) if total > 0 else 0.0


def wait_for_idle(patience_seconds: float) -> None:
    """Return after a moment in which the cores were idle, or when patience ends."""
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline:
        before = read_cpu_times()
        time.sleep(_LOOK_SECONDS)
        after = read_cpu_times()
        if after.busy - before.busy <= (1 - _IDLE_SHARE) * (after.total - before.total):
            return
