"""The values of constants, wherever they lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from overflow_fixer.errors import ModelError
from overflow_fixer.records import Array

PIECE_BYTES = 1 << 22
"""Of a constant that is computed with piece by piece: what caches hold."""


def read_values(tensor: TensorProto, folder: Path) -> Array:
    """The value of a constant; types that numpy does not have (BF16) come as ml_dtypes arrays.

    Raises ModelError where its file ends early.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        return numpy_helper.to_array(tensor)
    length = next((int(item.value or 0) for item in tensor.external_data if item.key == "length"), 0)
    if not 0 < length < math.prod(tensor.dims) * _dtype_of(tensor).itemsize:
        return _read_whole(tensor, folder)
    packed = TensorProto()  # several elements a byte
    packed.CopyFrom(tensor)
    bring_in(packed, folder)
    return numpy_helper.to_array(packed)


def bring_in(tensor: TensorProto, folder: Path) -> None:
    """Put the data of an external tensor into its message, in place.

    The library's own reader refuses a file that has a second (hard) link, as caches and copies have; which files may be
    read is decided when the model is loaded. Raises ModelError where the file ends early.
    """
    path, start = _find_data(tensor, folder)
    entry = {item.key: item.value for item in tensor.external_data}
    length = int(entry.get("length") or 0)  # none, or 0: to the end of the file
    with path.open("rb") as file:
        file.seek(start)
        tensor.raw_data = file.read(length or -1)
    if len(tensor.raw_data) < length:
        raise _too_short(path, tensor)
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")


def read_pieces(tensor: TensorProto, folder: Path, buffer: memoryview) -> Iterator[Array]:
    """The elements of a float constant in order, as arrays [n]; from a file as much at a time as fits `buffer`.

    An array is overwritten by the next. Raises ModelError where the file ends early.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        yield read_values(tensor, folder).reshape(-1)
        return
    dtype, (path, start) = _dtype_of(tensor), _find_data(tensor, folder)
    left = math.prod(tensor.dims) * dtype.itemsize
    with path.open("rb") as file:
        file.seek(start)
        while left:
            count = file.readinto(buffer[:left])
            if not count or count % dtype.itemsize:
                raise _too_short(path, tensor)
            yield np.frombuffer(buffer, dtype, count // dtype.itemsize)
            left -= count


def read_rows(tensor: TensorProto, folder: Path, most_bytes: int) -> Iterator[Array]:
    """A float constant cut along its first axis, in order; from a file so much at a time as has `most_bytes`, but one index at least.

    An array is overwritten by the next. Raises ModelError where the file ends early.
    """
    dims, dtype = tuple(tensor.dims), _dtype_of(tensor)
    row = math.prod(dims[1:]) * dtype.itemsize
    size = max(1, min(dims[0], most_bytes // max(1, row)))
    if tensor.data_location != TensorProto.EXTERNAL:
        values = read_values(tensor, folder)
        yield from (values[at : at + size] for at in range(0, dims[0], size))
        return
    path, start = _find_data(tensor, folder)
    buffer = np.empty((size, *dims[1:]), dtype)
    with path.open("rb") as file:
        file.seek(start)
        for at in range(0, dims[0], size):
            piece = buffer[: dims[0] - at]
            if file.readinto(piece.view(np.uint8).data) != piece.nbytes:
                raise _too_short(path, tensor)
            yield piece


def _read_whole(tensor: TensorProto, folder: Path) -> Array:
    path, start = _find_data(tensor, folder)
    values = np.fromfile(path, _dtype_of(tensor), math.prod(tensor.dims), offset=start)
    if values.size != math.prod(tensor.dims):
        raise _too_short(path, tensor)
    return values.reshape(tuple(tensor.dims))


def _dtype_of(tensor: TensorProto) -> np.dtype[Any]:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))


def _find_data(tensor: TensorProto, folder: Path) -> tuple[Path, int]:
    """The file in which the data of an external tensor lies, and where it begins there."""
    entry = {item.key: item.value for item in tensor.external_data}
    return folder / entry["location"], int(entry.get("offset") or 0)


def _too_short(path: Path, tensor: TensorProto) -> ModelError:
    return ModelError(
        f"{path} ends within the data of tensor {tensor.name!r}. Expected the whole file, as it was when the model was "
        "loaded. It changed meanwhile; run again."
    )
