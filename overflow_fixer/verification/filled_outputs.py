"""Outputs of which a Where fills elements with a constant, as masked_fill is exported."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.tracing import origin
from overflow_fixer.rules.semantics import moves


def find_fills(graph: Graph) -> Mapping[str, tuple[float, ...]]:
    """By float output, the constants that a Where puts in place of what is computed, and that are moved into the output.

    Those that are one finite number but 0. A Where between two constants has none: what it chooses is all that it tells.
    """
    found = {name: _find_numbers(graph, name) for name in graph.outputs if graph.is_float(name)}
    return {name: tuple(sorted(numbers)) for name, numbers in found.items() if numbers}


def _find_numbers(graph: Graph, output: str) -> set[float]:
    numbers: set[float] = set()
    pending, seen = [output], {output}
    while pending:
        node = graph.producers.get(pending.pop())
        if node is None:
            continue
        fresh = [name for slot, name in enumerate(node.inputs) if _hands_on(node, slot) and name not in seen]
        seen.update(fresh)
        pending += [name for name in fresh if name not in graph.constants]
        if node.standard_op == "Where":
            constants = [graph.constants.get(origin(graph, name)) for name in node.inputs[1:]]
            if not all(constants):
                numbers.update(number for name in node.inputs[1:] for number in _read_number(graph, name))
    return numbers


def _hands_on(node: Node, slot: int) -> bool:
    return moves(node, slot) or (node.standard_op == "Where" and slot > 0)


def _read_number(graph: Graph, tensor: str) -> Iterator[float]:
    """What the constant holds, where it is one finite number but 0."""
    constant = graph.constants.get(origin(graph, tensor))
    if constant is not None and math.prod(constant.dims) == 1:
        value = graph.read_constant(origin(graph, tensor))
        number = 0.0 if value is None else float(value.reshape(-1)[0])
        if number and math.isfinite(number):
            yield number
