"""The states of a Loop or Scan that each run of the body hands on as it got them: weights, in some exporters' recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping

from overflow_fixer.graph.body_graphs import Body
from overflow_fixer.ranges.interpretation import find_carried


def find_unchanged(body: Body) -> Mapping[str, str]:
    """By the body's input, the tensor of the outer graph whose value it has in every run."""
    handed_on = find_carried(body)
    first = 1 if body.node.op_type == "Loop" else 0
    places = zip(body.inputs[first:], body.node.inputs[first:], handed_on, strict=False)
    return {name: given for name, given, after in places if given and _find_origin(body, after) == name}


def _find_origin(body: Body, name: str) -> str:
    """What the tensor is before the Identities in front of it."""
    node = body.graph.producers.get(name)
    while node is not None and node.standard_op == "Identity":
        name = node.inputs[0]
        node = body.graph.producers.get(name)
    return name
