"""LayerNorm written out: (x - mean) / sqrt(variance + epsilon), with its scale and bias if those stand behind.

Spelled as PyTorch's exporter does below opset 17 (Pow or Mul, Sqrt, Div), with an inverse root (Reciprocal, Pow),
as TensorFlow and Keras do (x a + (bias - mean a), where a is the inverse root times the scale; -mean a + bias), as Flax
does (the variance as E[x^2] - E[x]^2), with an epsilon behind the root, and with casts between. A mean may be a sum
over its number of elements, or times the inverse of that, and its axes may be dropped and put back: see patterns.statistics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.quotients import (
    Quotient,
    common_source,
    find_mean,
    find_quotients,
    follow_affine,
)
from overflow_fixer.patterns.region import Region
from overflow_fixer.patterns.statistics import is_aligned
from overflow_fixer.patterns.tracing import (
    collect,
    constant_operand,
    is_same,
    operands,
    read_number,
    sole_reader,
    writer,
)


@dataclass(frozen=True)
class LayerNorm:
    """A LayerNorm over `axes` of the region's source (None: computed by the model).

    `epsilon` is added to the variance; None where something else is done to it or to its root. `scales` and `biases`
    are the constants that the result is multiplied by and that are added to it then. `spread` is true of a variance
    written E[x^2] - E[x]^2.
    """

    region: Region
    axes: tuple[int, ...] | None
    epsilon: float | None
    scales: tuple[str, ...]
    biases: tuple[str, ...]
    spread: bool


@dataclass(frozen=True)
class _End:
    """Where the pattern ends, and the constants that were met on the way there."""

    tensor: str
    scales: tuple[str, ...]
    biases: tuple[str, ...]


def find_layer_norm(graph: Graph) -> Iterator[Region]:
    """The region of each, from the mean to the bias."""
    return (found.region for found in match_layer_norms(graph))


def match_layer_norms(graph: Graph) -> Iterator[LayerNorm]:
    """Each with its parameters, in the order of the graph."""
    for quotient in find_quotients(graph):
        source = _find_source(graph, quotient)
        end = None if source is None else _find_end(graph, quotient, source)
        nodes = None if source is None or end is None else collect(graph, source, end.tensor)
        if source is not None and end is not None and nodes:
            region = Region("LayerNorm", tuple(node.label for node in nodes), source, end.tensor)
            epsilon = _read_epsilon(graph, quotient)
            squares = quotient.squares
            yield LayerNorm(region, squares.axes, epsilon, end.scales, end.biases, squares.spread)


def find_centred(graph: Graph, tensor: str) -> tuple[str, tuple[int, ...] | None] | None:
    """x and the axes of its mean, if the tensor is x - mean(x)."""
    node = writer(graph, tensor, "Sub")
    mean = None if node is None else _find_aligned_mean(graph, node.inputs[1])
    if node is None or mean is None or not is_same(graph, node.inputs[0], mean[0]):
        return None
    return common_source(graph, node.inputs[0], mean[0]), mean[1]


def _find_aligned_mean(graph: Graph, tensor: str) -> tuple[str, tuple[int, ...] | None] | None:
    return find_mean(graph, tensor) if is_aligned(graph, tensor) else None


def _find_source(graph: Graph, quotient: Quotient) -> str | None:
    """The x whose variance it is that the root is taken of."""
    squares = quotient.squares
    if not squares.is_mean:
        return None
    if squares.spread:
        return squares.squared
    centred = find_centred(graph, squares.squared)
    return centred[0] if centred is not None and centred[1] == squares.axes else None


def _find_end(graph: Graph, quotient: Quotient, source: str) -> _End | None:
    output = quotient.node.outputs[0]
    scales = tuple(_constant_of(graph, node) for node in quotient.inverse_scales)
    biases: tuple[str, ...] = ()
    centred = find_centred(graph, quotient.dividend)
    if centred is None or not is_same(graph, centred[0], source):
        joined = _subtract_mean(graph, quotient, source)
        if joined is None:
            return None
        output, biases = joined
    if biases:
        return _End(output, scales, biases)
    output, affine = follow_affine(graph, output)
    scales += tuple(_constant_of(graph, node) for node in affine if node.standard_op == "Mul")
    return _End(
        output, scales, tuple(_constant_of(graph, node) for node in affine if node.standard_op == "Add")
    )


def _subtract_mean(graph: Graph, quotient: Quotient, source: str) -> tuple[str, tuple[str, ...]] | None:
    """Where mean * a is subtracted from x * a, and the bias if it comes in there."""
    reader = sole_reader(graph, quotient.node.outputs[0])
    if reader is None or not is_same(graph, quotient.dividend, source):
        return None
    for product, other in operands(reader):
        if not is_same(graph, product, quotient.node.outputs[0]):
            continue
        if reader.standard_op == "Sub" and product == reader.inputs[0] and _scales_mean(graph, other, source):
            return reader.outputs[0], ()
        biases = _find_bias(graph, other, source) if reader.standard_op == "Add" else None
        if biases is not None:
            return reader.outputs[0], biases
    return None


def _find_bias(graph: Graph, tensor: str, source: str) -> tuple[str, ...] | None:
    """The bias of bias - mean * a, () of -mean * a; None of another tensor."""
    if _scales_negated_mean(graph, tensor, source):
        return ()
    node = writer(graph, tensor, "Add", "Sub")
    found = None if node is None else constant_operand(graph, node)
    if node is None or found is None:
        return None
    rest, bias = found
    if node.standard_op == "Sub":
        is_bias = bias == node.inputs[0] and _scales_mean(graph, rest, source)
    else:
        is_bias = _scales_negated_mean(graph, rest, source)
    return (bias,) if is_bias else None


def _scales_mean(graph: Graph, tensor: str, source: str) -> bool:
    """Whether the tensor is the mean of the source times something."""
    node = writer(graph, tensor, "Mul")
    return node is not None and any(_is_mean_of(graph, name, source) for name in node.inputs)


def _scales_negated_mean(graph: Graph, tensor: str, source: str) -> bool:
    """Whether it is that mean, negated, times something."""
    node = writer(graph, tensor, "Mul")
    negations = [] if node is None else [writer(graph, name, "Neg") for name in node.inputs]
    return any(each is not None and _is_mean_of(graph, each.inputs[0], source) for each in negations)


def _is_mean_of(graph: Graph, tensor: str, source: str) -> bool:
    mean = _find_aligned_mean(graph, tensor)
    return mean is not None and is_same(graph, mean[0], source)


def _read_epsilon(graph: Graph, quotient: Quotient) -> float | None:
    changes = quotient.squares.changes
    if quotient.root_changes or len(changes) > 1:
        return None
    if not changes:
        return 0.0
    return read_number(graph, _constant_of(graph, changes[0])) if changes[0].standard_op == "Add" else None


def _constant_of(graph: Graph, node: Node) -> str:
    found = constant_operand(graph, node)
    return "" if found is None else found[1]
