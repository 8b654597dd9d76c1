"""Nodes behind sums of products that call a function where a sum may be over FP16's limit (see overflow_fixer.native)."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import onnx
from onnx import AttributeProto, NodeProto, TensorProto

from overflow_fixer.formats import FP16_MAX
from overflow_fixer.native import DOMAIN
from overflow_fixer.ranges.derivations import Derivation
from overflow_fixer.ranges.monotone import clip, divide, find_ends, multiply
from overflow_fixer.ranges.probes import DETAILED

_MOST_STEPS = 16
"""Each loses 6e-8 at most to rounding, and all of them no more than probes.cpp allows for."""
_MOST_SCALE = 2.0**30
"""What numbers near the least lose to rounding stays small beside FP16's limit when it is multiplied by that."""


class Told(NamedTuple):
    """The `statistics` of a tensor, or of one whose values times `scale` reach as high and are no smaller in magnitude.

    Where those are "", the watch looks at the tensor itself.
    """

    statistics: str
    scale: float


class Ends(NamedTuple):
    """Between which all values of a tensor lie that are no NaN; NaN where nothing is known."""

    least: float
    most: float


_UNKNOWN = Ends(math.nan, math.nan)


@dataclass(frozen=True)
class Watch:
    """In place of the probe of `output`: of one or two `factors`, each with the axis along which it is summed, in `groups`.

    The second may be a convolution's weights (`has_kernel`); one factor alone may have a `constant` shown with it. It calls
    a `function` with a `number`, where an `allowance` does not keep it from that. Both are addresses.
    """

    output: str
    factors: tuple[tuple[str, int], ...]
    groups: int
    function: int
    number: int
    allowance: int
    has_kernel: bool = False
    constant: str = ""

    @property
    def reads(self) -> tuple[str, ...]:
        """The tensors of which it wants to know how far they reach."""
        return tuple(name for name, _ in self.factors)

    def make_node(self, statistics: str, told: Mapping[str, Told], is_small: bool = False) -> NodeProto:
        """It tells the `statistics` of its output, with the smallest magnitude where `is_small`; `told` are those of its factors."""
        inputs = [self.output]
        for name, _ in self.factors:
            inputs += [told[name].statistics, name]
        inputs += [self.constant] if self.constant else []
        numbers = [int(is_small), self.function, self.number, self.allowance]
        of_factors = [(axis, _bits_of(told[name].scale)) for name, axis in self.factors]
        numbers += [of_factors[0][0], self.groups, of_factors[0][1], *of_factors[-1], int(self.has_kernel)]
        return NodeProto(
            op_type="WatchPair" if len(self.factors) == 2 else "Watch",
            domain=DOMAIN,
            input=inputs,
            output=[statistics],
            attribute=[AttributeProto(name="numbers", type=AttributeProto.INTS, ints=numbers)],
        )


def _bits_of(number: float) -> int:
    """As an attribute: ONNX has no doubles."""
    return int(struct.unpack("=q", struct.pack("=d", number))[0])


def make_statistics(name: str, ends: Ends) -> NodeProto:
    """A constant as a native probe's output, which tells no more than the ends."""
    numbers = [ends.most, ends.least, *[math.nan] * (len(DETAILED) - 2)]
    tensor = onnx.helper.make_tensor(name, TensorProto.DOUBLE, [len(numbers)], numbers)
    return onnx.helper.make_node("Constant", [], [name], value=tensor)


def find_told(
    sources: Mapping[str, str], derivations: Mapping[str, Derivation], probed: Mapping[str, str], tensor: str
) -> tuple[str | Ends, float]:
    """The statistics of a tensor, or its ends where native probes tell nothing, and the scale of these: see Told.

    `probed` are the statistics of those with one, or what stands for it, `derivations` say how others follow, `sources` are those of
    sources.find_sources.
    """
    name, scale = sources.get(tensor, tensor), 1.0
    for _ in range(_MOST_STEPS):
        if name in probed:
            return probed[name], scale
        found = _find_larger(derivations[name]) if name in derivations else _UNKNOWN
        if isinstance(found, Ends):  # nobody knows whether a value is over FP16's limit where only an end is
            return (found, scale) if found.most * scale <= FP16_MAX else (_UNKNOWN, 1.0)
        name, scale = derivations[name].sources[0], scale * found
        if not 1 / _MOST_SCALE <= scale <= _MOST_SCALE:
            break
    return _UNKNOWN, 1.0


def _find_larger(one: Derivation) -> float | Ends:
    """By what to multiply the source, so that it reaches as high and the tensor is a part of it; else the tensor's ends."""
    if one.step in (multiply, divide) and one.numbers[0] > 0:
        return one.numbers[0] if one.step is multiply else 1 / one.numbers[0]
    least, most = find_ends(one.step, one.numbers)
    if one.step is clip and least <= 0 and most > FP16_MAX:
        return 1.0
    return Ends(least, most) if least >= -FP16_MAX and most <= FP16_MAX else _UNKNOWN
