"""What is chosen of an input of the model in FP16, and compared with the input itself, which is fed in FP32: x == max(x).

Rounded, the largest element is none of them, or less than itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.compared_choice import find_compared_choice
from overflow_fixer.records import RangeTable


class FedChoice(NamedTuple):
    """The nodes that choose among `tensor`, what compares it with that, and by how much FP16 rounds the largest of it at most."""

    nodes: tuple[Node, ...]
    tensor: str
    comparison: Node
    error: float


def find_fed_choices(graph: Graph, ranges: RangeTable) -> Iterator[FedChoice]:
    """Each of an input that is compared as it is; none of one that FP16 is known to hold, with NaN or infinities, or without an element.

    None in bodies of If, Loop and Scan, of which nothing is fed.
    """
    fed = set() if graph.place else {spec.name for spec in graph.inputs}
    for region in find_compared_choice(graph) if fed else ():
        comparison, seen = graph.producers[region.output], ranges.get(region.source)
        is_itself = region.source in fed and region.source in comparison.inputs
        if seen is None or not (is_itself and seen.is_finite and seen.element_count > 0):
            continue
        if not find_multiples(graph, ranges).is_held(region.source):
            nodes = tuple(graph.by_label[label] for label in region.nodes)
            yield FedChoice(nodes, region.source, comparison, step_at(seen.max_abs) / 2)
