"""Differences that are compared with a constant number, |y − a x| < 0.05, of which FP16 takes so much that many are decided otherwise.

At 50 FP16's steps are 1/32: what the scan measured tells, since ranges do not show how many differences are near the number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overflow_fixer.evidence.differences.losses import LostDifference, tell_steps
from overflow_fixer.evidence.differences.terms_alike import find_rounded_terms
from overflow_fixer.evidence.measured import list_inner
from overflow_fixer.evidence.origins import Walked
from overflow_fixer.evidence.paths import find_given, find_ways
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.inner.decisions import find_compared
from overflow_fixer.inner.rounded_terms import Differences
from overflow_fixer.records import RangeTable

_OF_BOOLEANS = frozenset("And Or Not Xor".split())
_LARGEST_SHARE = 1 / 100
"""Of the elements that are true, or false: as verification tolerates of what is no float."""


def find_compared_differences(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each of which more than one of a hundred is decided otherwise, on average over the batches: one of few may be so by chance.

    The value is that share.
    """
    walked: Walked = {}
    for node, inner in list_inner(graph, ranges, "decided otherwise"):
        differences = find_compared(graph, node)
        if differences is None or not np.isfinite(inner.batch_max_abs).any():
            continue
        share, batch = float(np.nanmean(inner.batch_max_abs)), int(np.nanargmax(inner.batch_max_abs))
        if share > _LARGEST_SHARE and tells_more_than_a_choice(graph, node):
            yield from _tell(graph, ranges, node, differences, share, batch, walked)


def tells_more_than_a_choice(graph: Graph, node: Node) -> bool:
    """Whether a comparison does more than choose between two that are computed, which may be alike where it is decided."""

    def hands_on(reader: Node, slot: int) -> bool:
        return reader.standard_op in _OF_BOOLEANS or moves(reader, slot)

    def shows(reader: Node, slot: int) -> bool:
        is_choice = reader.standard_op == "Where" and graph.constants.keys().isdisjoint(reader.inputs)
        return not is_choice and not hands_on(reader, slot)

    output = node.outputs[0]
    return find_given(graph, output, hands_on) is not None or bool(find_ways(graph, output, hands_on, shows))


def _tell(
    graph: Graph,
    ranges: RangeTable,
    node: Node,
    differences: Differences,
    share: float,
    batch: int,
    walked: Walked,
) -> Iterator[LostDifference]:
    """With what computes the terms that count, and what is made of their differences up to the comparison."""
    rounded = find_rounded_terms(graph, ranges, differences, batch, _LARGEST_SHARE / share, walked)
    if rounded is not None:
        name = rounded.lost[0].outputs[0]
        reason = (
            f"{node.op_type} {node.label} decides {share:.3g} of the elements otherwise where {' and '.join(rounded.terms)}, up to "
            f"{rounded.most:.6g} where they cancel, of which {name} is made, are rounded to FP16: {tell_steps(rounded.most)}"
        )
        nodes = (*rounded.lost, *differences.nodes, *rounded.origins)
        yield LostDifference(nodes, name, share, _LARGEST_SHARE, reason)
