"""Which batch shows what a rule found."""

from __future__ import annotations

from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable


def find_worst_batch(graph: Graph, ranges: RangeTable, tensor: str) -> str | None:
    """The name of the batch that holds the max_abs of a tensor that was measured; None of a constant, which is in all."""
    return None if tensor in graph.constants else ranges.worst_batch_of(ranges.by_tensor[tensor])
