"""What this process took so far."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil


def measure_self() -> tuple[float, int]:
    """Seconds since this process was started, and the most resident memory that it held, in bytes; off Linux, what it holds."""
    process = psutil.Process()
    seconds = max(time.time() - process.create_time(), 0.0)
    if sys.platform != "linux":
        return seconds, process.memory_info().rss
    status = Path("/proc/self/status").read_text()
    peaks = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")]
    return seconds, 1024 * max(peaks, default=0)
