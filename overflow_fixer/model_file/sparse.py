"""Sparse constants, made the dense ones that they stand for."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import SparseTensorProto, TensorProto, numpy_helper

from overflow_fixer.errors import ModelError
from overflow_fixer.model_file.subgraphs import STANDARD_DOMAINS, bodies
from overflow_fixer.model_file.weights import read_values
from overflow_fixer.records import Array

_MOST_BYTES = 2_000_000_000
"""Of a dense one: a message holds little more."""


def write_dense(path: Path, graph: onnx.GraphProto) -> None:
    """Make each sparse initializer and Constant dense, of bodies too, in place.

    ONNX Runtime gives a sparse one that leaves a run out as such, and takes it nowhere as an input. External data is told
    from the folder of `path`. Raises ModelError for one that takes over 2 GB, holds strings, or is damaged.
    """
    graph.initializer.extend(_densify(path, sparse) for sparse in graph.sparse_initializer)
    graph.ClearField("sparse_initializer")
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in STANDARD_DOMAINS:
            _write_value(path, node)
        for body in bodies(node):
            write_dense(path, body)


def _write_value(path: Path, constant: onnx.NodeProto) -> None:
    for held in constant.attribute:
        if held.name == "sparse_value":
            held.CopyFrom(onnx.helper.make_attribute("value", _densify(path, held.sparse_tensor)))


def _densify(path: Path, sparse: SparseTensorProto) -> TensorProto:
    name, dims = sparse.values.name, tuple(sparse.dims)
    values, places = (read_values(tensor, path.parent) for tensor in (sparse.values, sparse.indices))
    size = math.prod(dims) * values.itemsize
    if size > _MOST_BYTES:
        raise ModelError(
            f"{path}: the sparse tensor {name!r} of shape {list(dims)} takes {size / 1e9:.1f} GB as a dense one. Expected "
            "2 GB at most: sparse tensors are made dense, since FP16 has no others. Export the model without it."
        )
    try:
        return numpy_helper.from_array(_scatter(values, places, dims), name)
    except ValueError as error:
        raise ModelError(
            f"{path}: the sparse tensor {name!r} of shape {list(dims)} cannot be read: {error}. Expected numbers, each "
            "with a place in that shape. The file is damaged, or was not made by an exporter."
        ) from error


def _scatter(values: Array, places: Array, dims: tuple[int, ...]) -> Array:
    """Of that shape and the type of `values` [n], which stand at the `places` [n] (flat) or [n, rank]; 0 elsewhere.

    Raises ValueError for strings, and for places that there are not, or not as many.
    """
    if values.dtype == object:
        raise ValueError("it holds strings")
    if len(values) != len(places) or places.dtype != np.int64:
        raise ValueError(f"it has {len(values)} values and {len(places)} places of type {places.dtype}")
    flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), dims)
    dense = np.zeros(dims, values.dtype)
    dense[np.unravel_index(flat, dims)] = values
    return dense
