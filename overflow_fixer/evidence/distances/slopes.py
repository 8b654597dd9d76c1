"""By what share of itself a node's output changes with what it reads: 1 of an exponential, as steep of 1 / (1 + d) near d = 0."""

from __future__ import annotations

import math
from collections.abc import Iterator

from overflow_fixer.evidence.measured import find_least
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import DIVISOR_SLOTS
from overflow_fixer.graph.powers import read_exponent
from overflow_fixer.records import RangeTable

_SLOTS = {**DIVISOR_SLOTS, "Pow": 0}
STEEP = _SLOTS.keys() | {"Sigmoid"}
"""Operators that may be so steep."""


def find_slopes(graph: Graph, ranges: RangeTable, node: Node) -> Iterator[tuple[str, float]]:
    """Each tensor that a quotient, a negative power or a Sigmoid reads so, and that share where it is most of the largest output.

    None of a divisor that was seen at zero, or with both signs, and of what was not measured or is not finite.
    """
    if node.standard_op == "Sigmoid":
        slope = _read_sigmoid(ranges, node.inputs[0])
        yield from [(node.inputs[0], slope)] if slope else ()
        return
    power = -read_exponent(graph, node) if node.standard_op == "Pow" else 1.0
    divisor = _SLOTS.get(node.standard_op)
    if divisor is not None and power > 0 and node.inputs[divisor] not in graph.constants:
        least = abs(find_least(ranges, node.inputs[divisor]))
        yield from [(node.inputs[divisor], power / least)] if least else ()


def _read_sigmoid(ranges: RangeTable, tensor: str) -> float:
    """The steepest slope that was seen, beside the largest output; 0 where it is unknown."""
    seen = ranges.get(tensor)
    if seen is None or seen.nan_count or not math.isfinite(seen.max_abs):
        return 0.0
    steepest = math.exp(-min(abs(min(max(0.0, seen.min), seen.max)), 80.0))
    return steepest / (1 + steepest) ** 2 * (1 + math.exp(-max(min(seen.max, 80.0), -80.0)))
