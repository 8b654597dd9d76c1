"""A difference of nearly equal numbers that is given out: a return p1 / p0 − 1, its logarithm, or 1 − cos of what is alike.

Scaled, multiplied or squared it is given out as well, with the digits that FP16 left of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.divided_differences import Divided, find_sources, keeps_small, may_keep
from overflow_fixer.rules.paths import find_given
from overflow_fixer.rules.small_differences import FP32_NOISE, SmallDifference, find_small

_FEWEST_STEPS = 32.0
"""Of less than so many of FP16's steps, what is given out has under 30 dB: see docs/numerics.md."""


def find_given_differences(graph: Graph, ranges: RangeTable) -> Iterator[Divided]:
    """Each difference that is given out and small in every batch, in the batch in which it is largest."""
    for node in graph.nodes:
        small = _find_largest(graph, ranges, node)
        if small is not None and find_given(graph, node.outputs[0], partial(_may_keep, graph)) is not None:
            output = find_given(graph, node.outputs[0], partial(_keeps, graph, ranges, small.batch))
            if output is not None:
                nodes = find_sources(graph, ranges, node, small.value)
                yield Divided(small, tuple(nodes), f"the output {output} tells it")


def _find_largest(graph: Graph, ranges: RangeTable, node: Node) -> SmallDifference | None:
    """None where it is large in some batch, beside which the small ones do not count, or as small as FP32 itself rounds."""
    small = find_small(graph, ranges, node, _FEWEST_STEPS)
    largest = max(small, key=lambda one: one.value, default=None)
    if largest is None or largest.value < ranges.by_tensor[largest.shown].max_abs:
        return None
    return largest if largest.value > FP32_NOISE * largest.largest else None


def _may_keep(graph: Graph, node: Node, slot: int) -> bool:
    """Whether single elements of it show, whatever the data are: a sum of many loses less."""
    return not node.op_type.startswith("Reduce") and may_keep(graph, node, slot)


def _keeps(graph: Graph, ranges: RangeTable, batch: int, node: Node, slot: int) -> bool:
    return _may_keep(graph, node, slot) and keeps_small(graph, ranges, batch, node, slot)
