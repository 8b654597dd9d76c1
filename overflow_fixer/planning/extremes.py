"""How far tensors can reach whatever is fed: what Clip, Max, Min and Relu bound, what a Sigmoid or Softmax gives, and constants.

What such a tensor was measured at is no sample of more: a Clip at 10000 gives out 10000 for any larger value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable

Extremes = tuple[float, float]
"""The least and the greatest value; -inf and inf where they are not known."""
UNKNOWN: Extremes = (-math.inf, math.inf)


def find_extremes(graph: Graph, ranges: RangeTable) -> dict[str, Extremes]:
    """Of each tensor of the main graph that has a bound, the least and the greatest value that it can hold.

    NaN is no value. A constant that a batch may replace has no bound.
    """
    found: dict[str, Extremes] = {}
    for name in graph.constants.keys() - graph.defaults:
        seen = ranges.get(name)
        if seen is not None and seen.element_count and not seen.nan_count:
            found[name] = (seen.min, seen.max)
    for node in graph.nodes:
        extremes = _pass_on(graph, node, found)
        if extremes != UNKNOWN:
            found.update(dict.fromkeys(node.writes, extremes))
    return found


def _pass_on(graph: Graph, node: Node, found: Mapping[str, Extremes]) -> Extremes:
    op, read = node.standard_op, [found.get(name, UNKNOWN) for name in node.inputs]
    if op == "Clip":
        low = _clip_bound(node, ("min", 1), found, -math.inf)
        return _least_of([_greatest_of([read[0], low]), _clip_bound(node, ("max", 2), found, math.inf)])
    if op in _BOUNDS:
        return _BOUNDS[op](read)
    if op in _RESULTS:
        return _RESULTS[op]
    is_cast = len({graph.dtypes.get(name) for name in (node.inputs[:1] + node.outputs)}) > 1
    return _join(read if op == "Concat" else read[:1]) if moves(node, 0) and not is_cast else UNKNOWN


def _clip_bound(node: Node, where: tuple[str, int], found: Mapping[str, Extremes], absent: float) -> Extremes:
    """Clip's bound: an attribute below opset 11, an input since."""
    name, slot = where
    attribute = node.attribute(name)
    if attribute is not None:
        return attribute.f, attribute.f
    is_given = slot < len(node.inputs) and node.inputs[slot]
    return found.get(node.inputs[slot], UNKNOWN) if is_given else (absent, absent)


def _greatest_of(read: Sequence[Extremes]) -> Extremes:
    return max(low for low, _ in read), max(high for _, high in read)


def _least_of(read: Sequence[Extremes]) -> Extremes:
    return min(low for low, _ in read), min(high for _, high in read)


def _join(read: Sequence[Extremes]) -> Extremes:
    return min(low for low, _ in read), max(high for _, high in read)


_BOUNDS: Mapping[str, Callable[[Sequence[Extremes]], Extremes]] = {
    "Max": _greatest_of,
    "Min": _least_of,
    "Relu": lambda read: _greatest_of([read[0], (0.0, 0.0)]),
    "Where": lambda read: _join(read[1:]),
}

_RESULTS: Mapping[str, Extremes] = {
    **dict.fromkeys(("HardSigmoid", "Hardmax", "Sigmoid", "Softmax"), (0.0, 1.0)),
    **dict.fromkeys(("Cos", "Erf", "Sign", "Sin", "Softsign", "Tanh"), (-1.0, 1.0)),
}
"""What an operator gives of anything."""
