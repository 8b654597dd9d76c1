"""Boxes so far from the origin that FP16 rounds their corners by a pixel and more.

Boxes of a few pixels that are moved there (class-aware NMS adds a multiple of the class) lose their sides and their
overlap: NMS keeps boxes that it should drop. What computes the corners stays in FP32, back to where its values are
small, or held exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from overflow_fixer.evidence.integers.places import LARGEST_COORDINATE, is_far, trace_back
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.batches import find_worst_batch

_BOXES = {"NonMaxSuppression": 0, "RoiAlign": 1, "MaxRoiPool": 1}
"""Operators that read boxes, and at which slot."""


def find_lost_boxes(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each tensor of boxes over 1024 that the node computes, or compares or cuts by.

    `value` is its max |x|. None where it has NaN or infinities, where FP16 is known to hold every value, and for
    integers, which the rule lost_integer looks after.
    """
    for boxes, reader in _evidence(graph, ranges).get(node.label, {}).items():
        seen = ranges.by_tensor[boxes]
        reason = (
            f"{boxes} holds boxes up to {seen.max_abs:.6g}, where FP16's steps are {step_at(seen.max_abs):g}, and "
            f"{reader.op_type} {reader.label} takes them"
        )
        batch = find_worst_batch(graph, ranges, boxes)
        yield Finding("lost_box", node.label, boxes, seen.max_abs, LARGEST_COORDINATE, reason, batch)


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[str, Node]]:
    """For each node concerned, the boxes and a node that reads them."""
    found: dict[str, dict[str, Node]] = {}
    for reader in graph.nodes:
        slot = _BOXES.get(reader.standard_op)
        if slot is not None and is_far(graph, ranges, reader.inputs[slot]):
            for node in (reader, *trace_back(graph, ranges, reader.inputs[slot])):
                found.setdefault(node.label, {}).setdefault(reader.inputs[slot], reader)
    return found
