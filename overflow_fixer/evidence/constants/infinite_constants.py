"""Infinities that constants bring, as far as FP16 makes of them what FP32 does.

Nodes move and choose them, add finite values to them or scale them, and an exponential or the like ends them: of −∞ it is 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from overflow_fixer.evidence.constants.carriers import find_huge_constants
from overflow_fixer.evidence.constants.traces import chooses
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.formats import FP16_MIN_NORMAL
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS
from overflow_fixer.records import Range, RangeTable

_ENDS = frozenset("Softmax Exp Sigmoid HardSigmoid Tanh Erf Softplus Elu Celu".split())
"""Operators that have a finite limit at an infinity, on one side at least."""


def is_same_in_fp16(node: Node, graph: Graph, ranges: RangeTable) -> bool:
    """Whether FP16 makes of such an infinity what FP32 makes: the node hands it on, or ends it.

    Of an infinity or NaN that the node itself makes, what it writes tells.
    """
    return node.standard_op in _ENDS or _hands_on(node, graph, ranges)


def _hands_on(node: Node, graph: Graph, ranges: RangeTable) -> bool:
    """Whether an infinity stays one, and none comes of what is finite. No scale that FP16 rounds to zero."""
    if node.standard_op in ("Mul", "Div"):
        scales = node.inputs if node.standard_op == "Mul" else node.inputs[1:]
        scale = next((ranges.get(name) for name in scales if name in graph.constants), None)
        return scale is not None and scale.is_finite and scale.min_nonzero_abs >= FP16_MIN_NORMAL
    return node.standard_op in ADDS or moves(node, 0) or chooses(node)


@lru_cache(maxsize=2)
def find_infinities_handed_on(graph: Graph, ranges: RangeTable) -> frozenset[str]:
    """Tensors with infinities that are those of constants, and without NaN or a finite value that FP16 cannot hold."""
    found = {origin.tensor for origin in find_huge_constants(graph, ranges) if origin.is_infinite}
    return hand_on(graph, ranges, found)


def hand_on(graph: Graph, ranges: RangeTable, sources: Iterable[str]) -> frozenset[str]:
    """The sources, and the tensors to which nodes hand their infinities on, without others beside them."""
    found = set(sources)
    for node in graph.nodes if found else ():
        is_handed = found.intersection(node.inputs) and _hands_on(node, graph, ranges)
        if is_handed and _are_plain(node, graph, ranges, found):
            found |= {name for name in node.writes if has_only_infinities(ranges.get(name))}
    return frozenset(found)


@lru_cache(maxsize=2)
def find_masked_rows(graph: Graph, ranges: RangeTable) -> frozenset[str]:
    """Tensors whose NaN are those of a Softmax over rows of nothing but such infinities, moved or chosen, without infinities.

    FP16 has the same infinities and other logits that it holds, so that the same rows are NaN.
    """
    handed = find_infinities_handed_on(graph, ranges)
    softmaxes = (node for node in graph.nodes if node.standard_op == "Softmax") if handed else ()
    return _hand_nan_on(graph, ranges, (node for node in softmaxes if node.inputs[0] in handed))


@lru_cache(maxsize=2)
def find_nan_of_constants(graph: Graph, ranges: RangeTable) -> frozenset[str]:
    """Tensors whose NaN are those of constants, moved or chosen, without infinities: what jnp.var gives of no elements."""
    made = (node for node in graph.nodes if node.standard_op == "ConstantOfShape")
    return _hand_nan_on(graph, ranges, made, graph.constants)


def _hand_nan_on(
    graph: Graph, ranges: RangeTable, makers: Iterable[Node], constants: Iterable[str] = ()
) -> frozenset[str]:
    """Tensors with NaN of these makers and constants, where they have no infinities, and those to which nodes hand them."""
    written = (name for node in makers for name in node.writes)
    found = {name for name in (*constants, *written) if _has_only_nan(ranges.get(name))}
    for node in graph.nodes if found else ():
        is_handed = bool(found.intersection(node.inputs)) and hands_nan_on(node)
        if is_handed and _are_plain(node, graph, ranges, found):
            found |= {name for name in node.writes if _has_only_nan(ranges.get(name))}
    return frozenset(found)


def hands_nan_on(node: Node) -> bool:
    """Whether it makes of a NaN in FP16 what it makes in FP32: moves it, chooses it or asks for it, or is what makes it."""
    return node.standard_op in ("Where", "IsNaN", "Softmax", "ConstantOfShape") or moves(node, 0)


def _are_plain(node: Node, graph: Graph, ranges: RangeTable, found: set[str]) -> bool:
    """Whether no other float that it reads has a NaN or an infinity of its own."""
    others = (ranges.get(name) for name in filter(graph.is_float, node.inputs) if name not in found)
    return all(_is_finite(seen) for seen in others)


def _is_finite(seen: Range | None) -> bool:
    return seen is not None and seen.is_finite


def _has_only_nan(seen: Range | None) -> bool:
    return seen is not None and bool(seen.nan_count) and not seen.over_fp16_count


def has_only_infinities(seen: Range | None) -> bool:
    """Whether it has infinities, and neither NaN nor a finite value that FP16 cannot hold."""
    return seen is not None and not seen.nan_count and 0 < seen.inf_count == seen.over_fp16_count
