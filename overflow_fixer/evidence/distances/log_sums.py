"""Squared distances, written out as |a|² + |b|² − 2ab, of which a logarithm of a sum of exponentials tells the nearest.

The log-likelihood of a mixture or of a kernel density, log Σ exp(−d / s): what FP16 takes of d over s is in it as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.evidence.differences.losses import FP32_NOISE, STEPS_GIVEN_OUT
from overflow_fixer.evidence.differences.small_differences import SmallLoss, find_small
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.distances.chosen_distances import is_only_subtracted
from overflow_fixer.evidence.distances.squared_distances import find_distance
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable


def find_log_sums(graph: Graph, ranges: RangeTable) -> Iterator[SmallLoss]:
    """Each distance of which a ReduceLogSumExp leaves less than 32 of FP16's steps, scaled alike, in the worst batch.

    None where it is only subtracted from its own terms, as in a LogSoftmax that is written out.
    """
    for node in graph.nodes:
        if node.standard_op != "ReduceLogSumExp" or is_only_subtracted(graph, node):
            continue
        distance, scale = find_distance(graph, ranges, node.inputs[0])
        if distance is None:
            continue
        small = next(find_small(graph, ranges, distance, STEPS_GIVEN_OUT * scale, node.outputs[0]), None)
        if small is not None and small.value > FP32_NOISE * small.largest * scale:
            nodes = find_sources(graph, ranges, distance, small.value / scale)
            yield SmallLoss(small, nodes, f"{node.op_type} {node.label} tells the nearest, times {scale:.6g}")
