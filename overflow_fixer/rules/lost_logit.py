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

from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.evidence.measured import are_finite, find_inner, read_maxima, read_worst
from overflow_fixer.evidence.origins import find_origins
from overflow_fixer.evidence.softmaxes import Softmax, find_softmaxes
from overflow_fixer.formats import FP16_OVERFLOW, step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array, Finding, PlanPolicy, Range, RangeTable
from overflow_fixer.rules.tolerated import MOST_NOISE

_SHARE_OF_A_LOGARITHM = 0.5
"""Of the largest |log p| what they are on average, root mean square: 0.4 to 0.6 of normal logits."""
_FAR = 128.0
"""From where on FP16's steps, of 1/8, take 3 % of a probability."""
_STEP_NOISE = math.sqrt(12)
"""What rounding errs by, spread evenly over a step: the step over this, root mean square."""


class _Lost(NamedTuple):
    """What a finding tells of the softmax; what is made of numbers over `far` stays in FP32 with it."""

    softmax: Softmax
    value: float
    limit: float
    far: float
    batch: int
    reason: str


def find_lost_logits(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each Softmax or LogSoftmax of such logits that the node is, or whose logits it computes.

    Of one that is written out the node that subtracts something from the logits; the rest of it stays in FP32 with that.
    `value` is the least |x| of all rows' largest logits, which are of one sign, or of what is subtracted; `limit` from where on
    rounding leaves less than 30 dB of the largest probability of `batch`, or of its logarithms. None of logits with NaN or
    infinities, or that FP16 is known to hold. Of a Softmax of logits with a bias that grows with the place `value` may be what
    it loses as a share of what it gives, and `limit` that of 30 dB.
    """
    for lost in _evidence(graph, ranges).get(node.label, ()):
        batch = ranges.batch_names[lost.batch]
        yield Finding(
            "lost_logit", node.label, lost.softmax.logits, lost.value, lost.limit, lost.reason, batch
        )


def _tell(graph: Graph, softmax: Softmax, nearest: float, most: float) -> str:
    """`most` is the largest probability of the batch, or the largest |log p|."""
    writer = graph.producers[softmax.output]
    largest = f"what {softmax.node.label} subtracts" if softmax.is_written_out else "the largest"
    joined = "from" if softmax.is_written_out else "of"
    given = f"no less than {-most:.3g}" if softmax.kind == "LogSoftmax" else f"no more than {most:.3g}"
    return (
        f"{largest} {joined} each row of {softmax.logits} is {nearest:.6g} or more in magnitude, where FP16's steps are "
        f"{step_at(nearest):g}, and {writer.op_type} {writer.label} gives {given} to any in that batch"
    )


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, list[_Lost]]:
    """For each node concerned, the first that is lost of each Softmax and LogSoftmax."""
    found: dict[str, list[_Lost]] = {}
    told = set[str]()
    for softmax in find_softmaxes(graph, ranges):
        is_told = softmax.node.label in told
        lost = None if is_told else _judge(graph, ranges, softmax) or _judge_placed(ranges, softmax)
        if lost is not None:
            told.add(softmax.node.label)
            origins = find_origins(graph, ranges, softmax.logits, lost.far)
            for label in dict.fromkeys(one.label for one in (softmax.node, *origins)):
                found.setdefault(label, []).append(lost)
    return found


def _judge(graph: Graph, ranges: RangeTable, softmax: Softmax) -> _Lost | None:
    """By the batch whose output bears the least error."""
    nearest = _read_nearest(softmax.rows)
    is_fp32 = graph.dtypes.get(softmax.logits) == TensorProto.FLOAT
    is_told = is_fp32 and are_finite(graph, ranges, softmax.output)
    most = read_maxima(ranges, softmax.output)
    errors = _LARGEST_ERRORS[softmax.kind](most)
    is_borne = np.isfinite(errors) & (errors > 0)
    if not is_told or not nearest or not is_borne.any() or _is_held(graph, ranges, softmax.logits):
        return None
    batch = int(np.argmin(np.where(is_borne, errors, math.inf)))
    limit = _find_limit(float(errors[batch]))
    reason = _tell(graph, softmax, nearest, float(most[batch]))
    return _Lost(softmax, nearest, limit, limit, batch, reason) if nearest >= limit else None


def _judge_placed(ranges: RangeTable, softmax: Softmax) -> _Lost | None:
    """By what the scan measured of logits with a bias that grows with the place, in the batch in which most is lost."""
    inner = None if softmax.is_written_out else find_inner(ranges, softmax.node, "softmax loss")
    if inner is None:
        return None
    loss, batch = read_worst(inner)
    reason = (
        f"{softmax.node.label} loses {loss:.3g} of what it gives where {softmax.logits} is rounded to FP16: a bias that grows with "
        "the place is added there, and rounding that loses as much again"
    )
    return _Lost(softmax, loss, MOST_NOISE, _FAR, batch, reason) if loss > MOST_NOISE else None


def _is_held(graph: Graph, ranges: RangeTable, logits: str) -> bool:
    """Whether FP16 is known to hold them."""
    return find_multiples(graph, ranges).is_held(logits)


def _read_nearest(rows: Range | None) -> float:
    """The least magnitude of a row's largest logit, where all are of one sign and FP16 holds them; else 0."""
    if rows is None or rows.nan_count or not rows.max_abs < FP16_OVERFLOW:
        return 0.0
    return max(rows.min, -rows.max, 0.0)


def _bear_in_probabilities(most: Array) -> Array:
    """The largest error of a logit that moves a probability of `most`, below 1, by no more than 3 %; infinite of others.

    An error d of a logit is one of p (1 - p) d of its probability p, since the derivative of softmax is p (1 - p).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(most < 1, MOST_NOISE / (1 - most), math.inf)


def _bear_in_logarithms(most: Array) -> Array:
    """The same of log p, which is moved by as much as the logit is."""
    return MOST_NOISE * _SHARE_OF_A_LOGARITHM * most


_LARGEST_ERRORS: Mapping[str, Callable[[Array], Array]] = {
    "Softmax": _bear_in_probabilities,
    "LogSoftmax": _bear_in_logarithms,
}
"""By kind, the largest root mean square error of a logit that its output bears in each batch, by its largest |output|."""


def _find_limit(error: float) -> float:
    """From where on FP16's steps are so large that rounding errs by more than that."""
    return math.ldexp(1.0, math.ceil(math.log2(error * _STEP_NOISE)) + 10)
