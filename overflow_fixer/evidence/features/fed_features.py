"""Features: what is fed to the model, and reaches the node that reads it moved and scaled by constants at most."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from overflow_fixer.evidence.origins import Walked, find_origins
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.feature_operators import hands_features_on
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable

_MOST_MADE = 1024
"""Of more tensors no input is made ready."""


def find_movers(
    graph: Graph, ranges: RangeTable, node: Node, source: str, limit: float, walked: Walked | None = None
) -> Iterator[Node]:
    """The node, and those that round what it reads of features; none of other domains, which stay in FP32 by themselves.

    `walked` as of find_origins.
    """
    origins = (find_origins(graph, ranges, name, limit, walked) for name in _list_handed(graph, source))
    found = dict.fromkeys(chain((node,), chain.from_iterable(origins)))
    yield from (one for one in found if one.is_standard)


def _list_handed(graph: Graph, tensor: str) -> Iterator[str]:
    """The tensor, or where ai.onnx.ml's operators hand features on to it, the floats that they were handed."""
    writer = graph.producers.get(tensor)
    if writer is None or not hands_features_on(writer):
        yield tensor
        return
    for name in dict.fromkeys(filter(graph.is_float, writer.inputs)):
        yield from _list_handed(graph, name)


def is_of_features(graph: Graph, tensor: str) -> bool:
    """Whether it is made of inputs of the model alone, moved and scaled by constants at most: of features."""
    pending, seen = [tensor], {tensor}
    while pending and len(seen) < _MOST_MADE:
        name = pending.pop()
        writer = graph.producers.get(name)
        if writer is None and name in graph.constants:
            return False
        if writer is not None:
            computed = [one for one in writer.inputs if one not in graph.constants and graph.is_float(one)]
            is_scaled = writer.standard_op in ("Mul", "Div") and len(computed) == 1
            is_moved = moves(writer, 0) or hands_features_on(writer)
            if not computed or not (is_scaled or is_moved):
                return False
            pending += [one for one in computed if one not in seen]
            seen.update(computed)
    return not pending
