"""RMSNorm written out: x / sqrt(mean(x^2) + epsilon), with its scale."""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.graph.model import Graph
from overflow_fixer.patterns.layer_norm import find_centred
from overflow_fixer.patterns.quotients import close_region, common_source, find_quotients
from overflow_fixer.patterns.region import Region
from overflow_fixer.patterns.tracing import is_same


def find_rms_norm(graph: Graph) -> Iterator[Region]:
    """The region of each, from the square to the scale. That of a LayerNorm's x - mean is none of its own."""
    for quotient in find_quotients(graph):
        squares = quotient.squares
        if not squares.is_mean or squares.spread or not is_same(graph, squares.squared, quotient.dividend):
            continue
        source = common_source(graph, squares.squared, quotient.dividend)
        centred = find_centred(graph, source)
        if centred is not None and centred[1] == squares.axes:
            continue
        yield from close_region(graph, "RMSNorm", source, quotient)
