"""A difference of nearly equal numbers that is given out: a return p1 / p0 − 1, its logarithm, or 1 − cos of what is alike.

Scaled, multiplied or squared it is given out as well, with the digits that FP16 left of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable
from overflow_fixer.rules.divided_differences import Divided, find_sources, keeps_small
from overflow_fixer.rules.paths import list_values
from overflow_fixer.rules.small_differences import FP32_NOISE, SmallDifference, find_small

_FEWEST_STEPS = 32.0
"""Of less than so many of FP16's steps, what is given out has under 30 dB: see docs/numerics.md."""


def find_given_differences(graph: Graph, ranges: RangeTable) -> Iterator[Divided]:
    """Each difference that is given out and small in every batch, in the batch in which it is largest."""
    for node in graph.nodes:
        small = _find_largest(graph, ranges, node)
        outputs = _find_outputs(graph, ranges, small.batch) if small is not None else {}
        if small is not None and node.outputs[0] in outputs:
            nodes = find_sources(graph, ranges, node, small.value)
            yield Divided(small, tuple(nodes), f"the output {outputs[node.outputs[0]]} tells it")


def _find_largest(graph: Graph, ranges: RangeTable, node: Node) -> SmallDifference | None:
    """None where it is large in some batch, beside which the small ones do not count, or as small as FP32 itself rounds."""
    small = find_small(graph, ranges, node, _FEWEST_STEPS)
    largest = max(small, key=lambda one: one.value, default=None)
    if largest is None or largest.value < ranges.by_tensor[largest.shown].max_abs:
        return None
    return largest if largest.value > FP32_NOISE * largest.largest else None


@lru_cache(maxsize=8)
def _find_outputs(graph: Graph, ranges: RangeTable, batch: int) -> Mapping[str, str]:
    """For each tensor of which single elements show in an output of the model in that batch, the output.

    In one pass, since of a long chain of differences each is before all others. A sum of many loses less.
    """
    found = {name: name for name in graph.outputs}
    for node in reversed(graph.nodes):
        output = next((found[name] for name in list_values(node) if name in found), None)
        if output is None or node.op_type.startswith("Reduce"):
            continue
        for slot, name in enumerate(node.inputs):
            if name not in found and keeps_small(graph, ranges, batch, node, slot):
                found[name] = output
    return found
