"""Features that trees split, and of whose thresholds FP16 tells few apart: a pressure of 1013 between 1009 and 1017.

What falls on the other side of a threshold is another leaf, however near it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from overflow_fixer.evidence.differences.losses import LostDifference, tell_steps
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.features.fed_features import find_movers, is_of_features
from overflow_fixer.evidence.integers.multiples import EXACT_STEPS
from overflow_fixer.evidence.measured import are_finite
from overflow_fixer.formats import FP16_OVERFLOW, step_at
from overflow_fixer.graph.feature_operators import read_splits
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array, RangeTable

_FEWEST_STEPS = 256
"""Forests near 30 dB where there are fewer between the least threshold of a feature and the largest."""
_FEWEST_THRESHOLDS = 8
"""Fewer are near one another by chance, of a feature that is seldom asked for."""
_ROUNDED = 4.0
"""How many times what is between them a value is that FP16 rounds by as much."""


class _Splits(NamedTuple):
    """Of the thresholds of one feature: the largest magnitude, and what is between the least and the largest."""

    feature: int
    most: float
    between: float

    @property
    def steps(self) -> float:
        return self.between / float(step_at(self.most))


def find_split_features(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """What trees read, where all that is between a feature's thresholds, the value, is less than 256 of FP16's steps there.

    None of what FP16 is known to hold, of what has NaN or infinities, nor of what no input of the model is moved to; none of
    features with fewer than 8 thresholds.
    """
    for node in graph.nodes:
        worst = _find_worst(node)
        if worst is not None and worst.steps < _FEWEST_STEPS and _is_rounded(graph, ranges, node):
            movers = find_movers(graph, ranges, node, node.inputs[0], _ROUNDED * worst.between)
            nodes = tuple(movers)
            if nodes:
                yield _tell(node, nodes, worst)


def _tell(node: Node, nodes: tuple[Node, ...], worst: _Splits) -> LostDifference:
    reason = (
        f"{node.op_type} {node.label} splits feature {worst.feature} of {node.inputs[0]} at numbers of up to {worst.most:.6g} "
        f"that are at most {worst.between:.6g} apart: {tell_steps(worst.most)}"
    )
    limit = _FEWEST_STEPS * float(step_at(worst.most))
    return LostDifference(nodes, node.inputs[0], worst.between, limit, reason)


def _is_rounded(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    source = node.inputs[0]
    is_lost = source in find_lost_terms(graph, ranges, node)
    return is_lost and are_finite(graph, ranges, source) and is_of_features(graph, source)


def _find_worst(node: Node) -> _Splits | None:
    """The feature with the fewest steps; None where each has few thresholds, or is told apart as integers are."""
    many = (
        (feature, splits)
        for feature, splits in read_splits(node).items()
        if len(splits) >= _FEWEST_THRESHOLDS
    )
    found = (_Splits(feature, *_measure(splits)) for feature, splits in many)
    told = (one for one in found if one.between > 0 and one.most < FP16_OVERFLOW)
    return min(told, key=lambda one: one.steps, default=None)


def _measure(splits: Array) -> tuple[float, float]:
    """The largest magnitude and what is between; 0 of what lies between integers that FP16 holds."""
    most = float(np.abs(splits).max())
    are_between_integers = most < EXACT_STEPS and bool((splits * 2 % 1 == 0).all())
    return most, 0.0 if are_between_integers else float(splits[-1] - splits[0])
