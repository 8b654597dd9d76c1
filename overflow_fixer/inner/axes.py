"""The axes that a reduction goes over, as attributes and constants tell them, or the model computes them."""

from __future__ import annotations

import numpy as np

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node


def find_live_axes(graph: Graph, node: Node) -> str:
    """The tensor of them, where the model computes them; "" elsewhere."""
    given = node.inputs[1] if len(node.inputs) > 1 else ""
    return given if graph.read_fixed(given) is None else ""


def read_axes(graph: Graph, node: Node) -> list[int] | None:
    """Those of a node that does not have them computed; [] for all, None where it reduces none."""
    constant = graph.read_fixed(node.inputs[1]) if len(node.inputs) > 1 else None
    attribute: list[int] = node.value_of("axes", [])
    axes = attribute if constant is None else np.asarray(constant, np.int64).reshape(-1).tolist()
    is_none = not axes and node.value_of("noop_with_empty_axes", 0)
    return None if is_none else axes
