"""A value inside a node that follows from the range of a tensor which the node reads or writes.

Functions that grow, such as a power or an exponential, have their largest value at the largest input; the sum
that a mean divides is the output times the number of its terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto

from overflow_fixer.formats import FP16_MAX, FP16_UNDERFLOW
from overflow_fixer.graph import Graph, Node
from overflow_fixer.records import Finding, PlanPolicy, Range, RangeTable, Severity
from overflow_fixer.rules.semantics import operator


@dataclass(frozen=True)
class _Inner:
    """A value inside a node, and the range that it follows from."""

    seen: Range
    value: float
    text: str
    is_bound: bool = False


def find_large_functions(
    node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy
) -> Iterator[Finding]:
    """A finding for each such value over the threshold (a bound: over 65504), and for a logarithm of what FP16 makes zero.

    Nothing is said of a tensor that holds NaN or infinities itself: that is the rule non_finite's; nor of a node that
    does not compute FP32.
    """
    slot, find = _FUNCTIONS.get(operator(node), (None, None))
    if slot is None or find is None:
        return
    tensor = (node.outputs if slot == _OUTPUT else node.inputs)[0]
    seen = ranges.get(tensor) if graph.dtypes.get(tensor) == TensorProto.FLOAT else None
    if slot == _OUTPUT and "sum of squares" in ranges.inner_of.get(
        node.label, ()
    ):  # measured, since rows are long
        return
    if seen is None or seen.nan_count or not math.isfinite(seen.max_abs):
        return
    for inner in find(node, seen):
        yield from _judge(node, inner, ranges, policy)


def _judge(node: Node, inner: _Inner, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    batch, tensor = ranges.worst_batch_of(inner.seen), inner.seen.tensor
    if operator(node) == "LogSoftmax":
        if inner.value <= FP16_UNDERFLOW:
            reason = (
                f"inside, {inner.text} is {inner.value:.6g}, which FP16 rounds to 0 as all up to {FP16_UNDERFLOW:.6g}, and "
                "the logarithm of 0 is -inf"
            )
            yield Finding("inner_value", node.label, tensor, inner.value, FP16_UNDERFLOW, reason, batch)
        return
    limit, name = (FP16_MAX, "FP16's limit") if inner.is_bound else (policy.threshold, "the threshold")
    if inner.value > limit:
        reason = f"inside, {inner.text} reaches {inner.value:.6g}, over {name} of {limit:g}"
        severity: Severity = "low" if inner.is_bound else "high"
        yield Finding("inner_value", node.label, tensor, inner.value, limit, reason, batch, severity=severity)


def _attribute(node: Node, name: str, default: Any) -> Any:
    found = node.attribute(name)
    return default if found is None else onnx.helper.get_attribute_value(found)


def _power(base: float, exponent: float) -> float:
    """inf where that is more than a float holds."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def _cube(node: Node, seen: Range) -> Iterator[_Inner]:
    """Gelu's x^3, in its form with tanh."""
    if _attribute(node, "approximate", b"none") == b"tanh":
        yield _Inner(seen, _power(seen.max_abs, 3), "x^3")


def _exponential(node: Node, seen: Range) -> Iterator[_Inner]:
    yield _Inner(seen, _power(math.e, seen.max), "e^x")


def _sum_under_logarithm(node: Node, seen: Range) -> Iterator[_Inner]:
    yield _Inner(seen, _power(math.e, seen.max), "the sum that a logarithm is taken of")


def _least_probability(node: Node, seen: Range) -> Iterator[_Inner]:
    """LogSoftmax as the logarithm of a softmax, which is how TensorRT runs it."""
    yield _Inner(seen, _power(math.e, seen.min), "the least probability")


def _square(node: Node, seen: Range) -> Iterator[_Inner]:
    yield _Inner(seen, _power(seen.max_abs, 2), "x^2")


def _sum_of_powers(node: Node, seen: Range) -> Iterator[_Inner]:
    """What a root is taken of: ReduceL2's squares, the powers of an Lp pool."""
    exponent = _attribute(node, "p", 2)
    text = "the sum of squares" if exponent == 2 else f"the sum of |x|^{exponent}"
    yield _Inner(seen, _power(seen.max_abs, exponent), text)


def _window_sum(node: Node, seen: Range) -> Iterator[_Inner]:
    """AveragePool: the output times the size of a window; more than that only where windows reach over the edge."""
    size = math.prod(_attribute(node, "kernel_shape", [1]))
    is_padded = any(_attribute(node, "pads", [])) or _attribute(node, "auto_pad", b"NOTSET") not in (
        b"NOTSET",
        b"VALID",
    )
    is_cut = _attribute(node, "ceil_mode", 0) or (is_padded and not _attribute(node, "count_include_pad", 0))
    text = "the sum before it is divided"
    yield _Inner(seen, seen.max_abs * size, f"a bound of {text}" if is_cut else text, bool(is_cut))


def _sum_of_terms(node: Node, seen: Range) -> Iterator[_Inner]:
    """Mean: the output times the number of inputs."""
    yield _Inner(seen, seen.max_abs * len(node.inputs), "the sum before it is divided")


def _squares_across_channels(node: Node, seen: Range) -> Iterator[_Inner]:
    """LRN: at most `size` squares are added."""
    yield from _square(node, seen)
    value = _attribute(node, "size", 1) * _power(seen.max_abs, 2)
    yield _Inner(seen, value, "a bound of the sum of squares", is_bound=True)


_INPUT, _OUTPUT = "input", "output"
_FUNCTIONS: dict[str, tuple[str, Callable[[Node, Range], Iterator[_Inner]]]] = {
    "Gelu": (_INPUT, _cube),
    "Mish": (_INPUT, _exponential),
    "Softplus": (_INPUT, _exponential),
    "RMSNormalization": (_INPUT, _square),
    "LRN": (_INPUT, _squares_across_channels),
    "ReduceLogSumExp": (_OUTPUT, _sum_under_logarithm),
    "ReduceLogSum": (_OUTPUT, _sum_under_logarithm),
    "LogSoftmax": (_OUTPUT, _least_probability),
    "ReduceL2": (_OUTPUT, _sum_of_powers),
    "LpPool": (_OUTPUT, _sum_of_powers),
    "GlobalLpPool": (_OUTPUT, _sum_of_powers),
    "AveragePool": (_OUTPUT, _window_sum),
    "Mean": (_OUTPUT, _sum_of_terms),
}
"""By operator, the tensor that the value follows from, and how."""
