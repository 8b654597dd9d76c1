"""Squared distances, written out as |a|² + |b|² − 2ab: which sums are such, and what stands between them and what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

from overflow_fixer.evidence.differences.terms import find_terms
from overflow_fixer.evidence.paths import walk_back
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.distances import find_joined_squares
from overflow_fixer.graph.filled import is_filled
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, MATRIX_PRODUCTS
from overflow_fixer.graph.powers import is_root, sums_squares
from overflow_fixer.records import RangeTable

_KEEPS_SIZE = frozenset("Neg Abs Relu Clip Max".split())
"""Operators that make nothing larger of a difference than it is, but for a bound, which shows."""
_KEEPS = frozenset("Neg Relu Clip TopK ReduceMin ReduceMax".split())
_MOST_STEPS = 16


def is_distance(graph: Graph, node: Node) -> bool:
    """Whether it adds up products of vectors and sums of squares."""
    return node.label in _find_distances(graph)


@lru_cache(maxsize=1)
def _find_distances(graph: Graph) -> frozenset[str]:
    """The labels of all such nodes, in one pass: of a long chain of sums each is behind all before."""
    products, squares = set[str](), set[str]()
    for node in graph.nodes:
        added = [name for name in node.inputs if _adds_up(graph, node, name)]
        is_whole = bool(find_joined_squares(graph, node))
        if node.standard_op in MATRIX_PRODUCTS or not products.isdisjoint(added):
            products.update(node.writes)
        if is_whole or sums_squares(graph, node) or not squares.isdisjoint(added):
            squares.update(node.writes)
    return frozenset(node.label for node in graph.nodes if {*node.writes} <= products & squares)


def _adds_up(graph: Graph, node: Node, name: str) -> bool:
    is_scaled = node.standard_op in ("Mul", "Div") and any(one in graph.constants for one in node.inputs)
    is_sum = node.standard_op in ADDS or is_scaled or node.standard_op == "Neg"
    return name not in graph.constants and (is_sum or moves(node, 0))


def find_summands(graph: Graph, distance: str) -> Iterator[Node]:
    """The nodes that add it up, and the squares in it."""
    for writer in walk_back(graph, distance, partial(_adds_up, graph)):
        yield writer
        if sums_squares(graph, writer) and writer.standard_op != "ReduceSumSquare":
            yield graph.producers[writer.inputs[0]]


def hands_on(graph: Graph, reader: Node, slot: int) -> bool:
    """Whether it moves, masks or bounds what comes in there, or takes the root."""
    is_kept = moves(reader, slot) or is_filled(graph, reader, slot)
    return is_kept or reader.standard_op in _KEEPS_SIZE or is_root(graph, reader)


def find_distance(graph: Graph, ranges: RangeTable, tensor: str) -> tuple[Node | None, float]:
    """The distance that a tensor is made of, and what that is multiplied by, without its sign; None where it is made otherwise."""
    scale = 1.0
    for _ in range(_MOST_STEPS):
        node = graph.producers.get(tensor)
        moved = _find_moved(graph, node) if node is not None else ""
        if moved:
            tensor = moved
            continue
        if node is None or (is_distance(graph, node) and find_terms(graph, node)):
            return node, scale
        factor = _read_factor(graph, ranges, node)
        slot = 1 if factor and node.inputs[0] in graph.constants else 0
        if not factor and node.standard_op not in _KEEPS and not moves(node, 0):
            return None, scale
        tensor, scale = node.inputs[slot], scale * (factor or 1.0)
    return None, scale


def _find_moved(graph: Graph, node: Node) -> str:
    """What the node adds a constant number to; "" of other nodes."""
    numbers = [
        name for name in node.inputs if (value := graph.find_constant(name)) is not None and value.size == 1
    ]
    is_sum = node.standard_op in ("Add", "Sub") and len(numbers) == 1
    return next(name for name in node.inputs if name not in numbers) if is_sum else ""


def _read_factor(graph: Graph, ranges: RangeTable, node: Node) -> float:
    """What a node multiplies by, if that is one constant number; 0 where it does not."""
    number = read_sole_number(graph, ranges, node)
    if node.standard_op == "Mul":
        return number
    is_quotient = node.standard_op == "Div" and node.inputs[1] in graph.constants
    return 1 / number if is_quotient and number else 0.0


def read_sole_number(graph: Graph, ranges: RangeTable, node: Node) -> float:
    """The constant number that it reads, without its sign; 0 where there is none, or more than one."""
    constants = [name for name in node.inputs if name in graph.constants]
    seen = ranges.get(constants[0]) if len(constants) == 1 else None
    return seen.max_abs if seen is not None and seen.min == seen.max else 0.0
