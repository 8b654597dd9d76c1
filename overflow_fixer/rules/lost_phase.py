"""A sine, cosine or tangent of an angle so large that FP16 rounds a visible part of a turn away.

Rotary and sinusoidal positions: position 3001 times a frequency of 0.75 is 2250.75 radians; FP16 has 2250 or 2252.
What matters is the error of the angle, not its share of it. So the angle stays in FP32, and with it all that it
is made of: positions, frequencies, data up to the layer that writes them, and what moves and multiplies them.
So does the difference that a small angle is made of, where that of its terms would be as large: see phases.
And an angle that is made of a cosine so near 1 that FP16 rounds the angle away: see small_angles.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from onnx import TensorProto

from overflow_fixer.evidence.differences.phases import PhaseDifference, find_phase_difference
from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.evidence.integers.turns import Angle, unwrap
from overflow_fixer.evidence.origins import find_origins
from overflow_fixer.evidence.zeros.small_angles import SMALLEST_ANGLE, SmallAngle, find_small_angles
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.batches import find_worst_batch
from overflow_fixer.rules.by_node import list_by_node
from overflow_fixer.rules.digits import tell_over

LARGEST_ANGLE = 128.0
"""Beyond it, FP16's steps are 1/8 radian and more: the rounding error (rms 0.036) leaves a sine less than 30 dB."""
_PERIODIC = frozenset("Sin Cos Tan".split())


class _LostDifference(NamedTuple):
    """The nodes that make a difference, it first, and in words what takes a sine of what is made of that."""

    nodes: tuple[Node, ...]
    difference: PhaseDifference
    periodic: str


def find_lost_phases(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each angle over 128 radians that the node takes the sine of, or that is made of what it writes.

    Whole turns may have been taken out of it before. None where FP16 holds the angle (integers up to 2048), where it has
    NaN, or where there is no value. `limit` is what 128 radians are in the tensor's own unit.

    One for each difference of terms that are angles over 128, in the angle's measure: `tensor` is the difference and `value`
    the largest of them. And one for each small angle that the node computes, or whose cosine it computes; `value` is its max |x| in the batch.
    """
    yield from _find_large(node, graph, ranges)
    yield from _find_differences(node, graph, ranges)
    for small in _evidence_of_small(graph, ranges).get(node.label, ()):
        made = small.nodes[0]
        reason = (
            f"{small.tensor} is {small.value:.3g} at most in that batch, and {made.op_type} makes it of {made.inputs[0]}, which FP16 "
            f"rounds by up to 2^-12 where it is near 1: {2**-12 / small.value**2:.2g} of the angle"
        )
        batch = ranges.batch_names[small.batch]
        yield Finding("lost_phase", node.label, small.tensor, small.value, SMALLEST_ANGLE, reason, batch)


def _find_large(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for angle, periodic in _evidence(graph, ranges).get(node.label, {}).items():
        seen, limit = ranges.by_tensor[angle.tensor], LARGEST_ANGLE / angle.radians
        radians = tell_over(seen.max_abs * angle.radians, LARGEST_ANGLE)
        times = "" if angle.radians == 1 else f" ({angle.radians:.6g} to each 1 of it)"
        reason = (
            f"{periodic} takes angles of up to {radians} radians from {angle.tensor}{times}; over {LARGEST_ANGLE:g}, FP16's "
            "steps are 0.125 radians and more"
        )
        batch = find_worst_batch(graph, ranges, angle.tensor)
        yield Finding("lost_phase", node.label, angle.tensor, seen.max_abs, limit, reason, batch)


def _find_differences(node: Node, graph: Graph, ranges: RangeTable) -> Iterator[Finding]:
    for lost in _evidence_of_differences(graph, ranges).get(node.label, ()):
        name = lost.difference.node.outputs[0]
        reason = (
            f"{lost.periodic} takes an angle that is made of {name}, of whose terms it would be up to {lost.difference.most:.6g} "
            f"radians; over {LARGEST_ANGLE:g}, FP16's steps are 0.125 radians and more"
        )
        yield Finding("lost_phase", node.label, name, lost.difference.most, LARGEST_ANGLE, reason)


@lru_cache(maxsize=1)
def _evidence_of_differences(graph: Graph, ranges: RangeTable) -> dict[str, list[_LostDifference]]:
    return list_by_node(_list_differences(graph, ranges))


def _list_differences(graph: Graph, ranges: RangeTable) -> Iterator[_LostDifference]:
    """Each difference once, of angles that are not lost themselves."""
    told: set[str] = set()
    for node in (node for node in graph.nodes if node.standard_op in _PERIODIC):
        angle = Angle(node.inputs[0], 1.0, ())
        is_lost = _is_lost(graph, ranges, angle) or _is_lost(graph, ranges, unwrap(graph, node))
        difference = None if is_lost else find_phase_difference(graph, ranges, angle.tensor)
        if difference is None or difference.most <= LARGEST_ANGLE or difference.node.label in told:
            continue
        told.add(difference.node.label)
        limit = LARGEST_ANGLE / difference.growth
        origins = find_origins(graph, ranges, difference.node.outputs[0], limit)
        yield _LostDifference(tuple(origins), difference, f"{node.op_type} {node.label}")


@lru_cache(maxsize=1)
def _evidence_of_small(graph: Graph, ranges: RangeTable) -> dict[str, list[SmallAngle]]:
    return list_by_node(find_small_angles(graph, ranges))


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[Angle, str]]:
    """For each node concerned, the angles, and in words the node that each goes into."""
    found: dict[str, dict[Angle, str]] = {}
    for node in (node for node in graph.nodes if node.standard_op in _PERIODIC):
        angles = dict.fromkeys((unwrap(graph, node), Angle(node.inputs[0], 1.0, ())))
        for angle in (one for one in angles if _is_lost(graph, ranges, one)):
            origins = find_origins(graph, ranges, angle.tensor, LARGEST_ANGLE / angle.radians)
            for concerned in (node, *angle.way, *origins):
                found.setdefault(concerned.label, {}).setdefault(angle, f"{node.op_type} {node.label}")
    return found


def _is_lost(graph: Graph, ranges: RangeTable, angle: Angle) -> bool:
    seen = ranges.get(angle.tensor)
    is_plain = seen is not None and not seen.nan_count and seen.max_abs * angle.radians > LARGEST_ANGLE
    is_fp32 = graph.dtypes.get(angle.tensor) == TensorProto.FLOAT
    return is_plain and is_fp32 and not find_multiples(graph, ranges).is_held(angle.tensor)
