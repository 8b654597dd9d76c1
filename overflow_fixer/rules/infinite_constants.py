"""Infinities that constants bring and that nodes only move or choose: FP16 holds them, and makes the same choice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Range, RangeTable
from overflow_fixer.rules.constant_range import origins
from overflow_fixer.rules.semantics import moves
from overflow_fixer.rules.traces import chooses


def hands_on(node: Node) -> bool:
    """Whether every element that it writes is one that it reads, or of that magnitude."""
    return moves(node, 0) or chooses(node)


@lru_cache(maxsize=2)
def find_infinities_handed_on(graph: Graph, ranges: RangeTable) -> frozenset[str]:
    """Tensors with infinities that are those of constants, and without NaN or a finite value that FP16 cannot hold."""
    found = {origin.tensor for origin in origins(graph, ranges) if origin.is_infinite}
    for node in graph.nodes if found else ():
        if found.intersection(node.inputs) and hands_on(node) and _are_plain(node, graph, ranges, found):
            found |= {name for name in node.writes if _has_only_infinities(ranges.get(name))}
    return frozenset(found)


def _are_plain(node: Node, graph: Graph, ranges: RangeTable, found: set[str]) -> bool:
    """Whether no other float that it reads has a NaN or an infinity of its own."""
    others = [ranges.get(name) for name in _floats(node, graph) if name not in found]
    return all(seen is not None and seen.is_finite for seen in others)


def _floats(node: Node, graph: Graph) -> Iterator[str]:
    return (name for name in node.inputs if name and graph.is_float(name))


def _has_only_infinities(seen: Range | None) -> bool:
    return seen is not None and not seen.nan_count and 0 < seen.inf_count == seen.over_fp16_count
