"""Bases that are computed, and raised to so high a power that it shows how FP16 rounds them: (n · h) to the 128th.

A power of t is off by t times what its base is, as a share of itself. FP16 rounds by up to 2^-12 just below 1, and twice as
much just above.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeGuard

import numpy as np
from onnx import TensorProto

from overflow_fixer.evidence.integers.multiples import find_multiples
from overflow_fixer.evidence.origins import Walked, find_origins
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Range, RangeTable

_MOST_ROUNDED = 1 / 2
"""What the base is made of counts where its rounding makes so much of the error that is allowed."""
_BELOW = 1 - 2.0**-12
"""Values up to 1 have FP16's steps just below it, and FP32 rounds a cosine of 1 to a little more."""
_FP32_NOISE = 2.0**-20
"""By so much, as a share, the largest power may be less than it is."""


class RaisedBase(NamedTuple):
    """What raises `tensor`, whose largest or least magnitude is `base`, to up to `exponent`, and those whose rounding counts.

    A power is off by `error` of the largest one at most.
    """

    nodes: tuple[Node, ...]
    tensor: str
    base: float
    exponent: float
    error: float
    batch: str | None


class _Power(NamedTuple):
    """The nodes that compute a power, its own first, and the tensors of its base, its exponents and itself."""

    nodes: tuple[Node, ...]
    base: str
    exponent: str
    power: str


def find_raised_bases(graph: Graph, ranges: RangeTable, limit: float) -> Iterator[RaisedBase]:
    """That of each Pow, and of each Exp of a logarithm times an exponent, of which the error is over the `limit`.

    None of a constant base, of one that FP16 is known to hold, or that is not of FP32; of bases, exponents or powers that have NaN
    or infinities, were not measured, or have no element.
    """
    walked: Walked = {}
    for node in graph.nodes:
        power = _find_power(graph, node)
        found = None if power is None else _find_worst(graph, ranges, power)
        if found is not None and found.error > limit:
            most = found.base * _MOST_ROUNDED * limit / found.error
            origins = find_origins(graph, ranges, found.tensor, most, walked)
            yield found._replace(nodes=(*found.nodes, *origins))


def _find_power(graph: Graph, node: Node) -> _Power | None:
    """x^t, or exp(t log x), in either order."""
    if node.standard_op == "Pow":
        return _Power((node,), node.inputs[0], node.inputs[1], node.outputs[0])
    product = graph.producers.get(node.inputs[0]) if node.standard_op == "Exp" else None
    if product is None or product.standard_op != "Mul":
        return None
    for name, exponent in (product.inputs, product.inputs[::-1]):
        log = graph.producers.get(name)
        if log is not None and log.standard_op == "Log":
            return _Power((node, product, log), log.inputs[0], exponent, node.outputs[0])
    return None


def _find_worst(graph: Graph, ranges: RangeTable, raised: _Power) -> RaisedBase | None:
    """The base that is off most, with the nodes that raise it alone."""
    tensor, power = raised.base, ranges.get(raised.power)
    seen, exponents = ranges.get(tensor), _find_exponents(graph, ranges, raised.exponent)
    is_computed = graph.dtypes.get(tensor) == TensorProto.FLOAT and tensor not in graph.constants
    if exponents is None or not (is_computed and _is_told(seen) and _is_told(power)):
        return None
    if find_multiples(graph, ranges).is_held(tensor):
        return None
    bases = [base for base in (seen.max_abs, seen.min_nonzero_abs) if base > 0]
    errors = [find_rounding_error(base, *exponents, power.max_abs) for base in bases]
    error, base = max(zip(errors, bases, strict=True))
    return RaisedBase(
        raised.nodes, tensor, base, max(map(abs, exponents)), error, ranges.worst_batch_of(seen)
    )


def find_rounding_error(base: float, low: float, high: float, largest: float) -> float:
    """By how much of the `largest` power one of the base is off at most where FP16 rounds that, of exponents from `low` to `high`.

    t e^(t ln b) is largest where t = −1 / ln b, or at an end. Exponents that would give more than the largest are taken for those
    that give it.
    """
    log, most = float(np.log(base)), float(np.log(largest))
    share = step_at(base * _BELOW) / 2 / base
    ends = np.clip([low, high, -1 / log if log else high], low, high)
    last = (most + _FP32_NOISE) / log if log else np.inf
    exponents = np.minimum(ends, last) if log >= 0 else np.maximum(ends, last)
    return float(np.max(np.abs(exponents) * share * np.exp(np.minimum(exponents * log - most, 0.0))))


def _find_exponents(graph: Graph, ranges: RangeTable, tensor: str) -> tuple[float, float] | None:
    """The least and the largest; None where one is not finite, none is there, or they were not measured."""
    values = graph.find_constant(tensor)
    if values is not None and values.size:
        return (float(values.min()), float(values.max())) if np.isfinite(values).all() else None
    seen = ranges.get(tensor)
    return (seen.min, seen.max) if seen is not None and seen.is_finite and seen.element_count else None


def _is_told(seen: Range | None) -> TypeGuard[Range]:
    return seen is not None and seen.is_finite and seen.element_count > 0 and seen.max_abs > 0
