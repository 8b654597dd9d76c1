"""What constants make of a tensor by matrices, factors and shifts alone: a PCA, (x − μ) W, a whitening, (x − μ) W / σ, layers.

What is kept of each is the matrix from the tensor's last axis to that of what is made, whatever is added on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from overflow_fixer.evidence.semantics import readers
from overflow_fixer.graph.feature_operators import read_coefficients
from overflow_fixer.graph.folding import find_folder
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS
from overflow_fixer.records import Array

_MOST_ELEMENTS = 1 << 20
"""Of larger matrices none is multiplied by another."""
_MOST_READ = 1 << 24
_MOST_STAGES = 6
_HANDS_ON = frozenset("Identity Cast Dropout".split())
_SCALES = frozenset({("Add", 0), ("Add", 1), ("Sub", 0), ("Sub", 1), ("Mul", 0), ("Mul", 1), ("Div", 0)})


def list_projections(graph: Graph, tensor: str) -> Iterator[tuple[str, Array]]:
    """Each that a constant matrix makes of the tensor, or of what was made so, with the matrix [read, made], float64.

    Followed are at most six nodes in a row; none of matrices of more than 2^20 elements.
    """
    pending: list[tuple[str, Array, int]] = [(tensor, np.ones(1), 0)]
    while pending:
        name, matrix, depth = pending.pop()
        for reader, slot in readers(graph, name) if depth < _MOST_STAGES else ():
            made = _apply(graph, reader, slot, matrix)
            if made is not None:
                pending.append((reader.outputs[0], made, depth + 1))
                if made.ndim == 2:
                    yield reader.outputs[0], made


def list_scaled(graph: Graph, tensor: str) -> Iterator[tuple[str, Array]]:
    """The tensor, and what constant factors and shifts make of it in a row, with the factors, float64, by the last axis."""
    pending: list[tuple[str, Array, int]] = [(tensor, np.ones(1), 0)]
    while pending:
        name, factor, depth = pending.pop()
        yield name, factor
        for reader, slot in readers(graph, name) if depth < _MOST_STAGES else ():
            made = _read_factor(graph, reader, slot)
            if made is not None and _fit(factor, made):
                pending.append((reader.outputs[0], factor * made, depth + 1))


def takes_weights(node: Node) -> bool:
    """Whether it multiplies what it reads first by what it reads second, constant or not."""
    return node.standard_op == "MatMul" or (node.standard_op == "Gemm" and not node.value_of("transA", 0))


def read_matrix(graph: Graph, node: Node) -> Array | None:
    """What a MatMul, Gemm or LinearRegressor multiplies what it reads first by, [read, made], float64; None of others."""
    if (coefficients := read_coefficients(node)) is not None:
        return coefficients
    value = _read(graph, node.inputs[1]) if takes_weights(node) else None
    if value is None or value.ndim != 2:
        return None
    turned = value.T if node.value_of("transB", 0) else value
    return turned * float(node.value_of("alpha", 1.0))


def _apply(graph: Graph, node: Node, slot: int, matrix: Array) -> Array | None:
    """The matrix, or the factors yet, behind the node too; None where the node does something else."""
    factor = _read_factor(graph, node, slot)
    if factor is not None:
        return matrix * factor if _fit(matrix, factor) else None
    weights = read_matrix(graph, node) if slot == 0 else None
    if weights is None or max(matrix.size, weights.size) > _MOST_ELEMENTS:
        return None
    if matrix.ndim == 2:
        return matrix @ weights if matrix.shape[1] == weights.shape[0] else None
    return matrix.reshape(-1, 1) * weights if matrix.size in (1, weights.shape[0]) else None


def _read_factor(graph: Graph, node: Node, slot: int) -> Array | None:
    """What the node multiplies what comes in at `slot` by, flat: one number, or one for each place of the last axis."""
    if node.standard_op in _HANDS_ON:
        return np.ones(1) if graph.is_float(node.outputs[0]) else None
    if len(node.inputs) != 2 or (node.standard_op, slot) not in _SCALES:
        return None
    value = _read(graph, node.inputs[1 - slot])
    if value is None or value.size != (value.shape or (1,))[-1]:
        return None
    if node.standard_op in ADDS:
        return np.ones(1)
    with np.errstate(divide="ignore"):
        return value.ravel() if node.standard_op == "Mul" else 1 / value.ravel()


def _fit(matrix: Array, factor: Array) -> bool:
    return 1 in (factor.size, matrix.size) or matrix.shape[-1] == factor.size


def _read(graph: Graph, tensor: str) -> Array | None:
    """A constant of floats, or what constants alone make, float64; None of what is larger than 2^24 elements."""
    if tensor in graph.constants and math.prod(graph.constants[tensor].dims) > _MOST_READ:
        return None
    value = graph.find_constant(tensor)
    value = find_folder(graph).value(tensor) if value is None else value
    return None if value is None or value.dtype.kind != "f" else np.asarray(value, np.float64)
