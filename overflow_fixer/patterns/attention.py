"""Attention written out: QK^T, scale, mask, softmax, PV. What has to stay together is the mask and its softmax.

A masked score of -3e38 or -inf is right only until it is converted to FP16, so the node that masks and the softmax
that reads it run in one precision. Nothing else has to: scores that FP16 holds may be converted behind QK^T or
behind the scale, and where QK^T is over the limit, the rules pin it and its readers by the numbers until values
fit. So neither product is in the region, nor the scale before the mask: a small cause never pins a product.
"""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.region import Region
from overflow_fixer.patterns.softmax import find_softmax

_PRODUCTS = ("MatMul", "Einsum", "Gemm")
_MASKS = ("Add", "Sub", "Where")
_SCALES = ("Mul", "Div")
_MOVES = frozenset("Identity Cast Dropout Reshape Transpose Squeeze Unsqueeze Expand Slice".split())
_LONGEST = 8


def find_attention(graph: Graph) -> Iterator[Region]:
    """The region of each masked softmax between two products: from the first mask to the probabilities."""
    written_out = {found.output: found for found in find_softmax(graph) if found.kind == "Softmax"}
    for node in graph.nodes:
        if node.standard_op == "Softmax":
            softmax = Region("Softmax", (node.label,), node.inputs[0], node.outputs[0])
        elif node.outputs and node.outputs[0] in written_out:
            softmax = written_out[node.outputs[0]]
        else:
            continue
        masks = _find_masks(graph, softmax.source)
        if masks and _reaches_product(graph, softmax.output):
            labels = tuple(mask.label for mask in masks)
            source = _scores_of(graph, masks[0])
            yield Region("attention", labels + softmax.nodes, source, softmax.output)


def _find_masks(graph: Graph, tensor: str) -> list[Node]:
    """The nodes from the first one that masks to the tensor, in order; none where it is not made of a product."""
    way = _way_from_product(graph, tensor) or []
    first = next((at for at, node in enumerate(way) if node.standard_op in _MASKS), len(way))
    return way[first:]


def _way_from_product(graph: Graph, tensor: str, left: int = _LONGEST) -> list[Node] | None:
    """The nodes behind the product of queries and keys, up to the tensor; None where there is no product."""
    node = graph.producers.get(tensor)
    if node is None or not left:
        return None
    if node.standard_op in _PRODUCTS:
        return []
    for name in _scores_inputs(node):
        way = _way_from_product(graph, name, left - 1)
        if way is not None:
            return [*way, node]
    return None


def _scores_inputs(node: Node) -> tuple[str, ...]:
    """The inputs of a node between product and softmax that the scores may come in by."""
    op = node.standard_op
    if op in _MOVES or op == "Sub":
        return node.inputs[:1]
    if op == "Where":
        return node.inputs[1:]
    return node.inputs if op in (*_MASKS, *_SCALES) else ()


def _scores_of(graph: Graph, mask: Node) -> str:
    """The tensor that the first mask is put on."""
    return next(name for name in _scores_inputs(mask) if _way_from_product(graph, name) is not None)


def _reaches_product(graph: Graph, tensor: str) -> bool:
    """Whether a product reads the tensor, or what a few nodes make of it that move or mask it."""
    edge = [tensor]
    for _ in range(_LONGEST):
        readers = [node for name in edge for node in graph.consumers.get(name, ())]
        if any(node.standard_op in _PRODUCTS for node in readers):
            return True
        passing = (*_MOVES, *_SCALES, *_MASKS)
        edge = [name for node in readers if node.standard_op in passing for name in node.writes]
    return False
