"""Outputs of which a Where fills elements with a constant, as masked_fill is exported, or of which a mask is added to elements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from overflow_fixer.annotations import held_to_types
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.metrics.fills import LEAST_MASK
from overflow_fixer.patterns.tracing import constant_operand, origin

_MOST_MOVES = 8
"""Nodes that move a mask between where it is made and where it is added."""


@held_to_types
def find_fills(graph: Graph) -> Mapping[str, tuple[float, ...]]:
    """By float output, the constants that a Where puts in place of what is computed, and those that an Add puts onto it as a mask.

    What is filled so is moved into the output. Constants are those that are one finite number but 0. A Where between two constants has
    none, since what it chooses is all that it tells; but where another Where puts its choice in place of what is computed, both are
    such constants. A mask is a product with a constant of -1000 or less, or what a Where chooses, or what a Sub takes off with the
    other sign; whether it is one, only values show.
    """
    found = {name: _find_numbers(graph, name) for name in graph.outputs if graph.is_float(name)}
    return {name: tuple(sorted(numbers)) for name, numbers in found.items() if numbers}


def _find_numbers(graph: Graph, output: str) -> set[float]:
    numbers: set[float] = set()
    pending, seen = [(output, False)], {output}
    while pending:
        tensor, is_beside = pending.pop()
        node = graph.producers.get(tensor)
        if node is None:
            continue
        for slot in range(len(node.inputs)):
            name = node.inputs[slot]
            if _hands_on(node, slot) and name not in seen and name not in graph.constants:
                seen.add(name)
                pending.append((name, is_beside or _stands_beside_computed(graph, node, slot)))
        if node.standard_op == "Where":
            constants = [graph.constants.get(origin(graph, name)) for name in node.inputs[1:]]
            if is_beside or not all(constants):
                numbers.update(number for name in node.inputs[1:] for number in _read_number(graph, name))
        numbers.update(number for number in _read_added(graph, node) if number <= LEAST_MASK)
    return numbers


def _hands_on(node: Node, slot: int) -> bool:
    return moves(node, slot) or (node.standard_op == "Where" and slot > 0)


def _stands_beside_computed(graph: Graph, node: Node, slot: int) -> bool:
    """Whether a Where puts what comes in here in place of what is neither a constant nor chosen by another Where."""
    if node.standard_op != "Where":
        return False
    other = origin(graph, node.inputs[3 - slot])
    producer = graph.producers.get(other)
    return other not in graph.constants and (producer is None or producer.standard_op != "Where")


def _read_added(graph: Graph, node: Node) -> Iterator[float]:
    """The constants of what an Add adds or, with other signs, a Sub takes off: a product with one, or what a Where chooses."""
    if node.standard_op not in ("Add", "Sub"):
        return
    sign, slots = (1, (0, 1)) if node.standard_op == "Add" else (-1, (1,))
    for slot in slots:
        maker = _find_maker(graph, node.inputs[slot])
        names = () if maker is None else _find_factors(graph, maker)
        yield from (sign * number for name in names for number in _read_number(graph, name))


def _find_factors(graph: Graph, maker: Node) -> tuple[str, ...]:
    """The constant that a Mul multiplies by, or what a Where chooses among."""
    if maker.standard_op == "Where":
        return maker.inputs[1:]
    found = constant_operand(graph, maker) if maker.standard_op == "Mul" else None
    return found[1:] if found else ()


def _find_maker(graph: Graph, tensor: str) -> Node | None:
    """The node that computes what is moved into the tensor, by at most eight nodes."""
    node = graph.producers.get(tensor)
    for _ in range(_MOST_MOVES):
        if node is None or not moves(node, 0):
            break
        node = graph.producers.get(node.inputs[0])
    return node


def _read_number(graph: Graph, tensor: str) -> Iterator[float]:
    """What the constant holds, where it is one finite number but 0."""
    constant = graph.constants.get(origin(graph, tensor))
    if constant is not None and math.prod(constant.dims) == 1:
        value = graph.find_constant(origin(graph, tensor))
        number = 0.0 if value is None else float(value.reshape(-1)[0])
        if number and math.isfinite(number):
            yield number
