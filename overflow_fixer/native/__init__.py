"""The optional library of custom operators that look at a tensor once, or round it (probes.cpp tells which they are).

It is built where the package is installed and a C++ compiler is there. Without it, operators of ONNX give the same,
several for each tensor.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

DOMAIN = "overflow_fixer.probes"
LIBRARY = Path(__file__).with_name("libprobes.so")
_SOURCE = Path(__file__).with_name("probes.cpp")
LOOKS_AT_ALL = frozenset({"Moments", "Sums", "SumsApart"})
"""Operators whose last output tells of what they read too."""
SWITCH = "OVERFLOW_FIXER_NATIVE"


def find_library() -> Path | None:
    """The library, if it was built from the source that is there and the environment variable OVERFLOW_FIXER_NATIVE is not 0."""
    return LIBRARY if os.environ.get(SWITCH) != "0" and _is_current(LIBRARY) else None


@cache
def _is_current(library: Path) -> bool:
    """Whether it loads, and is not what another state of the source left behind: its operators may mean something else."""
    try:
        source = (ctypes.c_char * 65).in_dll(_load(library), "probes_source").value
    except (OSError, ValueError):
        return False
    return source == hashlib.sha256(_SOURCE.read_bytes()).hexdigest().encode()


def declare_operators(model: ModelProto) -> None:
    """Let the model hold native operators, in place."""
    if not may_hold_operators(model):
        model.opset_import.add(domain=DOMAIN, version=1)


def may_hold_operators(model: ModelProto) -> bool:
    return any(given.domain == DOMAIN for given in model.opset_import)


def probe_array(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """What the operator SmallProbe tells [8] of an array, in C order; there must be a library. Other threads go on meanwhile."""
    found = np.empty(8)
    _load(LIBRARY).probe_array(
        ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.size), ctypes.c_void_p(found.ctypes.data)
    )
    return found


@cache
def _load(library: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(library))
