"""Operations that exporters write as several nodes, found again, so that a pin on one of these takes the others along.

One pattern a module; a pattern is a function graph -> its regions. A newcomer adds a module, a line here and a test
by the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from overflow_fixer.graph.model import Graph
from overflow_fixer.patterns.attention import find_attention
from overflow_fixer.patterns.compared_choice import find_compared_choice
from overflow_fixer.patterns.l2_norm import find_l2_norm
from overflow_fixer.patterns.layer_norm import find_layer_norm
from overflow_fixer.patterns.region import Region
from overflow_fixer.patterns.rms_norm import find_rms_norm
from overflow_fixer.patterns.softmax import find_softmax

__all__ = ["PATTERNS", "Region", "find_regions"]

PATTERNS: dict[str, Callable[[Graph], Iterator[Region]]] = {
    "layer_norm": find_layer_norm,
    "rms_norm": find_rms_norm,
    "l2_norm": find_l2_norm,
    "attention": find_attention,
    "softmax": find_softmax,
    "compared_choice": find_compared_choice,
}
"""A pattern stands before those that may be a part of it."""


@lru_cache(maxsize=1)
def find_regions(graph: Graph) -> tuple[Region, ...]:
    """Every region of more than one node, those that lead it counted, but those that lie in another whole and have no such nodes."""
    found: list[Region] = []
    around: dict[str, list[Region]] = {}
    for find in PATTERNS.values():
        for region in find(graph):
            nodes = set(region.nodes)
            larger = around.get(region.nodes[0], ())
            is_part = not region.lead and any(nodes.issubset(other.nodes) for other in larger)
            if len(nodes) + len(region.lead) > 1 and not is_part:
                found.append(region)
                for label in region.nodes:
                    around.setdefault(label, []).append(region)
    return tuple(found)
