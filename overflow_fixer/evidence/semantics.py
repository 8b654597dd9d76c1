"""What standard operators do with what they read, as all rules see it. An operator of another domain is none of them."""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import REARRANGES, SCATTERS

MOVES = REARRANGES | frozenset(
    """Expand Tile Slice Gather GatherND GatherElements Split Concat DepthToSpace SpaceToDepth Cast CastLike Dropout
    Compress ReverseSequence""".split()
)
"""Operators that move, repeat or leave out elements; of which slot, `moves` tells."""
_BUILT_IN_EPSILON = {"MeanVarianceNormalization": 1e-9}
"""What the ONNX definition adds, of an operator that has no attribute for it."""


def moves(node: Node, slot: int) -> bool:
    """Whether what comes in at `slot` goes out as it is: moved, repeated or left out, never computed with."""
    op = node.standard_op
    in_training = op == "Dropout" and len(node.inputs) > 2
    return op in MOVES and not in_training and (slot == 0 or op == "Concat")


def readers(graph: Graph, tensor: str) -> Iterator[tuple[Node, int]]:
    """Each (node, slot) that reads `tensor`, bodies of control flow aside."""
    for node in graph.consumers.get(tensor, ()):
        yield from ((node, slot) for slot, name in enumerate(node.inputs) if name == tensor)


def touched(node: Node) -> dict[str, str]:
    """Every tensor the node touches, with what it does to it: "reads" or "writes"."""
    return dict.fromkeys(node.writes, "writes") | dict.fromkeys(node.reads, "reads")


def read_reduction(node: Node) -> bytes:
    """What a scatter does with what is in its place; "none" of other operators."""
    return bytes(node.value_of("reduction", b"none")) if node.standard_op in SCATTERS else b"none"


def read_epsilon(node: Node) -> float:
    """What a normalisation adds to the variance, or to the square of a norm."""
    return float(node.value_of("epsilon", _BUILT_IN_EPSILON.get(node.standard_op, 1e-5)))
