"""Where the loss of a tensor that FP16 holds badly shows in the end, and how large it must be for that.

Each operator scales a loss, and a sum hides it beside what is larger. So what must be lost of a tensor follows from what
must be lost of those that are made of it: it is told in one pass back through the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from overflow_fixer.evidence.semantics import moves, readers
from overflow_fixer.evidence.zeros.near_zero import ELEMENTWISE, PLACES, SUMS, TERMS
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable

_OWN_ROUNDING = 2.0**-11
"""What an output loses by its own rounding, as a share of its largest value."""
_WEIGHTED = frozenset("Conv ConvTranspose Gemm".split())
_ADDED = dict.fromkeys(
    [*_WEIGHTED, "BatchNormalization", "LayerNormalization", "InstanceNormalization", "GroupNormalization"], 2
)
"""Operators that add what they read in a slot; a Gemm scales it first."""
_HANDS_ON = ELEMENTWISE | SUMS | TERMS | _ADDED.keys()
_CHOOSES = frozenset("ArgMax ArgMin Hardmax".split())


class Shown(NamedTuple):
    """The least loss that shows, and in words where."""

    least: float
    end: str


class _Passed(NamedTuple):
    """How many times a loss an output has; it is gone where that is not `least` there."""

    gain: float
    least: float = 0.0


@lru_cache(maxsize=1)
def find_shown(graph: Graph, ranges: RangeTable) -> Mapping[tuple[str, str], Shown]:
    """By the label of a node and a tensor that it reads, which loss of that shows by what the node makes of it, if any."""
    found: dict[tuple[str, str], Shown] = {}
    for node in reversed(graph.nodes):
        ends = list(_find_ends(graph, node, found))
        for tensor in filter(None, dict.fromkeys(node.inputs)):
            ways = _find_ways(graph, ranges, node, tensor, ends)
            shown = min(ways, key=lambda way: way.least, default=None)
            if shown is not None:
                found[node.label, tensor] = shown
    return found


def _find_ends(
    graph: Graph, node: Node, found: Mapping[tuple[str, str], Shown]
) -> Iterator[tuple[str, Shown]]:
    """Each output in which a loss shows, with the least that does: those that the model gives out first, then the last."""
    yield from ((name, Shown(0.0, f"{name} shows it")) for name in node.writes if name in graph.outputs)
    for name in reversed(node.writes):
        read = [reader.label for reader, _ in readers(graph, name)]
        behind = (found[label, name] for label in reversed(read) if (label, name) in found)
        shown = min(behind, key=lambda way: way.least, default=None)
        if shown is not None:
            yield name, shown


def _find_ways(
    graph: Graph, ranges: RangeTable, node: Node, tensor: str, ends: Iterable[tuple[str, Shown]]
) -> Iterator[Shown]:
    """Where a loss in what the node reads shows, by what it makes of it in its outputs."""
    if node.standard_op in _CHOOSES:
        yield Shown(0.0, f"{node.op_type} {node.label} chooses by it")
        return
    for output, end in ends:
        passed = _pass(graph, ranges, node, tensor, output)
        least = None if passed is None else _carry_back(passed, end.least)
        if least is not None:
            yield Shown(least, end.end)


def _carry_back(passed: _Passed, least: float) -> float | None:
    """What must come in for as much to go out; None where nothing does, as behind an infinite tensor, or before NaN."""
    if math.isnan(passed.least):
        return None
    needed = max(passed.least, least)
    if needed == 0 or passed.gain == math.inf:
        return 0.0
    return needed / passed.gain if passed.gain > 0 else None


def _pass(graph: Graph, ranges: RangeTable, node: Node, tensor: str, output: str) -> _Passed | None:
    """What becomes, in an output of a node, of a loss in a tensor that it reads; None where it is gone."""
    op, read, written = node.standard_op, ranges.get(tensor), ranges.get(output)
    is_moved = op in PLACES or moves(node, node.inputs.index(tensor))
    if not op or read is None or written is None or is_moved:
        return _Passed(1.0)
    if read.max_abs == 0 or written.max_abs == 0:
        return None
    if op == "BatchNormalization" and tensor == node.inputs[4]:
        return None  # vanishing_constant judges what its epsilon makes of it
    if op not in _HANDS_ON:
        return None
    gain = _find_gain(graph, ranges, node, tensor, written.max_abs / read.max_abs)
    return _Passed(gain, 0.0 if op in ELEMENTWISE else written.max_abs * _OWN_ROUNDING)


def _find_gain(graph: Graph, ranges: RangeTable, node: Node, tensor: str, ratio: float) -> float:
    """How many times a loss of the tensor the output has, which is `ratio` times as large."""
    op = node.standard_op
    if [slot for slot, name in enumerate(node.inputs) if name == tensor] == [_ADDED.get(op)]:
        return abs(float(node.value_of("beta", 1.0)))
    if op in _WEIGHTED or op == "BatchNormalization":
        return _through_weights(graph, ranges, node, tensor)
    return ratio if op in ELEMENTWISE or op in SUMS else 1.0


def _through_weights(graph: Graph, ranges: RangeTable, node: Node, tensor: str) -> float:
    """In a product, beside a bias that may be all that the output shows: what the other factor makes of it."""
    read, written = ranges.by_tensor[tensor], ranges.by_tensor[node.outputs[0]]
    if node.standard_op == "BatchNormalization":
        gain = _gain_of_normalization(ranges, node, tensor)
    else:
        gain = _gain(graph, ranges, node, tensor)
    return min(written.max_abs / read.max_abs, gain)


def _gain_of_normalization(ranges: RangeTable, node: Node, tensor: str) -> float:
    """What BatchNormalization multiplies data and means with; inf for its scale, and where that is not known."""
    scale, variance = ranges.get(node.inputs[1]), ranges.get(node.inputs[4])
    added = node.value_of("epsilon", 1e-5)
    if tensor == node.inputs[1] or scale is None or variance is None or variance.min + added <= 0:
        return math.inf
    return scale.max_abs / math.sqrt(variance.min + added)


def _gain(graph: Graph, ranges: RangeTable, node: Node, tensor: str) -> float:
    """How much larger rounding noise typically gets, bias aside: its sum over n terms grows by the root of n.

    inf where there is no bias, or the weights are not constant.
    """
    weight = graph.constants.get(node.inputs[1])
    other = ranges.get(node.inputs[0 if tensor == node.inputs[1] else 1])
    if len(node.inputs) < 3 or not node.inputs[2] or weight is None or other is None:
        return math.inf
    return (
        other.max_abs * math.sqrt(_count_terms(node, weight.dims)) * abs(float(node.value_of("alpha", 1.0)))
    )


def _count_terms(node: Node, weight: Sequence[int]) -> float:
    """How many products of data and weights, of these dimensions, are added up in an element; of a ConvTranspose at most so many."""
    if node.standard_op == "Gemm":
        return weight[1] if node.value_of("transB", 0) else weight[0]
    channels = weight[1] if node.standard_op == "Conv" else weight[0] / node.value_of("group", 1)
    return channels * math.prod(weight[2:])
