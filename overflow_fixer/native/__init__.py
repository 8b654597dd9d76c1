"""The optional library of custom operators that look at a tensor once (probes.cpp tells which they are).

It is built where the package is installed and a C++ compiler is there. Without it, operators of ONNX give the same,
several for each tensor.
"""

from __future__ import annotations

import os
from pathlib import Path

from onnx import ModelProto

DOMAIN = "overflow_fixer.probes"
LIBRARY = Path(__file__).with_name("libprobes.so")
SWITCH = "OVERFLOW_FIXER_NATIVE"


def find_library() -> Path | None:
    """The library, if it was built and the environment variable OVERFLOW_FIXER_NATIVE is not 0."""
    return LIBRARY if os.environ.get(SWITCH) != "0" and LIBRARY.exists() else None


def declare_operators(model: ModelProto) -> None:
    """Let the model hold native operators, in place."""
    if not may_hold_operators(model):
        model.opset_import.add(domain=DOMAIN, version=1)


def may_hold_operators(model: ModelProto) -> bool:
    return any(given.domain == DOMAIN for given in model.opset_import)
