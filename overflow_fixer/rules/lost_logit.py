"""Logits so far from zero, all that matter of them, that FP16 rounds away the differences that a Softmax is of.

At 1500 FP16's steps are 1, and e to the power of half a step is 1.6. It is no matter where one element of a row is far above all
others, 2000 beside 0. So it counts where even the largest probability of a whole batch leaves much to others: then each row has
logits near its largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from overflow_fixer.evidence.differences.small_differences import is_finite, read_maxima
from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.evidence.origins import find_origins
from overflow_fixer.formats import FP16_OVERFLOW, step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array, Finding, PlanPolicy, RangeTable

_MOST_NOISE = 10.0**-1.5
"""30 dB below a probability, as verification tolerates."""
_SHARE_OF_A_LOGARITHM = 0.5
"""Of the largest |log p| what they are on average, root mean square: 0.4 to 0.6 of normal logits."""
_STEP_NOISE = math.sqrt(12)
"""What rounding errs by, spread evenly over a step: the step over this, root mean square."""


class _Lost(NamedTuple):
    """`nearest` is the least magnitude of a row's largest logit, `limit` where FP16's steps become too large.

    `most` is the largest probability of the batch of that index, where it is smallest, or the largest |log p|.
    """

    softmax: Node
    nearest: float
    limit: float
    most: float
    batch: int


def find_lost_logits(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each Softmax or LogSoftmax of such logits that the node is, or whose logits it computes.

    `value` is the least |x| of all rows' largest logits, which are of one sign, `limit` from where on rounding leaves less than
    30 dB of the largest probability of `batch`, or of its logarithms. None of logits with NaN or infinities, or that FP16 is known to hold.
    """
    for lost in _evidence(graph, ranges).get(node.label, ()):
        at, tensor = lost.softmax, lost.softmax.inputs[0]
        is_logarithm = at.standard_op == "LogSoftmax"
        given = f"no less than {-lost.most:.3g}" if is_logarithm else f"no more than {lost.most:.3g}"
        reason = (
            f"the largest of each row of {tensor} is {lost.nearest:.6g} or more in magnitude, where FP16's steps are "
            f"{step_at(lost.nearest):g}, and {at.op_type} {at.label} gives {given} to any in that batch"
        )
        batch = ranges.batch_names[lost.batch]
        yield Finding("lost_logit", node.label, tensor, lost.nearest, lost.limit, reason, batch)


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, list[_Lost]]:
    """For each node concerned, the Softmax and LogSoftmax nodes of such logits."""
    found: dict[str, list[_Lost]] = {}
    for node in (one for one in graph.nodes if one.standard_op in _LARGEST_ERRORS):
        lost = _judge(graph, ranges, node)
        origins = () if lost is None else find_origins(graph, ranges, node.inputs[0], lost.limit)
        for label in dict.fromkeys(one.label for one in (node, *origins)):
            found.setdefault(label, []).extend([lost] if lost is not None else [])
    return found


def _judge(graph: Graph, ranges: RangeTable, node: Node) -> _Lost | None:
    """By the batch whose output bears the least error."""
    logits, output = node.inputs[0], node.outputs[0]
    nearest = _read_nearest(ranges, node)
    is_fp32 = graph.dtypes.get(logits) == TensorProto.FLOAT and is_finite(graph, ranges, output)
    most = read_maxima(ranges, output)
    errors = _LARGEST_ERRORS[node.standard_op](most)
    is_borne = np.isfinite(errors) & (errors > 0)
    if not is_fp32 or not nearest or not is_borne.any() or find_multiples(graph, ranges).is_held(logits):
        return None
    batch = int(np.argmin(np.where(is_borne, errors, math.inf)))
    limit = _find_limit(float(errors[batch]))
    return _Lost(node, nearest, limit, float(most[batch]), batch) if nearest >= limit else None


def _read_nearest(ranges: RangeTable, node: Node) -> float:
    """The least magnitude of a row's largest logit, where all are of one sign and FP16 holds them; else 0."""
    rows = ranges.inner_of.get(node.label, {}).get("row maximum")
    if rows is None or rows.seen.nan_count or not rows.seen.max_abs < FP16_OVERFLOW:
        return 0.0
    return max(rows.seen.min, -rows.seen.max, 0.0)


def _bear_in_probabilities(most: Array) -> Array:
    """The largest error of a logit that moves a probability of `most`, below 1, by no more than 3 %; infinite of others.

    An error d of a logit is one of p (1 - p) d of its probability p, since the derivative of softmax is p (1 - p).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(most < 1, _MOST_NOISE / (1 - most), math.inf)


def _bear_in_logarithms(most: Array) -> Array:
    """The same of log p, which is moved by as much as the logit is."""
    return _MOST_NOISE * _SHARE_OF_A_LOGARITHM * most


_LARGEST_ERRORS: Mapping[str, Callable[[Array], Array]] = {
    "Softmax": _bear_in_probabilities,
    "LogSoftmax": _bear_in_logarithms,
}
"""By operator, the largest root mean square error of a logit that its output bears in each batch, by its largest |output|."""


def _find_limit(error: float) -> float:
    """From where on FP16's steps are so large that rounding errs by more than that."""
    return math.ldexp(1.0, math.ceil(math.log2(error * _STEP_NOISE)) + 10)
