"""Convolutions with constant weights, none of them negative: a blur, or a sum over a window, by weights."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from overflow_fixer.evidence.kernels.difference_kernels import MOST_WEIGHTS, has_bias
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node


@lru_cache(maxsize=1)
def find_weighted_means(graph: Graph) -> frozenset[str]:
    """The labels of all such Conv nodes without a bias; none whose weights have NaN or infinities, are all zero, or many."""
    return frozenset(
        node.label for node in graph.nodes if node.standard_op == "Conv" and _is_mean(graph, node)
    )


def _is_mean(graph: Graph, node: Node) -> bool:
    weights = graph.constants.get(node.inputs[1])
    if weights is None or not 0 < math.prod(weights.dims) <= MOST_WEIGHTS or has_bias(graph, node):
        return False
    values = graph.read_constant(node.inputs[1])
    return bool(np.isfinite(values).all() and values.min() >= 0 and values.any())
