"""A difference of nearly equal numbers that is given out: a return p1 / p0 − 1, its logarithm, or 1 − cos of what is alike.

Scaled, multiplied or squared it is given out as well, with the digits that FP16 left of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from overflow_fixer.evidence.differences.kept_small import keeps_small
from overflow_fixer.evidence.differences.losses import FP32_NOISE, STEPS_GIVEN_OUT
from overflow_fixer.evidence.differences.rectified import name_what_is_left
from overflow_fixer.evidence.differences.small_differences import SmallDifference, SmallLoss, find_small
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.measured import read_maxima
from overflow_fixer.evidence.origins import Walked
from overflow_fixer.evidence.paths import list_values
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable

_FEWEST_RECTIFIED = 16.0
"""The same of what a Relu lets through, most of which is zero, and right."""
_BESIDE = frozenset("Add Sum Concat".split())


class _Given(NamedTuple):
    """The output that a tensor shows in, and how many times it what is added to it, or put beside it by a Concat, is, at most."""

    output: str
    beside: float


def find_given_differences(graph: Graph, ranges: RangeTable, walked: Walked) -> Iterator[SmallLoss]:
    """Each difference that is given out and small in every batch, in the batch in which it is largest; else as find_divided."""
    for node in graph.nodes:
        small = find_largest(graph, ranges, node)
        given = _find_given(graph, ranges, small.batch).get(small.shown) if small is not None else None
        if small is not None and given is not None and _is_seen_beside(small, given.beside):
            nodes = find_sources(graph, ranges, node, small.value, walked)
            yield SmallLoss(small, nodes, f"the output {given.output} tells it")


def _is_seen_beside(small: SmallDifference, beside: float) -> bool:
    """Whether what it is put beside is no larger, or less than 16 of the steps itself: all of that may be as large as its largest."""
    return beside <= 1 or small.value * beside < small.limit / 2


def find_largest(graph: Graph, ranges: RangeTable, node: Node) -> SmallDifference | None:
    """A difference of less than 32 of FP16's steps in every batch, in that in which it is largest.

    Of one that is larger and rectified it is what is let through, of less than 16. None where it is as small as FP32 itself rounds.
    """
    whole, left = node.outputs[0], name_what_is_left(graph, node)
    largest = _find_largest_of(graph, ranges, node, whole, STEPS_GIVEN_OUT)
    if largest is None and left != whole:
        largest = _find_largest_of(graph, ranges, node, left, _FEWEST_RECTIFIED)
    return largest if largest is not None and largest.value > FP32_NOISE * largest.largest else None


def _find_largest_of(
    graph: Graph, ranges: RangeTable, node: Node, left: str, steps: float
) -> SmallDifference | None:
    """The batch in which most is left of the difference, as `left` tells it; None where that is so many steps or more."""
    small = find_small(graph, ranges, node, steps, left)
    largest = max(small, key=lambda one: one.value, default=None)
    return largest if largest is not None and largest.value >= ranges.by_tensor[left].max_abs else None


@lru_cache(maxsize=8)
def _find_given(graph: Graph, ranges: RangeTable, batch: int) -> Mapping[str, _Given]:
    """For each tensor of which single elements show in an output of the model in that batch, the one where least is beside it.

    In one pass, since of a long chain of differences each is before all others. A sum of many loses less.
    """
    found = {name: _Given(name, 1.0) for name in graph.outputs}
    for node in reversed(graph.nodes):
        behind = min(
            (found[name] for name in list_values(node) if name in found),
            key=lambda given: given.beside,
            default=None,
        )
        if behind is None or node.op_type.startswith("Reduce"):
            continue
        for slot, name in enumerate(node.inputs):
            beside = behind.beside * max(1.0, _read_beside(graph, ranges, batch, node, slot))
            if beside < (found[name].beside if name in found else math.inf):
                found[name] = _Given(behind.output, beside)
    return found


def _read_beside(graph: Graph, ranges: RangeTable, batch: int, node: Node, slot: int) -> float:
    """How many times it what the node adds or puts beside it is; 1 of no more, infinity where it is lost."""
    if keeps_small(graph, ranges, batch, node, slot):
        return 1.0
    if node.standard_op not in _BESIDE:
        return math.inf
    read = _read_norm if node.standard_op == "Concat" else _read_largest
    most = max(read(ranges, batch, name) for name in node.beside(slot))
    least = read(ranges, batch, node.inputs[slot])
    return most / least if least > 0 and most < math.inf else math.inf


def _read_largest(ranges: RangeTable, batch: int, tensor: str) -> float:
    return float(read_maxima(ranges, tensor)[batch])


def _read_norm(ranges: RangeTable, batch: int, tensor: str) -> float:
    """The root of the energy of as many elements that are all as large as the largest; infinity where it was not measured."""
    seen, largest = ranges.get(tensor), read_maxima(ranges, tensor)[batch]
    return float(largest) * math.sqrt(seen.element_count) if seen is not None and largest >= 0 else math.inf
