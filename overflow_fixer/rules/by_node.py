"""What is found of a graph as a whole, node by node: so rules are asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from overflow_fixer.graph.nodes import Node


class Concerning(Protocol):
    """What concerns some nodes, in any order; one may be told more than once."""

    @property
    def nodes(self) -> Iterable[Node]: ...


Found = TypeVar("Found", bound=Concerning)


def list_by_node(found: Iterable[Found]) -> dict[str, list[Found]]:
    """By the label of each node concerned, what concerns it, each once, in the order in which it is found."""
    by_label: dict[str, list[Found]] = {}
    for one in found:
        for label in dict.fromkeys(node.label for node in one.nodes):
            by_label.setdefault(label, []).append(one)
    return by_label
