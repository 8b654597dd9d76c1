"""BF16, which numpy does not have, fed to sessions and fetched from them: as ml_dtypes arrays, by the bits of OrtValues."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from overflow_fixer.sessions.fp8_values import name_fp8

_TYPE = "tensor(bfloat16)"


def run_with_bf16(
    session: Any, outputs: Sequence[str] | None, feeds: Mapping[str, Any], options: Any
) -> list[Any]:
    """What session.run gives for these arguments, FP8 under its own dtype. Raises what ONNX Runtime raises."""
    given = {name: _feedable(array) for name, array in feeds.items()}
    types = {output.name: output.type for output in session.get_outputs()}
    asked = list(types if outputs is None else outputs)
    has_bf16 = any(types[name] == _TYPE for name in asked)
    values = _fetch(session, asked, given, options) if has_bf16 else session.run(outputs, given, options)
    return name_fp8(values, [types[name] for name in asked])


def _feedable(array: Any) -> Any:
    """ONNX Runtime takes BF16 only as an OrtValue made of its bits."""
    if not isinstance(array, np.ndarray) or array.dtype.name != "bfloat16":
        return array
    bits = np.ascontiguousarray(array).view(np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, onnx.TensorProto.BFLOAT16)


def _fetch(session: Any, outputs: Sequence[str], feeds: Mapping[str, Any], options: Any) -> list[Any]:
    """Where some are BF16; what is no tensor, which an OrtValue does not give, by one more run."""
    given = {name: _as_ort_value(array) for name, array in feeds.items()}
    fetched = list(zip(outputs, session.run_with_ort_values(outputs, given, options), strict=True))
    others = [name for name, value in fetched if value.has_value() and not value.is_tensor()]
    found = dict(zip(others, session.run(others, feeds, options), strict=True)) if others else {}
    return [found[name] if name in found else _to_numpy(value) for name, value in fetched]


def _as_ort_value(array: Any) -> Any:
    return onnxruntime.OrtValue.ortvalue_from_numpy(array) if isinstance(array, np.ndarray) else array


def _to_numpy(value: Any) -> npt.NDArray[Any] | None:
    """None for an optional that is empty, of which nothing else may be asked."""
    if not value.has_value():
        return None
    if value.data_type() != _TYPE:
        return np.asarray(value.numpy())
    shape = value.shape()
    bits = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16)
    return np.asarray(np.array(bits, np.uint16).view(dtype).reshape(shape))
