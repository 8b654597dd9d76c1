"""The operators that TensorRT computes in FP32 inside by itself, whatever precision their layers have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from overflow_fixer.backends.tensorrt.capabilities import choose_typing, import_tensorrt, probe

_NORMALIZATION = "protected: TensorRT's weak typing computes an INormalizationLayer in FP32 by default"
_SINCE = {"LayerNormalization": (8, 6), "GroupNormalization": (8, 6), "InstanceNormalization": (10, 0)}
"""The version from which the parser makes an INormalizationLayer of the operator; before, InstanceNormalization is a
plug-in, and of the others there is no importer (NvInfer.h and onnx-tensorrt, see docs/numerics.md)."""


def find_protected(typing: Literal["auto", "weak", "strong"]) -> Mapping[str, str]:
    """The operators, with the reason. None under strong typing, which computes in the types of the model.

    Raises BackendError where TensorRT is missing or has no such typing.
    """
    found = probe(import_tensorrt())
    return protected_by(found.version, choose_typing(found, typing))


def protected_by(version: str, typing: Literal["weak", "strong"]) -> Mapping[str, str]:
    """The same of a version such as "8.6.0"."""
    numbers = tuple(int(part) for part in version.split(".")[:2])
    return {op: _NORMALIZATION for op, since in _SINCE.items() if typing == "weak" and numbers >= since}
