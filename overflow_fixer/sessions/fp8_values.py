"""FP8, whose codes ONNX Runtime gives as bytes: as ml_dtypes arrays, so that they are compared as the numbers that they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx

_ELEM_TYPES = {"tensor(float8e4m3fn)": onnx.TensorProto.FLOAT8E4M3FN}
"""Of FP8 types, those that ONNX Runtime gives to numpy."""


def name_fp8(values: Iterable[Any], types: Iterable[str]) -> list[Any]:
    """The values of outputs of these types (ONNX Runtime's names), FP8 without a copy under its own dtype, all others as they are."""
    return [
        _name(value, kind) if kind in _ELEM_TYPES else value
        for value, kind in zip(values, types, strict=True)
    ]


def _name(codes: Any, kind: str) -> Any:
    return np.asarray(codes).view(onnx.helper.tensor_dtype_to_np_dtype(_ELEM_TYPES[kind]))
