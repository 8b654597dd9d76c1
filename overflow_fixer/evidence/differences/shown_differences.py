"""A difference of nearly equal numbers of which a layer, a sum or a norm makes what the model gives out: returns that a
network reads, the distance of embeddings that are near each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.evidence.differences.given_differences import find_largest
from overflow_fixer.evidence.differences.small_differences import SmallDifference, SmallLoss
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.origins import Walked
from overflow_fixer.evidence.semantics import readers
from overflow_fixer.evidence.zeros.shown_losses import find_shown
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable

_HIDDEN = 2.0**-6
"""As a sum's own rounding, 2^-11, hides a loss, so much more of it hides it as far as 3 % of what is made of it."""


def find_shown_differences(graph: Graph, ranges: RangeTable, walked: Walked) -> Iterator[SmallLoss]:
    """Each that is small in every batch, in the batch in which it is largest, where its loss shows; else as find_divided."""
    for node in graph.nodes:
        small = find_largest(graph, ranges, node)
        end = _find_end(graph, ranges, small) if small is not None else None
        if small is not None and end is not None:
            yield SmallLoss(small, find_sources(graph, ranges, node, small.value, walked), end)


def _find_end(graph: Graph, ranges: RangeTable, small: SmallDifference) -> str | None:
    """Where it shows, in words, that a step at the largest term is lost, as 3 % of what is made of it."""
    lost, shown = step_at(small.largest) * _HIDDEN, find_shown(graph, ranges)
    ways = (shown.get((reader.label, small.shown)) for reader, _ in readers(graph, small.shown))
    return next((way.end for way in ways if way is not None and way.least <= lost), None)
