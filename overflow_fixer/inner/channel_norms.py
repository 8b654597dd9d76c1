"""How much an output channel of constant weights adds up at most: sum |weight|, and by the places of a kernel."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from functools import reduce
from typing import NamedTuple

import numpy as np

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner.products import Product, count_groups, sums_first_axis, sums_rows
from overflow_fixer.model_file.weights import PIECE_BYTES
from overflow_fixer.records import Array

_ROUNDING = 2.0**-23
"""A sum of n numbers in float32, none below 0, is at most n times this too small, relative to itself."""


class ChannelNorm(NamedTuple):
    """Of constant weights, which `factor` is multiplied with: no output channel has a larger `sum` of |weight|, nor a
    larger sum, over the places of the kernel, of the `length` of the weights there (the root of the sum of their squares).
    """

    factor: str
    sum: float
    length: float


def find_channel_norm(graph: Graph, product: Product, fed: Collection[str] = ()) -> ChannelNorm | None:
    """None where neither factor is constant. `fed` are tensors whose values, where they have any, do not count: others are fed."""
    if product.node.op_type == "Einsum":
        return None
    left, right = product.factors
    for weights, other, is_right in ((right, left, True), (left, right, False)):
        largest = None if weights in fed else _find_largest_channel(graph, product.node, weights, is_right)
        if largest is not None:
            return ChannelNorm(other, *largest)
    return None


def _find_largest_channel(
    graph: Graph, node: Node, tensor: str, is_right: bool
) -> tuple[float, float] | None:
    """ChannelNorm's sum and length of constant weights; None where there is no constant of that form."""
    dims = graph.constants[tensor].dims if tensor in graph.constants else (0,)
    if 0 in dims or (node.op_type.startswith("Conv") and not is_right):
        return None
    # the first axis of a ConvTranspose's weights is that of the groups too
    is_whole = node.op_type == "ConvTranspose" and count_groups(node) > 1
    pieces = graph.read_constant_rows(tensor, sys.maxsize if is_whole else PIECE_BYTES)
    parts: Iterator[tuple[Array, Array]] = (_add_up_channels(node, piece, is_right) for piece in pieces)
    if sums_first_axis(node, len(dims), is_right):
        parts = iter([reduce(_add_parts, parts)])
    found = [(sums.max(), np.sqrt(squares).sum(axis=-1).max()) for sums, squares in parts]
    return float(np.max([one for one, _ in found])), float(np.max([one for _, one in found]))


def _add_parts(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    return one[0] + other[0], one[1] + other[1]


def _add_up_channels(node: Node, weights: Array, is_right: bool) -> tuple[Array, Array]:
    """Sums of |weight| [channel], and of their squares [channel, place of the kernel]."""
    if node.op_type == "Conv":
        apart = np.moveaxis(weights, 1, 0)
    elif node.op_type == "ConvTranspose":  # [channels, outputs of a group, ...]
        apart = np.moveaxis(weights.reshape(count_groups(node), -1, *weights.shape[1:]), 1, 0)
        apart = apart.reshape(len(apart), -1, *weights.shape[2:])
    else:
        axis = -2 if weights.ndim > 1 and sums_rows(node, is_right) else -1
        apart = np.moveaxis(weights, axis, 0)
        apart = apart.reshape(len(apart), -1, 1)
    apart = apart.reshape(*apart.shape[:2], -1)  # [what is summed, channel, place of the kernel]
    squares = np.einsum("kcp,kcp->cp", apart, apart).astype(np.float64)
    magnitudes = np.abs(apart, out=apart if apart.flags.writeable else None)  # a piece is read for this alone
    sums = magnitudes.sum(axis=(0, 2)).astype(np.float64)
    terms, places = len(apart), apart.shape[2]
    return sums * (1 + _ROUNDING * terms * places), squares * (1 + _ROUNDING * terms)
