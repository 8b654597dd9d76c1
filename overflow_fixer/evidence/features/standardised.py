"""Features less their mean, over their deviation, as constants of the model tell them: (p − 1013.2) / 1.2.

1013 is a multiple of 0.5 in FP16, which is 0.4 of what is made of it. In a tensor of many features the range of the
difference does not show that: the constants do, feature by feature, those of matrices behind it as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from overflow_fixer.evidence.differences.losses import FEWEST_STEPS, MOST_ROUNDED, LostDifference, tell_steps
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.features.fed_features import find_movers, is_of_features
from overflow_fixer.evidence.features.projections import list_projections
from overflow_fixer.evidence.measured import are_finite
from overflow_fixer.evidence.semantics import readers
from overflow_fixer.formats import FP16_OVERFLOW, step_at
from overflow_fixer.graph.feature_operators import read_scaler
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array, RangeTable

_MOST_FEATURES = 1 << 22


class _Feature(NamedTuple):
    """One element of the constants, without signs: the mean, the factor, and FP16's step at the mean behind the factor."""

    mean: float
    factor: float
    lost: float


def find_standardised(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each that is less than 64 of FP16's steps at the mean, scaled, at the element of the constants that loses most.

    The value is max |x| of what the factor gives, which is the tensor. None of what FP16 is known to hold, of what has NaN
    or infinities, nor of means that FP16 cannot hold.
    """
    for node in graph.nodes:
        for source, made, mean, factor in _find_forms(graph, node):
            worst = _find_worst(mean, factor) if _is_rounded(graph, ranges, node, source, made) else None
            most = ranges.by_tensor[made].max_abs if worst is not None else 0.0
            if worst is not None and 0 < most < FEWEST_STEPS * worst.lost:
                nodes = tuple(find_movers(graph, ranges, node, source, MOST_ROUNDED * most / worst.factor))
                if nodes:
                    yield _tell(ranges, nodes, source, made, worst)


def _tell(
    ranges: RangeTable, nodes: tuple[Node, ...], source: str, made: str, worst: _Feature
) -> LostDifference:
    seen = ranges.by_tensor[made]
    reason = (
        f"{made} is {seen.max_abs:.6g} at most, and is what {source} has beside {worst.mean:.6g}, times {worst.factor:.6g}, in "
        f"a feature of it: {tell_steps(worst.mean)}, and {worst.lost:.6g} behind the factor"
    )
    limit = FEWEST_STEPS * worst.lost
    return LostDifference(nodes, made, seen.max_abs, limit, reason, ranges.worst_batch_of(seen))


def _is_rounded(graph: Graph, ranges: RangeTable, node: Node, source: str, made: str) -> bool:
    """Whether both are finite, and FP16 is not known to hold the first, of what the node reads."""
    return are_finite(graph, ranges, source, made) and source in find_lost_terms(graph, ranges, node)


def _find_worst(mean: Array, factor: Array) -> _Feature | None:
    """The element whose steps are the largest behind the factor; None where there is none."""
    means, factors = (np.abs(one).ravel() for one in np.broadcast_arrays(mean, factor))
    is_lost = (means > 0) & (means < FP16_OVERFLOW) & np.isfinite(factors)
    lost = np.where(is_lost, step_at(means), 0.0) * np.where(is_lost, factors, 0.0)
    if not lost.size or not lost.max() > 0:
        return None
    index = int(lost.argmax())
    return _Feature(float(means[index]), float(factors[index]), float(lost[index]))


def _find_forms(graph: Graph, node: Node) -> Iterator[tuple[str, str, Array, Array]]:
    """What the node takes a constant from, what is made of that, and the constant and the factor, float64, which broadcast.

    The first is fed: what a layer gives out may be added to others, and its own rounding is that layer's.
    """
    if node.standard_op == "BatchNormalization" and is_of_features(graph, node.inputs[0]):
        yield from _read_batch_norm(graph, node)
    scaler = read_scaler(node)
    if scaler is not None and _fit(*scaler) and is_of_features(graph, node.inputs[0]):
        yield node.inputs[0], node.outputs[0], *scaler
    constants = [name for name in node.inputs if name in graph.constants]
    if node.standard_op not in ("Sub", "Add") or len(node.inputs) != 2 or len(constants) != 1:
        return
    source = next(name for name in node.inputs if name not in graph.constants)
    mean = _read(graph, constants[0]) if is_of_features(graph, source) else None
    if mean is not None:
        made = list(_find_scaled(graph, node)) or [(node.outputs[0], np.ones(()))]
        made += (
            (name, np.abs(one).max(axis=1, initial=0.0))
            for name, one in list_projections(graph, node.outputs[0])
        )
        yield from ((source, name, mean, factor) for name, factor in made if _fit(mean, factor))


def _find_scaled(graph: Graph, node: Node) -> Iterator[tuple[str, Array]]:
    """What a constant factor makes of what the node writes, and the factor."""
    for reader, slot in readers(graph, node.outputs[0]):
        factor = _read_factor(graph, reader, slot)
        if factor is not None:
            yield reader.outputs[0], factor


def _read_factor(graph: Graph, node: Node, slot: int) -> Array | None:
    """What it multiplies what comes in at `slot` by; None where that is no constant."""
    if len(node.inputs) != 2 or (node.standard_op, slot) not in (("Div", 0), ("Mul", 0), ("Mul", 1)):
        return None
    value = _read(graph, node.inputs[1 - slot])
    if value is None or node.standard_op == "Mul":
        return value
    with np.errstate(divide="ignore"):
        return np.asarray(1 / value)


def _read_batch_norm(graph: Graph, node: Node) -> Iterator[tuple[str, str, Array, Array]]:
    """None of one that trains, which reads no mean; a feature whose variance is under epsilon never varied."""
    scale, _, mean, variance = (_read(graph, name) for name in node.inputs[1:5])
    epsilon, trains = node.value_of("epsilon", 1e-5), node.value_of("training_mode", 0)
    if scale is not None and mean is not None and variance is not None and not trains:
        with np.errstate(divide="ignore", invalid="ignore"):
            factor = np.where(variance > epsilon, scale / np.sqrt(variance + epsilon), 0.0)
        yield node.inputs[0], node.outputs[0], mean, factor


def _read(graph: Graph, tensor: str) -> Array | None:
    value = graph.find_constant(tensor)
    return None if value is None else np.asarray(value, np.float64)


def _fit(mean: Array, factor: Array) -> bool:
    """Whether they broadcast, to no more elements than features are."""
    try:
        return math.prod(np.broadcast_shapes(mean.shape, factor.shape)) <= _MOST_FEATURES
    except ValueError:
        return False
