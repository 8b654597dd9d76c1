"""Places in the order of an input, argsort(times), of which FP16 makes many equal: those stand in another order there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from overflow_fixer.evidence.measured import list_inner
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner.orders import trace_fed
from overflow_fixer.records import RangeTable

LARGEST_SHARE = 1 / 1000
"""What is looked up by places of which one in a thousand is another has 30 dB, where neighbours are not alike."""


class FedOrder(NamedTuple):
    """The `choice` that puts `tensor` in order, with the nodes that move it there, and which share of it FP16 makes equal to the next."""

    nodes: tuple[Node, ...]
    choice: Node
    tensor: str
    share: float
    batch: str | None


def find_fed_orders(graph: Graph, ranges: RangeTable) -> Iterator[FedOrder]:
    """Each of which it is more than one in a thousand, on average over the batches; of batches without elements it is 0."""
    for choice, inner in list_inner(graph, ranges, "made equal"):
        way = trace_fed(graph, choice)
        if way is None or not np.isfinite(inner.batch_max_abs).any():
            continue
        share = float(np.nanmean(inner.batch_max_abs))
        if share > LARGEST_SHARE:
            batch = ranges.batch_names[int(np.nanargmax(inner.batch_max_abs))]
            yield FedOrder((choice, *way), choice, choice.inputs[0], share, batch)
