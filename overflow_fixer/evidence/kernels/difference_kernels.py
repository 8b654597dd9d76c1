"""Products by constant kernels that add up to zero, such as a gradient's: differences of what lies near one another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache

import numpy as np

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner.products import summed_axis
from overflow_fixer.records import Array

PRODUCTS = frozenset("MatMul Gemm Conv".split())
HALF_STEP = 2.0**-11
"""By which share of itself FP16 may round a number."""
MOST_WEIGHTS = 1 << 16
"""A larger kernel is not read: 144 of so many took 25 ms."""


def read_kernels(graph: Graph, node: Node) -> Iterator[tuple[str, Array]]:
    """What a product without a bias multiplies, and each kernel that adds up to zero, as far as FP16 tells, as a row."""
    if node.standard_op not in PRODUCTS or has_bias(graph, node):
        return
    for slot in (0, 1) if node.standard_op != "Conv" else (1,):
        name = node.inputs[1 - slot]
        rows = _read_rows(graph, node, slot) if name not in graph.constants else np.empty((0, 0))
        with np.errstate(invalid="ignore"):  # infinities of both signs
            magnitudes, sums = np.abs(rows).sum(1), np.abs(rows.sum(1))
        cancels = (magnitudes > 0) & (sums <= HALF_STEP * magnitudes) & np.isfinite(magnitudes)
        if bool(cancels.any()):
            yield name, rows[cancels]


def _read_rows(graph: Graph, node: Node, slot: int) -> Array:
    """The constant factor, what is added up of it along the last of two axes; nothing of another, of a large one or an empty one."""
    weights = graph.constants.get(node.inputs[slot])
    if weights is None or not weights.dims or not 0 < math.prod(weights.dims) <= MOST_WEIGHTS:
        return np.empty((0, 0))
    values = graph.read_constant(node.inputs[slot])
    wide = values.astype(np.float64)
    if node.standard_op == "Conv":
        return wide.reshape(len(wide), -1)
    axis = -1 if wide.ndim == 1 else summed_axis(node, is_right=bool(slot))
    return np.moveaxis(wide, axis, -1).reshape(-1, wide.shape[axis])


def has_bias(graph: Graph, node: Node) -> bool:
    """Whether a product, or a normalisation, adds anything but zeros in its third slot."""
    if not any(node.inputs[2:]):
        return False
    bias = graph.find_constant(node.inputs[2])
    return bias is None or bool(np.any(bias))


@lru_cache(maxsize=1)
def find_kernels(graph: Graph) -> Mapping[str, float]:
    """For each such product, by its label, how many times that of two terms of what it multiplies its error is, at most."""
    found: dict[str, float] = {}
    for node in graph.nodes:
        for _, rows in read_kernels(graph, node):
            norm = float(np.sqrt(np.square(rows).sum(1)).max() / math.sqrt(2))
            found[node.label] = max(norm, found.get(node.label, 0.0))
    return found
