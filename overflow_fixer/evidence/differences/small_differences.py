"""A difference of nearly equal numbers: in some batch it is no more than a few of FP16's steps at the largest of its terms.

At 64 FP16's steps are 1/16; of 64.0025 − 64 nothing is left, or a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overflow_fixer.evidence.differences.losses import LostDifference, tell_steps
from overflow_fixer.evidence.differences.terms import find_lost_terms, find_terms
from overflow_fixer.evidence.kernels.difference_kernels import find_kernels
from overflow_fixer.evidence.measured import are_finite, read_maxima
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, REARRANGES
from overflow_fixer.records import Array, RangeTable

_KEEPS_ELEMENTS = REARRANGES | {"Expand", "Neg"}


@dataclass(frozen=True)
class SmallDifference:
    """What `node` writes: in the batch of that index `value`, its max |x|, is under `limit`: so many steps at `largest`.

    Or the max |x| of what is chosen of that, or by how much on average, as `shown` names it; where `of_roots`, of the roots of
    that, and the limit is the root of so many steps.
    `largest` is the max |x| of its terms there. Where it is, the other terms are nearly as large, and as much is lost, unless
    they are equal there (rows of one number, which leave zero).
    """

    node: Node
    value: float
    largest: float
    limit: float
    batch: int
    shown: str
    of_roots: bool = False

    @property
    def left(self) -> float:
        """What is left of the difference itself."""
        return self.value**2 if self.of_roots else self.value


class SmallLoss(NamedTuple):
    """A small difference where that matters, the nodes that are to stay in FP32, found as they are asked for, and what is made of it, in words."""

    difference: SmallDifference
    nodes: Iterable[Node]
    made: str

    def tell(self, graph: Graph, ranges: RangeTable) -> LostDifference:
        small, name = self.difference, self.difference.node.outputs[0]
        whose = "its terms" if small.shown == name else f"the terms of {name}"
        lose = f"{whose}, up to {small.largest:.6g}, lose much"
        if small.node.label in find_kernels(graph):
            lose = f"what its kernel subtracts loses as much as two terms of up to {small.largest:.6g}"
        squared = f", squared {small.left:.6g}," if small.of_roots else ""
        reason = (
            f"{small.shown} is {small.value:.6g} at most{squared} in that batch, and {lose}: {tell_steps(small.largest)}, "
            f"and {self.made}"
        )
        batch = ranges.batch_names[small.batch]
        return LostDifference(tuple(self.nodes), small.shown, small.value, small.limit, reason, batch)


def find_small(
    graph: Graph, ranges: RangeTable, node: Node, steps: float, chosen: str = "", of_roots: bool = False
) -> Iterator[SmallDifference]:
    """Each batch in which less than so many `steps` of FP16 are left of the difference, and not zero; the worst first.

    A logarithm counts as a difference of what it reads from 1.

    Or of what `chosen` names, where that is given: what is chosen of it or of its roots, or by how much, inside a node.
    None of a difference or of terms with NaN or infinities in any batch, of integers, and of terms that FP16 holds.
    """
    if not _is_difference(graph, ranges, node) or not find_lost_terms(graph, ranges, node):
        return
    shown = chosen or node.outputs[0]
    left = read_maxima(ranges, shown)
    largest = _read_largest(graph, ranges, node)
    limits = steps * step_at(largest)
    limits = np.sqrt(limits) if of_roots else limits
    small = np.flatnonzero((left > 0) & (left < limits))
    for batch in sorted(small.tolist(), key=lambda index: left[index] / limits[index]):
        value, most, limit = (float(row[batch]) for row in (left, largest, limits))
        yield SmallDifference(node, value, most, limit, batch, shown, of_roots)


def _is_difference(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    """Whether it adds or subtracts finite floats that were measured."""
    is_other = node.standard_op == "Log" or node.label in find_kernels(graph)
    terms = node.inputs[:2] if is_other else find_terms(graph, node)
    return bool(terms) and are_finite(graph, ranges, *terms, *node.writes)


def _read_largest(graph: Graph, ranges: RangeTable, node: Node) -> npt.NDArray[np.float64]:
    """The max |x| of the terms, by batch; 1 of a logarithm, which is small beside what it reads where that is near 1.

    Of a kernel that adds up to zero it is what two terms that lose as much would be.
    """
    if node.standard_op == "Log":
        return np.ones(len(ranges.batch_names))
    if node.label in find_kernels(graph):
        name = next(name for name in node.inputs if name not in graph.constants)
        return read_maxima(ranges, name) * find_kernels(graph)[node.label]
    own = _read_most(ranges, find_terms(graph, node))
    cancels = read_maxima(ranges, node.outputs[0]) < own / 2
    return np.where(cancels, _nest_terms(graph, ranges).get(node.outputs[0], own), own)


@lru_cache(maxsize=1)
def _nest_terms(graph: Graph, ranges: RangeTable) -> Mapping[str, npt.NDArray[np.float64]]:
    """For what sums and differences write the max |x| of their terms, and of those of which these are made, by batch.

    What these lost is lost behind, too: of (v2 − 1) − v1, which is −1, what v2 and v1 did. In one pass, since of a long chain
    each is made of all before.
    """
    found: dict[str, npt.NDArray[np.float64]] = {}
    for node in graph.nodes:
        is_sum = node.standard_op in ADDS and bool(find_lost_terms(graph, ranges, node))
        behind = [found[name] for name in node.inputs if name in found]
        if is_sum:
            behind.append(_read_most(ranges, node.inputs))
        if behind and (is_sum or node.standard_op in _KEEPS_ELEMENTS):
            found[node.outputs[0]] = np.fmax.reduce(behind)
    return found


def _read_most(ranges: RangeTable, tensors: Iterable[str]) -> npt.NDArray[np.float64]:
    most: Array = np.fmax.reduce([read_maxima(ranges, name) for name in tensors])
    return most
