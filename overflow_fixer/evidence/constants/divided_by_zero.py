"""Infinities of zeros, of which FP16 makes them as well, taken out again: deg^-1/2 of a node of a graph without neighbours.

Where the smallest divisor but zero is one of FP16's normal numbers, and the dividend's is, a node that divides makes infinity
of zeros in either precision, and of nothing else. Then no pin of it, and of what replaces its infinities, changes anything:
not where the divisor comes of a difference, either, of which FP16 may make more zeros. There what writes the difference has
to be right, which is for the rules of divisors and differences to tell.
"""

from __future__ import annotations

from functools import lru_cache

from onnx import TensorProto

from overflow_fixer.evidence.constants.infinite_constants import (
    hand_on,
    has_only_infinities,
    is_same_in_fp16,
)
from overflow_fixer.evidence.measured import is_never_negative
from overflow_fixer.formats import FP16_MIN_NORMAL
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import COMPARES, DIVISOR_SLOTS
from overflow_fixer.graph.powers import read_exponent
from overflow_fixer.records import Range, RangeTable

_ASKS = COMPARES | frozenset("IsInf IsNaN Equal".split())


@lru_cache(maxsize=1)
def find_infinities_of_zeros(graph: Graph, ranges: RangeTable) -> frozenset[str]:
    """Tensors with such infinities, where every node that reads them asks for them, hands them on or ends them.

    So it is of all that they are handed on to; of others, such as another quotient, it is not asked.
    """
    sources = {node.outputs[0] for node in graph.nodes if _divides_by_zero(graph, ranges, node)}
    found = hand_on(graph, ranges, sources)
    kept = {name for name in found if not _is_taken_out(graph, ranges, name)}
    for node in reversed(graph.nodes) if kept else ():
        if not kept.isdisjoint(node.writes):
            kept |= found.intersection(node.inputs)
    return found - kept


def _divides_by_zero(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    """Whether the node makes infinities of zeros alone, in FP16 as well."""
    slot = DIVISOR_SLOTS.get(node.standard_op, 0)
    is_quotient = node.standard_op in DIVISOR_SLOTS or read_exponent(graph, node) < 0
    if not is_quotient or not has_only_infinities(ranges.get(node.outputs[0])):
        return False
    is_dividend_held = not slot or _is_held(ranges.get(node.inputs[0]))
    return is_dividend_held and _is_plain(graph, ranges, node.inputs[slot])


def _is_plain(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    """Whether what is divided by is never negative, and zero or a normal number of FP16."""
    is_fp32 = graph.dtypes.get(tensor) == TensorProto.FLOAT
    return is_fp32 and _is_held(ranges.get(tensor)) and is_never_negative(ranges, tensor)


def _is_held(seen: Range | None) -> bool:
    """Whether all but zero are normal numbers of FP16; the smallest was taken."""
    is_sound = seen is not None and not seen.nan_count and not seen.over_fp16_count
    return is_sound and seen is not None and seen.min_nonzero_abs >= FP16_MIN_NORMAL


def _is_taken_out(graph: Graph, ranges: RangeTable, tensor: str) -> bool:
    read = graph.consumers.get(tensor, ())
    is_same = all(node.standard_op in _ASKS or is_same_in_fp16(node, graph, ranges) for node in read)
    return is_same and bool(read) and tensor not in graph.outputs
