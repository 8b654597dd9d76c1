"""A factor that is small just where the other is large: exp(-c) x times exp(c), as decays are undone in linear attention.

Of 2.5e10 times 4e-11 FP16 makes infinity times zero. The first is over the threshold and shows; of the second the largest
value may be as normal as that of the product.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.evidence.measured import are_finite, read_maxima
from overflow_fixer.evidence.semantics import readers
from overflow_fixer.evidence.zeros.divisors import guards_in_vain
from overflow_fixer.evidence.zeros.near_zero import divides, keeps_zero
from overflow_fixer.evidence.zeros.small_sources import (
    FARTHEST,
    LEAST_MAGNITUDE,
    Part,
    trace_badly_held,
)
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable


class SmallFactor(NamedTuple):
    """In the batch of that index `tensor` is `most` at most where `other` is `largest`, for the product is `made` at most.

    `nodes` are those that write it, what it is made of that is as small, and the product, with what one number makes as small of
    that again, up to what reads it.
    """

    product: Node
    tensor: str
    other: str
    most: float
    largest: float
    made: float
    batch: int
    nodes: tuple[Node, ...]


def find_small_factors(graph: Graph, ranges: RangeTable) -> Iterator[SmallFactor]:
    """Each computed factor that is below 2^-18 there in some batch, in that of these in which the other is largest.

    None where the other is no more than 1, of products with NaN or infinities, or of zeros, and of factors that FP16 is known to
    hold, as it does masks of 0 and 1, or that are as small as a whole.
    """
    told: dict[str, float] = {}
    for node in graph.nodes:
        for tensor, other in (node.inputs, node.inputs[::-1]) if node.standard_op == "Mul" else ():
            factor = _judge(graph, ranges, node, tensor, other, told)
            if factor is not None and factor.nodes:
                yield factor


def _judge(
    graph: Graph, ranges: RangeTable, node: Node, tensor: str, other: str, told: dict[str, float]
) -> SmallFactor | None:
    if find_multiples(graph, ranges).is_held(tensor):
        return None
    if not are_finite(graph, ranges, *node.inputs, *node.outputs):
        return None
    if ranges.by_tensor[tensor].max_abs < LEAST_MAGNITUDE:
        return None
    made, largest = read_maxima(ranges, node.outputs[0]), read_maxima(ranges, other)
    is_small = (made > 0) & (made < largest * LEAST_MAGNITUDE) & (largest > 1)
    if not is_small.any():
        return None
    batch = int(np.where(is_small, largest, 0.0).argmax())
    most = float(made[batch] / largest[batch])
    nodes = trace_badly_held(graph, ranges, Part(tensor, most), told)
    if nodes:
        nodes = (*nodes, node, *_find_small_again(graph, ranges, node, batch))
    return SmallFactor(node, tensor, other, most, float(largest[batch]), float(made[batch]), batch, nodes)


def _find_small_again(graph: Graph, ranges: RangeTable, product: Node, batch: int) -> Iterator[Node]:
    """What one number makes of the product that is below 2^-18 in that batch again, as x n / (n - 1) is, and what reads that."""
    pending, seen = list(product.writes), {product.label}
    while pending and len(seen) < FARTHEST:
        name = pending.pop()
        was_small = _is_small(ranges, name, batch)
        for node, slot in readers(graph, name):
            scales = node.standard_op in ("Mul", "Div") and _is_one_number(ranges, node.inputs[1 - slot])
            is_small = any(_is_small(ranges, output, batch) for output in node.writes)
            is_lost = was_small or (scales and is_small)
            if node.label not in seen and is_lost and _shows(graph, ranges, node, slot):
                seen.add(node.label)
                yield node
                pending += node.writes


def _shows(graph: Graph, ranges: RangeTable, node: Node, slot: int) -> bool:
    """Whether what the node reads there shows in what it writes: it is zero where that is, or nearly, or divides by it."""
    is_plain = keeps_zero(graph, node, slot) or divides(graph, node, slot)
    return is_plain or guards_in_vain(graph, ranges, node, slot, LEAST_MAGNITUDE)


def _is_small(ranges: RangeTable, tensor: str, batch: int) -> bool:
    seen = ranges.get(tensor)
    return seen is not None and 0 < float(read_maxima(ranges, tensor)[batch]) < LEAST_MAGNITUDE


def _is_one_number(ranges: RangeTable, tensor: str) -> bool:
    seen = ranges.get(tensor)
    return seen is not None and seen.min == seen.max
