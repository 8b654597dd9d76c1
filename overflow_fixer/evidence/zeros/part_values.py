"""Parts of a tensor, and whether they have the values of it that FP16 makes zero of.

A Slice, Split, Gather or Compress leaves elements out, and the smallest of the whole may be among these. What was measured
of the part tells.
"""

from __future__ import annotations

import math

from onnx import TensorProto

from overflow_fixer.evidence.zeros.near_zero import SUMS
from overflow_fixer.evidence.zeros.small_sources import carry_back
from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import RangeTable

_WEIGHS = frozenset({"CumSum", "MatMul", "Gemm"})
"""Sums of which nobody knows how many terms, or which weights, are in the elements of a part."""
_TWICE = frozenset({"Add", "Sum"})
"""Operators of which an output may be twice as large as what FP16 makes zero of."""
_ROUNDING = 1 + 2.0**-20
"""What FP32 may have made of a value that it computed on the way."""


def may_hold(graph: Graph, ranges: RangeTable, tensor: str, source: str, limit: float) -> bool:
    """Whether elements of `tensor` may be of elements of `source` that are no larger than `limit`, or sums of such.

    So it is where nobody can tell; it is not where there was nothing but zeros and NaN.
    """
    own, least = _carry_to(graph, ranges, tensor, source)
    if not least > 0:
        return not math.isnan(least)
    writer = graph.producers.get(source)
    op = "" if writer is None else writer.standard_op
    terms = list(carry_back(graph, ranges, writer, least)) if writer is not None and op in SUMS else []
    passed = limit if least == own else limit * _ROUNDING
    magnitudes = (least, *(0 if op in _WEIGHS else term.magnitude for term in terms))
    return min(magnitudes) <= passed


def _carry_to(graph: Graph, ranges: RangeTable, tensor: str, source: str) -> tuple[float, float]:
    """The smallest magnitude but zero of the tensor, and of the elements of `source` that it is of.

    The latter by the algebra of what is between, where that reads one tensor throughout; else it is -inf. NaN where
    there are none.
    """
    seen = ranges.get(tensor)
    own = least = -math.inf if seen is None else seen.min_nonzero_abs
    while least > 0 and tensor != source:
        node = graph.producers.get(tensor)
        parts = list(carry_back(graph, ranges, node, least)) if node is not None else []
        if node is None or node.standard_op in _TWICE or len(parts) != 1:
            return own, -math.inf
        tensor, least = parts[0]
    return own, least


def is_told_by_itself(graph: Graph, ranges: RangeTable, tensor: str, least: float) -> bool:
    """Whether FP16 makes zero of the smallest value of the tensor as well, one that is larger than `least`, in FP32."""
    seen = ranges.get(tensor)
    is_plain = seen is not None and graph.dtypes.get(tensor) == TensorProto.FLOAT
    return is_plain and seen is not None and max(least, 0.0) < seen.min_nonzero_abs <= FP16_UNDERFLOW
