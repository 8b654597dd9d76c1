"""A power of a number that FP16 rounds so that the power is another: 0.9999 to the 1000th.

FP16 has 1 in place of 0.9999, and 1 for all of its powers; 1 − 0.9999^t, a bias correction, is zero then. By as much as
the number is off, its logarithm is, and the exponent multiplies that. What is rounded may be computed, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from overflow_fixer.evidence.paths import trace_moves
from overflow_fixer.evidence.raised_bases import RaisedBase, find_raised_bases
from overflow_fixer.formats import round_to_fp16
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array, Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.batches import find_worst_batch
from overflow_fixer.rules.by_node import list_by_node

LARGEST_ERROR = 2.0**-6
"""Of the largest power, where the worst of them leaves 36 dB: see docs/numerics.md."""
_MOST_BASES = 1 << 20
_MOST_MOVERS = 16


class _Power(NamedTuple):
    """A node that raises `tensor`, a constant, and those that move it there; and the base of which the power is off most.

    FP16 has `rounded` in place of `base`, and a power of `exponent` or less in magnitude is off by `error` of the largest power.
    """

    nodes: tuple[Node, ...]
    tensor: str
    base: float
    rounded: float
    exponent: float
    error: float
    batch: str | None


def find_lost_powers(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding where the node raises a constant to such powers, or moves it on its way there; and where it computes such a base.

    `tensor` is the base, `value` by how much of the largest power one is off at most, `limit` 1/64, `batch` that of the
    largest exponent, or of the largest base that is computed. None where exponents or powers have NaN or infinities or were not
    measured; of a constant that FP16 cannot hold or makes zero of, which are other rules', or of a base that is not of FP32.
    """
    for power in _evidence(graph, ranges).get(node.label, ()):
        reason = (
            f"{power.tensor} has {power.base:.9g}, of which FP16 makes {power.rounded:.9g}, and {power.nodes[0].label} raises it to "
            f"up to {power.exponent:.6g}: off by {power.error:.3g} of the largest power"
        )
        yield Finding("lost_power", node.label, power.tensor, power.error, LARGEST_ERROR, reason, power.batch)
    for raised in _list_raised(graph, ranges).get(node.label, ()):
        reason = (
            f"{raised.nodes[0].label} raises {raised.tensor}, about {raised.base:.9g}, to up to {raised.exponent:.6g}: rounded to FP16, "
            f"the power is off by up to {raised.error:.3g} of the largest one"
        )
        yield Finding(
            "lost_power", node.label, raised.tensor, raised.error, LARGEST_ERROR, reason, raised.batch
        )


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> Mapping[str, list[_Power]]:
    found = (_find_power(graph, ranges, node) for node in graph.nodes if node.standard_op == "Pow")
    return list_by_node(power for power in found if power is not None and power.error > LARGEST_ERROR)


@lru_cache(maxsize=1)
def _list_raised(graph: Graph, ranges: RangeTable) -> Mapping[str, list[RaisedBase]]:
    return list_by_node(find_raised_bases(graph, ranges, LARGEST_ERROR))


def _find_power(graph: Graph, ranges: RangeTable, node: Node) -> _Power | None:
    tensor, movers = trace_moves(graph, node.inputs[0], _MOST_MOVERS)
    seen, powers = (ranges.get(name) for name in (node.inputs[1], node.outputs[0]))
    if graph.dtypes.get(tensor) != TensorProto.FLOAT or seen is None or powers is None:
        return None
    are_finite = seen.is_finite and powers.is_finite and seen.element_count > 0 and powers.max_abs > 0
    base = graph.find_constant(tensor) if are_finite else None
    if base is None or not 0 < base.size <= _MOST_BASES:
        return None
    exact = np.abs(base.astype(np.float64)).reshape(-1)
    rounded = np.abs(round_to_fp16(exact).astype(np.float64))
    errors = find_errors(exact, rounded, seen.min, seen.max, powers.max_abs)
    worst = int(errors.argmax())
    told = float(exact[worst]), float(rounded[worst]), seen.max_abs, float(errors[worst])
    return _Power((node, *movers), tensor, *told, find_worst_batch(graph, ranges, seen.tensor))


def find_errors(exact: Array, rounded: Array, low: float, high: float, largest: float) -> Array:
    """By how much of the `largest` power that of each base, rounded, is off at most, of exponents from `low` to `high`.

    float64 [base], none negative; 0 of a base that is 0 or NaN, or becomes 0 or infinite. Exponents that would give more than
    the largest are taken for those that give it. With g = t ln b and ρ = ln (rounded) / ln b, |e^(ρ g) − e^g| is largest where
    ρ e^(ρ g) = e^g, at g = ln ρ / (1 − ρ), or at an end.
    """
    is_held = (exact > 0) & (rounded > 0) & np.isfinite(rounded)
    log, log_rounded = (np.log(np.where(is_held, one, 1.0)) for one in (exact, rounded))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(log == 0, 1.0, log_rounded / log)
        turning = np.where(ratio == 1, -1.0, np.log(ratio) / (1 - ratio))
        exponents = (low, high, np.clip(turning / log, low, high))
        grown = [np.minimum(exponent * log, np.log(largest)) for exponent in exponents]
    with np.errstate(over="ignore"):
        shares = [np.abs(np.exp(one * ratio) - np.exp(one)) / largest for one in grown]
    return np.asarray(np.max(shares, axis=0))
