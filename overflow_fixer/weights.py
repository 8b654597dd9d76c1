"""The values of constants, wherever they lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from overflow_fixer.errors import ModelError
from overflow_fixer.records import Array


def read_values(tensor: TensorProto, folder: Path) -> Array:
    """The value of a constant; types that numpy does not have (BF16) come as ml_dtypes arrays."""
    return numpy_helper.to_array(tensor, base_dir=str(folder))


def read_pieces(tensor: TensorProto, folder: Path, buffer: bytearray) -> Iterator[Array]:
    """The elements of a float constant in order, as arrays [n]; from a file as much at a time as fits `buffer`.

    An array is overwritten by the next. Raises ModelError where the file ends early.
    """
    if tensor.data_location != TensorProto.EXTERNAL:
        yield read_values(tensor, folder).reshape(-1)
        return
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type))
    entry = {item.key: item.value for item in tensor.external_data}
    left = math.prod(tensor.dims) * dtype.itemsize
    with (folder / entry["location"]).open("rb") as file:
        file.seek(int(entry.get("offset") or 0))
        while left:
            count = file.readinto(memoryview(buffer)[:left])
            if not count or count % dtype.itemsize:
                raise ModelError(
                    f"{folder / entry['location']} ends within the data of tensor {tensor.name!r}. Expected the whole "
                    "file, as it was when the model was loaded. It changed meanwhile; run again."
                )
            yield np.frombuffer(buffer, dtype, count // dtype.itemsize)
            left -= count
