"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from overflow_fixer import __version__

_PACKAGES = (
    "onnxruntime onnx onnx-graphsurgeon numpy polygraphy nvidia-modelopt onnxconverter-common torch"
).split()


def describe_machine() -> str:
    """CPU model, cores and memory, and how busy the machine is right now."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    cores = len(os.sched_getaffinity(0))
    return f"{_cpu()}, {cores} cores, {memory:.0f} GiB, {platform.system()}; load average at the start {load}"


def describe_versions() -> str:
    found = {"overflow_fixer": __version__} | {name: _version(name) for name in _PACKAGES}
    libraries = ", ".join(f"{name} {number}" for name, number in found.items())
    return f"Python {platform.python_version()}, {libraries}"


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
