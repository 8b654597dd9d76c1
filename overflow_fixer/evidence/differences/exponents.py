"""Squared distances in an exponent, written out as |a|² + |b|² − 2ab: a kernel exp(−d / s), or a Softmax of them.

The error of the exponent is that of the distance over s: what FP16's steps at |a|² are, however near the two points.
"""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.evidence.differences.chosen_differences import is_distance
from overflow_fixer.evidence.differences.divided_differences import MOST_ROUNDED, find_sources
from overflow_fixer.evidence.differences.small_differences import (
    LostDifference,
    find_terms,
    is_finite,
    tell_steps,
)
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.evidence.zeros.cancellation import find_least
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.softmax import find_softmax
from overflow_fixer.records import RangeTable

_LARGEST_STEP = 1 / 8
"""Of an exponent: rounding to larger ones (rms 0.036) leaves its exponential less than 29 dB."""
_MOST_STEPS = 16
_KEEPS = frozenset("Neg Relu Clip TopK ReduceMin ReduceMax".split())


def find_exponents(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each of which FP16's steps in the exponent are larger than 1/8, whatever the distance; the value is the step.

    Behind moves, choices, bounds, signs and constant factors. None of terms or distances with NaN or infinities.
    """
    for reader, exponent in _find_readers(graph):
        node, scale = _find_distance(graph, ranges, exponent)
        if node is None or not all(
            is_finite(graph, ranges, name) for name in (*find_terms(graph, node), *node.writes)
        ):
            continue
        term = max(abs(find_least(ranges, name)) for name in find_terms(graph, node))
        step = float(step_at(term)) * scale
        if step > _LARGEST_STEP:
            sources = find_sources(graph, ranges, node, _LARGEST_STEP / scale * MOST_ROUNDED)
            name = node.outputs[0]
            reason = (
                f"{reader.op_type} {reader.label} takes {scale:.6g} times {name} for an exponent, whose terms are {term:.6g} "
                f"and more: {tell_steps(term)}, and {step:.3g} in the exponent"
            )
            yield LostDifference(tuple(sources), name, step, _LARGEST_STEP, reason)


def _find_readers(graph: Graph) -> Iterator[tuple[Node, str]]:
    """Each Exp and Softmax with its exponent; of a Softmax that is written out its last node, with what it is of; none of a LogSoftmax.

    A Softmax under a Log is one: its errors stand beside logarithms as large as the exponents.
    """
    inside = set[str]()
    for region in find_softmax(graph):  # a LogSoftmax before the Softmax that is part of it
        if region.kind == "Softmax" and not inside.issuperset(region.nodes):
            yield graph.producers[region.output], region.source
        inside.update(region.nodes)
    for node in graph.nodes:
        if node.standard_op in ("Exp", "Softmax") and node.label not in inside:
            yield node, node.inputs[0]


def _find_distance(graph: Graph, ranges: RangeTable, tensor: str) -> tuple[Node | None, float]:
    """The distance that a tensor is made of, and what that is multiplied by, without its sign; None where it is made otherwise."""
    scale = 1.0
    for _ in range(_MOST_STEPS):
        node = graph.producers.get(tensor)
        if node is None or (is_distance(graph, node) and find_terms(graph, node)):
            return node, scale
        factor = _read_factor(graph, ranges, node)
        slot = 1 if factor and node.inputs[0] in graph.constants else 0
        if not factor and node.standard_op not in _KEEPS and not moves(node, 0):
            return None, scale
        tensor, scale = node.inputs[slot], scale * (factor or 1.0)
    return None, scale


def _read_factor(graph: Graph, ranges: RangeTable, node: Node) -> float:
    """What a node multiplies by, if that is one constant number; 0 where it does not."""
    constants = [name for name in node.inputs if name in graph.constants]
    seen = ranges.get(constants[0]) if len(constants) == 1 else None
    is_quotient = node.standard_op == "Div" and constants == [*node.inputs[1:]]
    if seen is None or not (is_quotient or node.standard_op == "Mul") or seen.min != seen.max:
        return 0.0
    return 1 / seen.max_abs if is_quotient and seen.max_abs else seen.max_abs
