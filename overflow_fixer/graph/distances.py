"""Squared distances as one product of matrices, [−2a, |a|², 1] times [b, 1, |b|²]ᵀ: what PyTorch exports of cdist."""

from __future__ import annotations

import math
from collections.abc import Iterator

from overflow_fixer.graph.constant_shapes import read_fill
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import REARRANGES
from overflow_fixer.graph.powers import sums_squares

_HANDS_ON = REARRANGES | {"Expand", "Cast"}
_FARTHEST = 8
"""So many nodes may move an operand or a part of it."""
_MOST_PARTS = 32
"""Vectors may be joined coordinate by coordinate. A Concat of more joins no distances: as many products may read it."""


def find_joined_squares(graph: Graph, node: Node) -> tuple[str, ...]:
    """The sums of squares, each once, that are among what a MatMul multiplies: those joined to ones and vectors.

    None of any other node.
    """
    if node.standard_op != "MatMul":
        return ()
    operands = [_find_parts(graph, name) for name in node.inputs]
    found = [[name for name in parts if _is_sum_of_squares(graph, name)] for parts in operands]
    are_distances = any(
        squares and any(_is_one(graph, name) for name in parts)
        for squares, parts in zip(found, operands, strict=True)
    )
    return tuple(dict.fromkeys(name for squares in found for name in squares if are_distances))


def find_joining(graph: Graph, node: Node) -> Iterator[Node]:
    """The nodes that join, move and scale what such a product multiplies, up to those that compute with it; none of others."""
    pending = list(node.inputs) if find_joined_squares(graph, node) else []
    seen = set(pending)
    while pending:
        writer = graph.producers.get(pending.pop())
        if writer is None or not _joins(graph, writer):
            continue
        yield writer
        fresh = [name for name in dict.fromkeys(writer.inputs) if name not in seen]
        seen.update(fresh)
        pending += fresh


def _find_parts(graph: Graph, operand: str) -> tuple[str, ...]:
    """What a Concat joins to make it; none of what no Concat makes, or one of many parts."""
    writer = graph.producers.get(_find_origin(graph, operand))
    is_joined = writer is not None and writer.standard_op == "Concat" and len(writer.inputs) <= _MOST_PARTS
    return writer.inputs if writer is not None and is_joined else ()


def _is_sum_of_squares(graph: Graph, tensor: str) -> bool:
    writer = graph.producers.get(_find_origin(graph, tensor))
    return writer is not None and sums_squares(graph, writer)


def _is_one(graph: Graph, tensor: str) -> bool:
    """Whether each element is one. Of constants a column alone is read, since vectors may be all of a model's weights."""
    origin = _find_origin(graph, tensor)
    constant = graph.constants.get(origin)
    is_column = constant is not None and math.prod(constant.dims) == math.prod(constant.dims[:-1])
    value = graph.find_constant(origin) if is_column else read_fill(graph, origin)
    return value is not None and bool(value.size) and bool((value == 1).all())


def _find_origin(graph: Graph, tensor: str) -> str:
    """What is moved to make it."""
    for _ in range(_FARTHEST):
        writer = graph.producers.get(tensor)
        if writer is None or writer.standard_op not in _HANDS_ON:
            break
        tensor = writer.inputs[0]
    return tensor


def _joins(graph: Graph, node: Node) -> bool:
    is_scaled = node.standard_op in ("Mul", "Div") and any(name in graph.constants for name in node.inputs)
    return is_scaled or node.standard_op in _HANDS_ON or node.standard_op in ("Concat", "Neg")
