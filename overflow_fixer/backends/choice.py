"""Which backend builds, and what it protects by itself: all that a plan has to know of backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from overflow_fixer.backends.tensorrt import availability, protection
from overflow_fixer.errors import BackendError

NAMES = ("onnx", "tensorrt")


def find_protected(name: str, typing: Literal["auto", "weak", "strong"]) -> Mapping[str, str]:
    """The operators that the backend computes in FP32 inside by itself, and why. Raises BackendError where it is missing."""
    return protection.find_protected(typing) if name == "tensorrt" else {}


def choose_backend(name: str) -> tuple[str, str]:
    """The backend for a name ("auto" included) and, in one line, why. Raises BackendError if it is missing."""
    if name == "tensorrt":
        return name, f"asked for: {availability.require()}"
    if name in NAMES:
        return name, "asked for"
    if name != "auto":
        raise BackendError(
            f"The backend {name!r} is not in this version of overflow_fixer. Expected one of: auto, "
            f"{', '.join(NAMES)}. Correct --backend."
        )
    lack = availability.find_lack()
    if lack is None:
        return "tensorrt", f"an engine: {availability.require()}"
    return "onnx", f"a typed ONNX model: {lack}"
