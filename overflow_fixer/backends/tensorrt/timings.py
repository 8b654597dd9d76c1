"""Kernel timings kept in a file across builds."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Any

from overflow_fixer.files import replace_file

_MAPS = Path("/proc/self/maps")
_SHIM = "libcudnn.so.8"
_PART = "libcudnn_ops_infer.so.8"


def attach_timings(config: Any, path: Path) -> bool:
    """Give the builder the timings in a file, or none where there is no such file, or another GPU's or TensorRT's.

    Returns whether timings will be kept, which `save_timings` then does.
    """
    if find_obstacle() is not None:
        return False
    kept = b""
    with suppress(OSError):
        kept = path.read_bytes()
    for content in (kept, b""):
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):
            return True
    return False


def save_timings(config: Any, path: Path) -> None:
    """Write the timings, those of this build included, whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_bytes(bytes(config.get_timing_cache().serialize()))


def find_obstacle() -> str | None:
    """Why timings cannot be kept here; None where they can.

    TensorRT 8 asks cuDNN 8 for its version when it writes timings, and cuDNN aborts the process where
    its parts are missing. So they are looked for first, where the loaded library would: beside itself,
    then where the loader looks.
    """
    shim = _find_loaded(_SHIM)
    if shim is None or (shim.parent / _PART).exists():
        return None
    try:
        ctypes.CDLL(_PART)
    except OSError:
        return f"kernel timings are not kept: {_PART} of cuDNN is missing"
    return None


def _find_loaded(library: str) -> Path | None:
    """The file of a library that this process has loaded; None where that cannot be told."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return None
    paths = (Path(line.split(maxsplit=5)[5]) for line in lines if line.endswith(library))
    return next(paths, None)
