"""A quotient near a pole: its largest elements are of divisors of which FP16 leaves a few steps, whatever the others are.

Of y = n / d no |d| is over max |n| / |y|, so that of the largest quotient is max |n| / max |y| at most. In 1 / (1 − 0.9999^t)
that is the divisor of the least t.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from overflow_fixer.evidence.differences.losses import (
    FP32_NOISE,
    STEPS_OF_A_DIVISOR,
    LostDifference,
    tell_steps,
)
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.measured import are_finite, read_maxima
from overflow_fixer.evidence.paths import walk_back
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, DIVISOR_SLOTS
from overflow_fixer.records import RangeTable

_LEVELS = frozenset("Log Sigmoid HardSigmoid Tanh Softsign Erf Atan Asinh".split())
"""Functions of which the largest elements are no larger than others, so that most of what is made is not theirs."""


class _Quotient(NamedTuple):
    """Of a node that divides, by batch: the largest dividend, the largest quotient, and what the divisor of that is at most."""

    node: Node
    dividends: npt.NDArray[np.float64]
    largest: npt.NDArray[np.float64]
    divisors: npt.NDArray[np.float64]


def find_poles(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each difference that a node divides by, as it is or moved, in the batch in which least is left of the largest quotient's.

    The value is what it is at most there, and the limit 16 of FP16's steps at terms that cancel. None of a quotient, a
    dividend or a difference with NaN or infinities in any batch, nor of terms that FP16 holds; none where a function alone
    that levels large values reads the quotient.
    """
    for node in graph.nodes:
        quotient = _read_quotient(graph, ranges, node)
        if quotient is None or _is_levelled(graph, node):
            continue
        divisor = node.inputs[DIVISOR_SLOTS[node.standard_op]]
        for source in walk_back(graph, divisor, lambda one, name: moves(one, one.inputs.index(name))):
            if _is_difference(graph, ranges, source):
                yield from _judge(graph, ranges, source, quotient)


def _read_quotient(graph: Graph, ranges: RangeTable, node: Node) -> _Quotient | None:
    if node.standard_op not in DIVISOR_SLOTS or not are_finite(graph, ranges, node.outputs[0]):
        return None
    dividends = np.ones(len(ranges.batch_names))
    if node.standard_op == "Div":
        if not are_finite(graph, ranges, node.inputs[0]):
            return None
        dividends = read_maxima(ranges, node.inputs[0])
    largest = read_maxima(ranges, node.outputs[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        return _Quotient(node, dividends, largest, dividends / largest)


def _is_levelled(graph: Graph, node: Node) -> bool:
    """Whether nothing but such functions reads what the node writes."""
    name = node.outputs[0]
    behind = graph.consumers.get(name, ())
    return bool(behind) and name not in graph.outputs and all(one.standard_op in _LEVELS for one in behind)


def _is_difference(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    """Whether its terms may cancel: of a sum of what is of one sign, such as an epsilon and a variance, nothing is lost."""
    if node.standard_op not in ADDS or not find_lost_terms(graph, ranges, node):
        return False
    if not are_finite(graph, ranges, *node.inputs, *node.writes):
        return False
    terms = [(ranges.by_tensor[name].min, ranges.by_tensor[name].max) for name in node.inputs]
    if node.standard_op == "Sub":
        terms[1] = (-terms[1][1], -terms[1][0])
    return min(low for low, _ in terms) < 0 < max(high for _, high in terms)


def _read_cancelling(ranges: RangeTable, node: Node) -> npt.NDArray[np.float64]:
    """How large terms can be that cancel, by batch: none is larger than all others together."""
    largest = np.array([read_maxima(ranges, name) for name in node.inputs])
    cancelling: npt.NDArray[np.float64] = np.minimum(largest, largest.sum(axis=0) - largest).max(axis=0)
    return cancelling


def _judge(graph: Graph, ranges: RangeTable, node: Node, quotient: _Quotient) -> Iterator[LostDifference]:
    """Nothing where no two terms cancel in the batch, and of a part of the divisor that is never as small as it."""
    terms, least = _read_cancelling(ranges, node), ranges.by_tensor[node.outputs[0]].min_nonzero_abs
    limits = STEPS_OF_A_DIVISOR * step_at(terms)
    reaches = quotient.divisors * (1 + FP32_NOISE) >= least  # FP32 rounds quotients
    is_near = (terms > 0) & (quotient.divisors > 0) & reaches & (quotient.divisors < limits)
    if not is_near.any():
        return
    batch = int(np.argmin(np.where(is_near, quotient.divisors / limits, np.inf)))
    left, most, limit = (float(row[batch]) for row in (quotient.divisors, terms, limits))
    name, end = node.outputs[0], quotient.node
    reason = (
        f"{end.op_type} {end.label} divides by {name}, which is {left:.6g} at most where it gives {quotient.largest[batch]:.6g}, "
        f"since it divides nothing over {quotient.dividends[batch]:.6g}, and terms of up to {most:.6g} that cancel lose much: "
        f"{tell_steps(most)}"
    )
    nodes = tuple(find_sources(graph, ranges, node, left))
    yield LostDifference(nodes, name, left, limit, reason, ranges.batch_names[batch])
