"""Of which power of two the values of each tensor are multiples: of 1, where they are integers.

FP16 has 11 significant bits, so it holds every multiple of 2^k up to 2^(k + 11): every integer up to 2048, every
second one up to 4096. A pixel at a stride of 8 is a multiple of 8, and exact up to 16384.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import onnx
from onnx import TensorProto

from overflow_fixer.evidence.semantics import moves, read_reduction
from overflow_fixer.formats import FP16_OVERFLOW, round_to_fp16
from overflow_fixer.graph.folding import find_folder
from overflow_fixer.graph.model import FLOAT_TYPES, Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ROUNDS, SCATTERS
from overflow_fixer.records import Array, Range, RangeTable

EXACT_STEPS = 2048.0
"""FP16 holds every multiple of a power of two up to so many times it."""

_LARGE_ELEMENTS = 1 << 16
_BLOCK_ELEMENTS = 1 << 18
"""Looked at together: what is computed of them takes some forty bytes an element."""
INTEGERS = frozenset(
    getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)
)
_FIRST = (0,)
_ALL = None
_COMBINED: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys("Add Sub Sum Max Min Mod".split(), _ALL),
    **dict.fromkeys(
        """Neg Abs Relu ThresholdedRelu CumSum ReduceSum ReduceMax ReduceMin ReduceL1 TopK MaxPool GlobalMaxPool Trilu
        CenterCropPad""".split(),
        _FIRST,
    ),
    "Range": (0, 2),
    "Where": (1, 2),
}
"""Operators whose values are sums, differences and choices of what comes in at these slots."""
_PRODUCTS = frozenset("Mul MatMul Einsum".split())
_CHOOSES = frozenset("Gather GatherND GatherElements Slice Split Compress".split())
"""Operators that take some of the elements: of a row of features the columns that are ids, for one."""


@dataclass(eq=False)
class Multiples:
    """Looks tensors up; `steps` has the power of two for each of which one is known (inf: nothing but zeros).

    It `guesses` that some elements of a float input are integers where their extremes are, and the smallest but 0.
    """

    graph: Graph
    ranges: RangeTable
    steps: dict[str, float] = field(default_factory=dict)
    guesses: bool = True

    def __post_init__(self) -> None:
        self._folder = find_folder(self.graph)
        self._fed = {spec.name for spec in self.graph.inputs}
        for name in self._fed:
            self._note(
                name, None if name in self.ranges.fractional else _step_of_input(self.ranges.get(name))
            )
        for node in self.graph.nodes:
            if node.op_type != "Constant":
                step = _step_of_output(node, self)
                for name in node.writes:
                    known = step if name == node.outputs[0] or node.op_type == "Split" else None
                    self._note(name, self._step_of_fed(node, name) if known is None else known)

    def _step_of_fed(self, node: Node, output: str) -> float | None:
        """Of inputs that are only moved, or of some of their elements, by what was seen there."""
        if not moves(node, 0) or not self._fed.issuperset(
            name for name in node.reads if self.graph.is_float(name)
        ):
            return None
        self._fed.add(output)
        is_guess = self.guesses and node.standard_op in _CHOOSES
        return _step_of_input(self.ranges.get(output)) if is_guess else None

    def step(self, tensor: str) -> float | None:
        """The largest power of two that is known to divide every value; None where there is none."""
        if tensor not in self.steps and tensor in self.graph.constants and self._is_worth_reading(tensor):
            value = self.graph.read_constant(tensor)
            self._note(tensor, step_of(value))
        return self.steps.get(tensor)

    def is_held(self, tensor: str) -> bool:
        """Whether every value that was seen is known to be an FP16 number."""
        seen = self.ranges.get(tensor)
        if seen is None or seen.nan_count:
            return False
        step = self._sure.step(tensor)
        if math.isnan(seen.max_abs) or (step is not None and seen.max_abs <= EXACT_STEPS * step):
            return True
        if seen.min == seen.max or seen.min_nonzero_abs == seen.max_abs:  # one magnitude, and zeros perhaps
            return _is_fp16(np.asarray(seen.max_abs))
        value = self._folder.value(tensor)
        return value is not None and _is_fp16(value)

    def is_lost(self, tensor: str) -> bool:
        """Whether it is of FP32 and holds integers (or their multiples) of which FP16 cannot tell all apart.

        Not where it has NaN or infinities, and not a mask of one magnitude that is over FP16's range: what that comes
        to is the matter of other rules.
        """
        seen = self.ranges.get(tensor)
        if seen is None or not EXACT_STEPS < seen.max_abs < math.inf or seen.nan_count:
            return False
        step = self.step(tensor)
        if step is None or step < 1 or self.graph.dtypes.get(tensor) != TensorProto.FLOAT:
            return False
        is_mask = seen.min_nonzero_abs == seen.max_abs >= FP16_OVERFLOW
        return not is_mask and not self.is_held(tensor)

    @cached_property
    def _sure(self) -> Multiples:
        return Multiples(self.graph, self.ranges, guesses=False) if self.guesses else self

    def _note(self, tensor: str, step: float | None) -> None:
        dtype = self.graph.dtypes.get(tensor)
        if dtype == TensorProto.BOOL:
            self.steps[tensor] = 1.0
        elif dtype in INTEGERS:
            self.steps[tensor] = max(1.0, step or 1.0)
        elif dtype in FLOAT_TYPES and step is not None:  # narrower ones stop at their largest value
            self.steps[tensor] = step

    def _is_worth_reading(self, tensor: str) -> bool:
        """Numbers; a large constant is not read where FP16 has room for integers as large as its values."""
        seen = self.ranges.get(tensor)
        if not self.graph.is_float(tensor) and self.graph.dtypes.get(tensor) not in INTEGERS | {
            TensorProto.BOOL
        }:
            return False
        is_small = math.prod(self.graph.constants[tensor].dims) <= _LARGE_ELEMENTS
        return is_small or (seen is not None and seen.max_abs > EXACT_STEPS)


@lru_cache(maxsize=1)
def find_multiples(graph: Graph, ranges: RangeTable) -> Multiples:
    """The same object for the same graph and ranges, as long as no other are asked for."""
    return Multiples(graph, ranges)


def step_of(values: Array) -> float | None:
    """The largest power of two that divides every value; inf of zeros and of nothing, None with NaN or infinity."""
    flat, step = np.asarray(values).reshape(-1), math.inf
    for start in range(0, flat.size, _BLOCK_ELEMENTS):
        found = _step_of_block(flat[start : start + _BLOCK_ELEMENTS])
        if found is None:
            return None
        step = min(step, found)
    return step


def _step_of_block(values: Array) -> float | None:
    wide = values.astype(np.float64)
    wide = wide[wide != 0]
    if not np.isfinite(wide).all():
        return None
    mantissas, exponents = np.frexp(wide)
    whole = np.ldexp(mantissas, 53).astype(np.int64)
    return float(np.min(np.ldexp((whole & -whole).astype(np.float64), exponents - 53), initial=math.inf))


def _is_fp16(value: Array) -> bool:
    return bool(np.array_equal(round_to_fp16(value).astype(np.float64), value.astype(np.float64)))


def _step_of_input(seen: Range | None) -> float | None:
    """Of integers, 1: floats that are fed are taken for such where their extremes and the smallest but 0 are."""
    if seen is None or seen.nan_count or not math.isfinite(seen.max_abs):
        return None
    ends = (seen.min, seen.max, 1.0 if math.isnan(seen.min_nonzero_abs) else seen.min_nonzero_abs)
    return 1.0 if all(math.isfinite(end) and end == round(end) for end in ends) else None


def _step_of_output(node: Node, known: Multiples) -> float | None:
    op = node.standard_op
    if op in _OF_OPERATOR:
        return _OF_OPERATOR[op](node, known)
    if op in _PRODUCTS:
        return _combine(node.inputs, known, math.prod)
    if moves(node, 0):
        return _combine(node.inputs if op == "Concat" else node.inputs[:1], known, min)
    return _combine(_at(node, _COMBINED[op]), known, min) if op in _COMBINED else None


def _at(node: Node, slots: tuple[int, ...] | None) -> list[str]:
    """What the node reads at these slots (None: at all)."""
    return [name for slot, name in enumerate(node.inputs) if name and (slots is None or slot in slots)]


def _combine(
    tensors: Iterable[str], known: Multiples, combine: Callable[[Iterable[float]], float]
) -> float | None:
    """None where one is unknown; constants are asked for last, since they are read for it."""
    steps: list[float] = []
    for name in sorted(tensors, key=lambda name: name in known.graph.constants):
        step = known.step(name)
        if step is None:
            return None
        steps.append(step)
    return combine(steps) if steps else None


def _step_of_quotient(node: Node, known: Multiples) -> float | None:
    """By a power of two alone."""
    step, divisor = known.step(node.inputs[0]), known.ranges.get(node.inputs[1])
    if step is None or divisor is None or divisor.min != divisor.max or divisor.max <= 0:
        return None
    return step / divisor.max if math.frexp(divisor.max)[0] == 0.5 else None


def _step_of_whole(node: Node, known: Multiples) -> float:
    return max(1.0, known.step(node.inputs[0]) or 1.0)


def _step_of_resized(node: Node, known: Multiples) -> float | None:
    """Of the nearest elements."""
    return known.step(node.inputs[0]) if node.value_of("mode", b"nearest") == b"nearest" else None


def _step_of_sign(node: Node, known: Multiples) -> float:
    return 1.0


def _step_of_filled(node: Node, known: Multiples) -> float | None:
    filled = node.attribute("value")
    return math.inf if filled is None else step_of(onnx.numpy_helper.to_array(filled.t))


def _step_of_clipped(node: Node, known: Multiples) -> float | None:
    return _with_attributes(_combine(_at(node, (0, 1, 2)), known, min), node, "min", "max")


def _step_of_padded(node: Node, known: Multiples) -> float | None:
    if node.value_of("mode", b"constant") != b"constant":
        return known.step(node.inputs[0])
    return _with_attributes(_combine(_at(node, (0, 2)), known, min), node, "value")


def _with_attributes(step: float | None, node: Node, *names: str) -> float | None:
    """With the numbers that are attributes below opset 11, and inputs since."""
    told = step_of(np.asarray([found.f for name in names if (found := node.attribute(name)) is not None]))
    return None if step is None or told is None else min(step, told)


def _step_of_scattered(node: Node, known: Multiples) -> float | None:
    """An element is multiplied never, once or more often, so that of fractions nothing is known."""
    if read_reduction(node) != b"mul":
        return _combine(_at(node, (0, 2)), known, min)
    factor = known.step(node.inputs[2])
    return known.step(node.inputs[0]) if factor is not None and factor >= 1 else None


_OF_OPERATOR: dict[str, Callable[[Node, Multiples], float | None]] = {
    "Clip": _step_of_clipped,
    "ConstantOfShape": _step_of_filled,
    "Div": _step_of_quotient,
    "Pad": _step_of_padded,
    "Sign": _step_of_sign,
    **dict.fromkeys("Resize Upsample".split(), _step_of_resized),
    **dict.fromkeys(ROUNDS, _step_of_whole),
    **dict.fromkeys(SCATTERS, _step_of_scattered),
}
"""Operators whose attributes, or values, tell more than what they read."""
