"""Evidence by the nodes that it concerns."""

from __future__ import annotations

from typing import NamedTuple

from onnx import helper

from overflow_fixer.graph.nodes import Node
from overflow_fixer.rules.by_node import list_by_node


class _Loss(NamedTuple):
    tensor: str
    nodes: tuple[Node, ...]


def test_each_node_has_what_concerns_it_once_in_the_order_found() -> None:
    a, b, c = (Node.of(i, name, helper.make_node("Neg", ["x"], [name])) for i, name in enumerate("abc"))
    first, second, none = _Loss("t", (b, a, b)), _Loss("s", (a, c)), _Loss("u", ())
    assert list_by_node(iter([first, second, none])) == {"b": [first], "a": [first, second], "c": [second]}
