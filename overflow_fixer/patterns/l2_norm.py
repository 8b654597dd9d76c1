"""A tensor divided by its L2 norm: ReduceL2, or squares, their sum and its root, with what keeps that from zero."""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.graph.model import Graph
from overflow_fixer.patterns.quotients import close_region, common_source, find_quotients
from overflow_fixer.patterns.region import Region
from overflow_fixer.patterns.tracing import is_same


def find_l2_norm(graph: Graph) -> Iterator[Region]:
    """The region of each, from the norm to the division and a scale behind it."""
    for quotient in find_quotients(graph):
        squares = quotient.squares
        if squares.is_mean or squares.spread or not is_same(graph, squares.squared, quotient.dividend):
            continue
        source = common_source(graph, squares.squared, quotient.dividend)
        yield from close_region(graph, "L2 normalisation", source, quotient)
