"""Ways through a graph, from a tensor to the nodes that it matters to, and back to those that make it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from overflow_fixer.evidence.semantics import moves, readers
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node

Step = Callable[[Node, int], bool]
"""Of a node and the slot at which it reads a tensor."""
Entry = Callable[[Node, str], bool]
"""Of a node and a tensor that it writes."""


def find_ways(
    graph: Graph, tensor: str, goes_on: Step, is_end: Step, enters: Entry = lambda node, output: True
) -> tuple[Node, ...]:
    """Every node on a way from `tensor` to a node that `is_end`, at whichever slot it comes there, in topological order.

    A way goes on through a node where `goes_on` says so, into those of its outputs that it `enters`. Bodies of control flow
    are not looked into.
    """
    behind: dict[str, list[Node]] = {}
    ends: list[Node] = []
    passed: set[str] = set()
    pending: list[tuple[str, Node | None]] = [(tensor, None)]
    while pending:
        name, writer = pending.pop()
        for reader, slot in readers(graph, name):
            behind.setdefault(reader.label, []).extend([writer] if writer is not None else [])
            if is_end(reader, slot):
                ends.append(reader)
            elif reader.label not in passed and goes_on(reader, slot):
                passed.add(reader.label)
                pending.extend((output, reader) for output in list_values(reader) if enters(reader, output))
    return lead_back(behind, ends)


def find_leading(graph: Graph, goes_on: Step, is_end: Step) -> frozenset[str]:
    """Every tensor from which there are such ways, in one pass: of a long chain each is before all others."""
    found = set[str]()
    for node in reversed(graph.nodes):
        is_led_on = not found.isdisjoint(list_values(node))
        found.update(
            name
            for slot, name in enumerate(node.inputs)
            if is_end(node, slot) or (is_led_on and goes_on(node, slot))
        )
    return frozenset(found)


def list_values(node: Node) -> list[str]:
    """What it writes; of TopK the values alone, and not their places."""
    return [name for name in (node.outputs[:1] if node.standard_op == "TopK" else node.outputs) if name]


def tells_places(graph: Graph, node: Node) -> bool:
    """Whether it is a TopK, and the places of what it chooses are read, or given out."""
    places = node.outputs[1:] if node.standard_op == "TopK" else ()
    return any(name in graph.outputs or graph.consumers.get(name) for name in places)


def lead_back(behind: Mapping[str, Sequence[Node]], ends: Iterable[Node]) -> tuple[Node, ...]:
    """Every node from which `behind` leads to one of `ends`, these included, in topological order."""
    pending = list(ends)
    found = {node.label: node for node in pending}
    while pending:
        for node in behind.get(pending.pop().label, ()):
            if node.label not in found:
                found[node.label] = node
                pending.append(node)
    return tuple(sorted(found.values(), key=lambda node: node.index))


def walk_back(graph: Graph, tensor: str, goes_on: Callable[[Node, str], bool]) -> Iterator[Node]:
    """The node that writes the tensor, and those that write what it and they read, where `goes_on` says so of node and input."""
    pending, seen = [tensor], {tensor}
    while pending:
        node = graph.producers.get(pending.pop())
        if node is None:
            continue
        yield node
        fresh = [name for name in dict.fromkeys(node.inputs) if name not in seen and goes_on(node, name)]
        seen.update(fresh)
        pending += fresh


def trace_moves(graph: Graph, tensor: str, most: float = math.inf) -> tuple[str, list[Node]]:
    """The tensor that this one has the elements of, and the nodes, so many at most, that move them, the last first."""
    movers: list[Node] = []
    while (node := graph.producers.get(tensor)) is not None and moves(node, 0) and len(movers) < most:
        movers.append(node)
        tensor = node.inputs[0]
    return tensor, movers


def find_given(graph: Graph, tensor: str, goes_on: Step) -> str | None:
    """The output of the model that the tensor is, or that ways lead to on which every node goes on; None without one."""
    pending, seen = [tensor], {tensor}
    while pending:
        name = pending.pop()
        if name in graph.outputs:
            return name
        for reader, slot in readers(graph, name):
            fresh = [one for one in list_values(reader) if one not in seen] if goes_on(reader, slot) else []
            seen.update(fresh)
            pending += fresh
    return None
