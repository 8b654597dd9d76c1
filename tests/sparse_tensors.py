"""Sparse tensors for models of tests."""

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper


def make_sparse(
    name: str, values: Sequence[float], places: Sequence[object], dims: Sequence[int]
) -> onnx.SparseTensorProto:
    """Float values [n] at places [n] or [n, rank] of a tensor of that shape."""
    return helper.make_sparse_tensor(
        numpy_helper.from_array(np.array(values, np.float32), name),
        numpy_helper.from_array(np.array(places, np.int64), f"{name}_places"),
        dims,
    )
