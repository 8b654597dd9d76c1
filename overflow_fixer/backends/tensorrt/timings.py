"""Kernel timings kept in a file across builds, some of which may run side by side."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path
from typing import Any

from overflow_fixer.files import replace_file
from overflow_fixer.locks import hold_lock

_MAPS = Path("/proc/self/maps")
_SHIM = "libcudnn.so.8"
_PART = "libcudnn_ops_infer.so.8"
_FOREIGN = "kernel timings are of another GPU or another TensorRT, or torn"


def attach_timings(config: Any, path: Path) -> bool:
    """Give the builder the timings in a file, or none where there is no such file, or another GPU's or TensorRT's.

    Returns whether timings will be kept, which `save_timings` then does.
    """
    if find_obstacle() is not None:
        return False
    for content in (_read(path), b""):
        cache = config.create_timing_cache(content)
        if cache is not None and config.set_timing_cache(cache, False):
            return True
    return False


def save_timings(config: Any, path: Path) -> str | None:
    """Add the timings of this build to those that are in the file by now; the file is replaced whole or not at all.

    Other builds wait meanwhile. Returns a sentence where what the file held had to go. Raises OutputError where the
    file cannot be written.
    """
    with hold_lock(path):
        cache, kept = config.get_timing_cache(), _read(path)
        is_merged = not kept or _merge(cache, config.create_timing_cache(kept), len(kept))
        with replace_file(path) as temporary:
            temporary.write_bytes(bytes(cache.serialize()))
    return None if is_merged else f"{path} was replaced: its {_FOREIGN}"


def _merge(cache: Any, found: Any, size: int) -> bool:
    """Whether all that was found came along. TensorRT 8.6 reads torn bytes as a cache of what came before the tear."""
    return found is not None and cache.combine(found, False) and len(bytes(found.serialize())) >= size


def _read(path: Path) -> bytes:
    """Nothing where the file is not there, or cannot be read."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


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
        return f"kernel timings are not kept, so each build takes them anew: {_PART} is missing, which cuDNN 8 has beside {_SHIM}"
    return None


def _find_loaded(library: str) -> Path | None:
    """The file of a library that this process has loaded; None where that cannot be told."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return None
    paths = (Path(line.split(maxsplit=5)[5]) for line in lines if line.endswith(library))
    return next(paths, None)
