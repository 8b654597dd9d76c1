"""A constant out of FP16's range marks everything downstream that can carry its value.

Whatever the data showed: a padding mask of -3.4e38 may not have been used by any calibration sample,
and turns into -inf, or NaN, with the first one that does. An infinity is one in FP16 as well, and what FP32 makes
of it, FP16 makes too, but for a product with what FP16 rounds to zero, and behind a finite bound that FP16 cannot
hold.
Nodes inside the bodies of control flow are judged body by body: see control_flow.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from overflow_fixer.evidence.constants.carriers import (
    find_carriers,
    makes_a_number,
    may_be_float,
    may_replace,
)
from overflow_fixer.evidence.constants.huge_values import is_bound
from overflow_fixer.evidence.constants.traces import (
    STEPS,
    Origin,
    Trace,
    Traces,
    is_like_others,
    reach_of_steps,
)
from overflow_fixer.formats import FP16_MAX, FP16_OVERFLOW, FP16_UNDERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import CASTS, MATRIX_PRODUCTS
from overflow_fixer.records import Action, Finding, PlanPolicy, RangeTable

RULE = "constant_range"

_MULTIPLY = MATRIX_PRODUCTS | frozenset("Mul Conv ConvTranspose BatchNormalization PRelu".split())
"""Operators that make NaN of an infinity where another factor is zero."""


def find_constants_out_of_range(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each constant out of range that the node reads, or whose value an input of it can carry."""
    reached = find_carriers(graph, ranges)
    carried: dict[Origin, str] = {}
    harmless: dict[Origin, str] = {}
    for origin, name, why in _meet(node, graph, ranges, reached):
        if why:
            harmless.setdefault(origin, why)
        else:
            carried.setdefault(origin, name)
    for origin, name in carried.items():
        how = "reads it" if name == origin.tensor else f"{name} can carry it"
        yield _finding(node, origin, f"{how}: {_describe(origin)}")
    for origin in (found for found in harmless if found not in carried):
        yield _finding(node, origin, f"{_describe(origin)}{harmless[origin]}, so nothing changes", "none")
    for trace in reached.get(node.outputs[0], ()) if node.standard_op == "ConstantOfShape" else ():
        action: Action = "none" if trace.origin.is_infinite else "pin"
        yield _finding(node, trace.origin, f"writes it: {_describe(trace.origin)}", action)


def _meet(node: Node, graph: Graph, ranges: RangeTable, reached: Traces) -> Iterator[tuple[Origin, str, str]]:
    """What comes into the node, by which tensor, and why it changes nothing, where it does not."""
    for slot, name in enumerate((*node.inputs, *node.captured)):
        for trace in reached.get(name, ()) if _is_of_floats(node, name, graph) else ():
            why = _excuse(node, slot, trace, graph, ranges, reached)
            if why is not None:
                yield trace.origin, name, why


def _excuse(
    node: Node, slot: int, trace: Trace, graph: Graph, ranges: RangeTable, reached: Traces
) -> str | None:
    """Why what comes in there changes nothing, "" where it does; None where nothing is to be said of it."""
    is_itself = (*node.inputs, *node.captured)[slot] == trace.origin.tensor
    if is_itself and _is_only_bound(node, slot, trace, reached, graph):
        return ", but it is only a bound that no FP16 value passes"
    if trace.origin.is_infinite and not (
        makes_a_number(node, slot, graph, reached) or _meets_vanishing(node, slot, ranges)
    ):
        return " as FP32 does" if is_itself else None
    return None if is_like_others(node, slot, trace, reached) else ""


def _meets_vanishing(node: Node, slot: int, ranges: RangeTable) -> bool:
    """Whether the node multiplies what comes in there by numbers of which FP16 makes zero, or may: their smallest was not taken."""
    factors = node.inputs if node.standard_op == "Einsum" else node.inputs[:2]
    others = [name for other, name in enumerate(factors) if other != slot and node.standard_op in _MULTIPLY]
    seen = [ranges.get(name) for name in others]
    return any(one is None or (one.max_abs and not one.min_nonzero_abs > FP16_UNDERFLOW) for one in seen)


def _is_only_bound(node: Node, slot: int, trace: Trace, reached: Traces, graph: Graph) -> bool:
    return is_bound(node, slot, trace.signs, graph) and not may_replace(node, slot, reached, graph)


def _is_of_floats(node: Node, tensor: str, graph: Graph) -> bool:
    """Whether what the node does to the tensor is a matter of FP16: it is of floats, or becomes so."""
    is_quantized = node.standard_op == "DequantizeLinear" and graph.dtypes.get(tensor) in STEPS
    is_made_float = is_quantized and reach_of_steps(node, graph) >= FP16_OVERFLOW
    return may_be_float(tensor, graph) or node.standard_op in CASTS or is_made_float


def _finding(node: Node, origin: Origin, reason: str, action: Action = "pin") -> Finding:
    return Finding(RULE, node.label, origin.tensor, origin.value, FP16_MAX, reason, action=action)


def _describe(origin: Origin) -> str:
    why = "which FP16 holds" if origin.is_infinite else "which FP16 cannot"
    if math.isinf(origin.value) and not origin.is_infinite:
        why = "beside or behind which are finite numbers that FP16 cannot hold"
    return f"the constant {origin.tensor} holds {origin.value:.6g}, {why}"
