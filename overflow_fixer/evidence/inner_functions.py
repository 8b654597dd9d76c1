"""A value inside a node that follows from the range of a tensor which the node reads or writes.

Functions that grow, such as a power or an exponential, have their largest value at the largest input; the sum
that a mean divides is the output times the number of its terms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from onnx import TensorProto

from overflow_fixer.graph.folding import find_folder
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Range, RangeTable


@dataclass(frozen=True)
class InnerFunction:
    """A value inside a node, and the range that it follows from, or that the scan measured of it.

    The largest; of one that `is_least` the smallest, which a logarithm is taken of.
    """

    seen: Range
    value: float
    text: str
    is_bound: bool = False
    is_least: bool = False


def find_source(node: Node, graph: Graph, ranges: RangeTable) -> Range | None:
    """The range that values inside the node follow from; None where there are none, or the scan measured them.

    Of an output that adds up many numbers it is that of what the scan computed anew.
    """
    slot, _ = _FUNCTIONS.get(node.standard_op, (None, None))
    measured = ranges.inner_of.get(node.label, {}) if slot == _OUTPUT else {}
    if slot is None or not _MEASURED.isdisjoint(measured):
        return None
    tensor = (node.outputs if slot == _OUTPUT else node.inputs)[0]
    seen = ranges.get(tensor) if graph.dtypes.get(tensor) == TensorProto.FLOAT else None
    if seen is None or seen.nan_count or not math.isfinite(seen.max_abs):
        return None
    return replace(measured["output"].seen, tensor=tensor) if "output" in measured else seen


def find_functions(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    """The values inside the node that follow from the range that find_source gives, or from that of one batch."""
    yield from _FUNCTIONS[node.standard_op][1](node, graph, seen)


def _power(base: float, exponent: float) -> float:
    """inf where that is more than a float holds."""
    try:
        return math.pow(base, exponent)
    except OverflowError:
        return math.inf


def _cube(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    """Gelu's x^3, in its form with tanh."""
    if node.value_of("approximate", b"none") == b"tanh":
        yield InnerFunction(seen, _power(seen.max_abs, 3), "x^3")


def _exponential(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    yield InnerFunction(seen, _power(math.e, seen.max), "e^x")


def _sum_under_logarithm(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    text = "the sum that a logarithm is taken of"
    yield InnerFunction(seen, _power(math.e, seen.max), text)
    yield InnerFunction(seen, _power(math.e, seen.min), text, is_least=True)


def _least_probability(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    """LogSoftmax as the logarithm of a softmax, which is how TensorRT runs it."""
    yield InnerFunction(seen, _power(math.e, seen.min), "the least probability", is_least=True)


def _square(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    yield InnerFunction(seen, _power(seen.max_abs, 2), "x^2")


def _sum_of_powers(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    """What a root is taken of: ReduceL2's squares, but where it adds nothing, and the powers of an Lp pool."""
    if node.value_of("noop_with_empty_axes", 0):  # with axes it was measured
        return
    exponent = node.value_of("p", 2)
    text = "the sum of squares" if exponent == 2 else f"the sum of |x|^{exponent}"
    yield InnerFunction(seen, _power(seen.max_abs, exponent), text)


def _inverse_power(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    """Pow with a negative exponent, as one over the power: the power itself shows in no tensor.

    A bound where the elements have different exponents, of which the least may not be that of the largest element.
    """
    exponents = find_folder(graph).value(node.inputs[1])
    if exponents is not None and exponents.size and exponents.min() < 0:
        power = -float(exponents.min())
        is_bound = bool((exponents != exponents.min()).any())
        text = f"{'a bound of ' if is_bound else ''}|x|^{power:g}, of which it is one over,"
        yield InnerFunction(seen, _power(seen.max_abs, power), text, is_bound)


def _window_sum(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    """AveragePool, where every window is divided by its size; the others are measured."""
    size = math.prod(node.value_of("kernel_shape", [1]))
    yield InnerFunction(seen, seen.max_abs * size, "the sum before it is divided")


def _sum_of_terms(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    """Mean: the output times the number of inputs."""
    yield InnerFunction(seen, seen.max_abs * len(node.inputs), "the sum before it is divided")


def _sum_of_samples(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    """RoiAlign's mean of samples, whose number a side is told; where it depends on the box, nothing is known."""
    samples = node.value_of("sampling_ratio", 0)
    if samples > 0 and node.value_of("mode", b"avg") == b"avg":
        yield InnerFunction(seen, seen.max_abs * samples * samples, "the sum before it is divided")


def _squares_across_channels(node: Node, graph: Graph, seen: Range) -> Iterator[InnerFunction]:
    """LRN: at most `size` squares are added."""
    yield from _square(node, graph, seen)
    value = node.value_of("size", 1) * _power(seen.max_abs, 2)
    yield InnerFunction(seen, value, "a bound of the sum of squares", is_bound=True)


_MEASURED = frozenset({"sum", "sum of squares"})
"""What the scan measures of nodes whose output does not tell it to 1e-5, or not at all."""
_INPUT, _OUTPUT = "input", "output"
_FUNCTIONS: dict[str, tuple[str, Callable[[Node, Graph, Range], Iterator[InnerFunction]]]] = {
    "Gelu": (_INPUT, _cube),
    "Pow": (_INPUT, _inverse_power),
    "Mish": (_INPUT, _exponential),
    "Softplus": (_INPUT, _exponential),
    "RMSNormalization": (_INPUT, _square),
    "SimplifiedLayerNormalization": (_INPUT, _square),
    "LRN": (_INPUT, _squares_across_channels),
    "ReduceLogSumExp": (_OUTPUT, _sum_under_logarithm),
    "ReduceLogSum": (_OUTPUT, _sum_under_logarithm),
    "LogSoftmax": (_OUTPUT, _least_probability),
    "ReduceL2": (_OUTPUT, _sum_of_powers),
    "LpPool": (_OUTPUT, _sum_of_powers),
    "GlobalLpPool": (_OUTPUT, _sum_of_powers),
    "AveragePool": (_OUTPUT, _window_sum),
    "Mean": (_OUTPUT, _sum_of_terms),
    "RoiAlign": (_OUTPUT, _sum_of_samples),
}
"""By operator, the tensor that the value follows from, and how."""
