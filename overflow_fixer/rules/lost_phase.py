"""A sine, cosine or tangent of an angle so large that FP16 rounds a visible part of a turn away.

Rotary and sinusoidal positions: position 3001 times a frequency of 0.75 is 2250.75 radians; FP16 has 2250 or 2252.
What matters is the error of the angle, not its share of it. So the angle stays in FP32, and with it all that it
is made of: positions, frequencies, data up to the layer that writes them, and what moves and multiplies them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.digits import tell_over
from overflow_fixer.rules.multiples import find_multiples
from overflow_fixer.rules.origins import find_origins
from overflow_fixer.rules.semantics import moves

LARGEST_ANGLE = 128.0
"""Beyond it, FP16's steps are 1/8 radian and more: the rounding error (rms 0.036) leaves a sine less than 30 dB."""
_PERIODIC = frozenset("Sin Cos Tan".split())


def find_lost_phases(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each angle over 128 radians that the node takes the sine of, or that is made of what it writes.

    None where FP16 holds the angle (integers up to 2048), where it has NaN, or where there is no value.
    """
    for angle, periodic in _evidence(graph, ranges).get(node.label, {}).items():
        seen = ranges.by_tensor[angle]
        reason = (
            f"{periodic} takes angles of up to {tell_over(seen.max_abs, LARGEST_ANGLE)} radians from {angle}; over {LARGEST_ANGLE:g}, FP16's "
            "steps are 0.125 radians and more"
        )
        batch = ranges.worst_batch_of(seen) if angle not in graph.constants else None
        yield Finding("lost_phase", node.label, angle, seen.max_abs, LARGEST_ANGLE, reason, batch)


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[str, str]]:
    """For each node concerned, the angles, and in words the node that each goes into."""
    found: dict[str, dict[str, str]] = {}
    for node in (node for node in graph.nodes if node.standard_op in _PERIODIC):
        angle, way = _unwrap(graph, node)
        if _is_lost(graph, ranges, angle):
            for concerned in (node, *way, *find_origins(graph, ranges, angle, LARGEST_ANGLE)):
                found.setdefault(concerned.label, {}).setdefault(angle, f"{node.op_type} {node.label}")
    return found


def _unwrap(graph: Graph, node: Node) -> tuple[str, tuple[Node, ...]]:
    """The angle that the node reads, or that a Mod made a small one of, and the nodes between, the last first."""
    way: list[Node] = []
    writer = graph.producers.get(node.inputs[0])
    while writer is not None and moves(writer, 0):
        way.append(writer)
        writer = graph.producers.get(writer.inputs[0])
    if writer is None or writer.standard_op != "Mod":
        return node.inputs[0], ()
    return writer.inputs[0], (*way, writer)


def _is_lost(graph: Graph, ranges: RangeTable, angle: str) -> bool:
    seen = ranges.get(angle)
    is_plain = seen is not None and not seen.nan_count and seen.max_abs > LARGEST_ANGLE
    is_fp32 = graph.dtypes.get(angle) == TensorProto.FLOAT
    return is_plain and is_fp32 and not find_multiples(graph, ranges).is_held(angle)
