"""Whole turns that are taken out of an angle before its sine: x % 1, or x - floor(x), and that times 2π."""

from __future__ import annotations

import math
from typing import NamedTuple

from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ROUNDS
from overflow_fixer.patterns.tracing import read_number

_LONGEST = 32
"""A chain of more steps is no angle that is made ready."""


class Angle(NamedTuple):
    """What a node takes the sine of: so many radians for each 1 of `tensor`, whole turns apart, and the nodes between, the last first."""

    tensor: str
    radians: float
    way: tuple[Node, ...]


class _Step(NamedTuple):
    """A node that moves, shifts by a constant, or multiplies by one number; what it reads, and the number."""

    node: Node
    read: str
    factor: float


def unwrap(graph: Graph, node: Node) -> Angle:
    """The tensor from which whole turns were taken out before the node, behind moves, constant factors and constant phases.

    Where none were, what the node reads.
    """
    steps, made = _walk_back(graph, node.inputs[0])
    wrapping = graph.producers.get(made)
    turns = _find_turns(graph, wrapping) if wrapping is not None else ()
    if wrapping is None or not turns:
        return Angle(node.inputs[0], 1.0, ())
    radians = math.prod(abs(step.factor) for step in steps)
    return Angle(wrapping.inputs[0], radians, (*(step.node for step in steps), *turns))


def _walk_back(graph: Graph, tensor: str) -> tuple[list[_Step], str]:
    """The steps before the tensor, the last first, and the tensor before these."""
    steps: list[_Step] = []
    while len(steps) < _LONGEST and (step := _find_step(graph, tensor)) is not None:
        steps.append(step)
        tensor = step.read
    return steps, tensor


def _find_step(graph: Graph, tensor: str) -> _Step | None:
    node = graph.producers.get(tensor)
    if node is None or moves(node, 0) or node.standard_op == "Neg":
        return None if node is None else _Step(node, node.inputs[0], 1.0)
    computed = [name for name in node.inputs if name not in graph.constants]
    if node.standard_op not in ("Add", "Sub", "Mul", "Div") or len(computed) != 1:
        return None
    factor = _read_factor(graph, node, computed[0])
    return _Step(node, computed[0], factor) if factor and math.isfinite(factor) else None


def _read_factor(graph: Graph, node: Node, computed: str) -> float:
    """What the node multiplies by; 0 where that is not one number, or it divides by what is computed."""
    if node.standard_op in ("Add", "Sub"):
        return 1.0
    number = read_number(graph, next(name for name in node.inputs if name != computed)) or 0.0
    if node.standard_op == "Mul" or not number:
        return number
    return 1 / number if node.inputs[0] == computed else 0.0


def _find_turns(graph: Graph, node: Node) -> tuple[Node, ...]:
    """The nodes that take whole turns out of the first input of this one, the last; empty where it does not."""
    if node.standard_op == "Mod":
        return (node,)
    if node.standard_op != "Sub":
        return ()
    behind, rounded = _walk_back(graph, node.inputs[1])
    rounding = graph.producers.get(rounded)
    if rounding is None or rounding.standard_op not in ROUNDS:
        return ()
    before = _find_steps_from(graph, node.inputs[0], rounding.inputs[0])
    if before is None or not math.isclose(math.prod(s.factor for s in (*behind, *before)), 1, rel_tol=1e-3):
        return ()
    return (node, *(step.node for step in behind), rounding, *(step.node for step in before))


def _find_steps_from(graph: Graph, source: str, tensor: str) -> list[_Step] | None:
    """The steps from one tensor to the other, the last first; None where they do not lead there."""
    steps, _ = _walk_back(graph, tensor)
    places = [tensor, *(step.read for step in steps)]
    return steps[: places.index(source)] if source in places else None
