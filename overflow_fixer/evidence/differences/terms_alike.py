"""The terms of differences of which FP16 takes too much, of which all are alike where it shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.evidence.measured import read_maxima
from overflow_fixer.evidence.origins import Walked, find_origins
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner.rounded_terms import DIFFERENCES, Differences
from overflow_fixer.records import RangeTable


class RoundedTerms(NamedTuple):
    """The `terms` that count, up to `most` where they cancel, the nodes that subtract them, in order, and the `origins`, which compute them."""

    terms: tuple[str, ...]
    most: float
    lost: tuple[Node, ...]
    origins: tuple[Node, ...]

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (*self.lost, *self.origins)


def find_rounded_terms(
    graph: Graph,
    ranges: RangeTable,
    differences: Differences,
    batch: int,
    allowed: float,
    walked: Walked | None = None,
) -> RoundedTerms | None:
    """Those whose rounding makes more than half of what is `allowed`, as a share of what that of all makes in the batch."""
    largest = {name: float(np.nan_to_num(read_maxima(ranges, name)[batch])) for name in differences.terms}
    most = find_alike(list(largest.values()))
    limit = most * allowed / 2
    terms = tuple(name for name in differences.terms if largest[name] > limit)
    lost = tuple(node for node in differences.nodes if _reads(node, terms))
    if not lost:
        return None
    origins = (node for name in terms for node in _find_origins(graph, ranges, name, limit, walked))
    return RoundedTerms(terms, most, lost, tuple(origins))


def find_alike(largest: list[float]) -> float:
    """How large terms are where they cancel: no one of them is much larger there than all others together.

    The largest may be so elsewhere. Where rounding shows the terms are well over ten times what is left.
    """
    most = max(largest)
    return min(most, sum(largest) - most) or most


def _reads(node: Node, terms: tuple[str, ...]) -> bool:
    return node.standard_op in DIFFERENCES and not set(terms).isdisjoint(node.inputs)


def _find_origins(
    graph: Graph, ranges: RangeTable, tensor: str, limit: float, walked: Walked | None
) -> Iterator[Node]:
    is_exact = tensor in graph.constants or find_multiples(graph, ranges).is_held(tensor)
    return iter(()) if is_exact else find_origins(graph, ranges, tensor, limit, walked)
