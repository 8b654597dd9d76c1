"""The operators that TensorRT computes in FP32 inside by itself, whatever precision their layers have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from overflow_fixer.backends.tensorrt.capabilities import (
    Capabilities,
    choose_typing,
    import_tensorrt,
    probe,
)
from overflow_fixer.records import Typing

_NORMALIZATION = "protected: TensorRT's weak typing computes an INormalizationLayer in FP32 by default"
_FROM_THE_FIRST = ("LayerNormalization", "GroupNormalization")
"""Of these the parser makes an INormalizationLayer since there is one, from 8.6 on, and had no importer before; of
InstanceNormalization from 10 on, before which it is a plug-in (NvInfer.h and onnx-tensorrt, see docs/numerics.md)."""


def find_protected(typing: Literal["auto", "weak", "strong"]) -> Mapping[str, str]:
    """The operators, with the reason. None under strong typing, which computes in the types of the model.

    Raises BackendError where TensorRT is missing or has no such typing.
    """
    found = probe(import_tensorrt())
    return protected_by(found, choose_typing(found, typing))


def protected_by(found: Capabilities, typing: Typing) -> Mapping[str, str]:
    """The same of a TensorRT that can do this."""
    if typing == "strong" or not found.normalization_layers:
        return {}
    later = ("InstanceNormalization",) if found.native_instance_norm else ()
    return dict.fromkeys((*_FROM_THE_FIRST, *later), _NORMALIZATION)
