"""A tensor divided by the root of a sum or mean of squares: what every norm is in the end, however it is spelled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.region import Region
from overflow_fixer.patterns.statistics import (
    MEANS,
    averages,
    dropped_axes,
    is_aligned,
    maker,
    mean_reduction,
    read_axes,
    reduction,
    skip,
)
from overflow_fixer.patterns.tracing import (
    collect,
    constant_operand,
    is_same,
    operands,
    origin,
    read_number,
    sole_reader,
    writer,
)

_GUARDS = ("Add", "Max", "Clip")
_SCALES = ("Mul", "Div")


@dataclass(frozen=True)
class Squares:
    """A sum or mean of squares of `squared` over `axes`, and what was done to it by constants, the last first.

    `spread` is true of a variance written E[x^2] - E[x]^2, of which `squared` is x.
    """

    squared: str
    axes: tuple[int, ...] | None
    is_mean: bool
    changes: tuple[Node, ...]
    spread: bool = False


@dataclass(frozen=True)
class Quotient:
    """`node` divides `dividend` by the root of `squares`; constants may change the root, and scale its inverse."""

    node: Node
    dividend: str
    squares: Squares
    root_changes: tuple[Node, ...]
    inverse_scales: tuple[Node, ...]


@lru_cache(maxsize=1)
def find_quotients(graph: Graph) -> tuple[Quotient, ...]:
    """Every quotient by a root of squares, a product with its inverse included, in the order of the graph."""
    return tuple(_find_quotients(graph))


def _find_quotients(graph: Graph) -> Iterator[Quotient]:
    for node in graph.nodes:
        if node.standard_op == "Div":
            found = _find_root(graph, node.inputs[1])
            if found is not None and is_aligned(graph, node.inputs[1]):
                yield Quotient(node, node.inputs[0], *found, inverse_scales=())
        elif node.standard_op == "Mul":
            yield from _find_products(graph, node)


def _find_products(graph: Graph, node: Node) -> Iterator[Quotient]:
    """By which of its factors the product is a quotient."""
    for dividend, inverse in operands(node):
        found = _find_inverse(graph, inverse)
        if found is not None and is_aligned(graph, inverse):
            yield Quotient(node, dividend, *found)


def find_mean(graph: Graph, tensor: str) -> tuple[str, tuple[int, ...] | None] | None:
    """What the tensor is the mean of, and over which axes; those may be dropped from it."""
    node = mean_reduction(graph, tensor, "ReduceSum")
    return None if node is None else (node.inputs[0], read_axes(graph, node))


def follow_affine(graph: Graph, tensor: str) -> tuple[str, list[Node]]:
    """The end of a multiplication and an addition by constants that stand directly behind, and these nodes."""
    nodes: list[Node] = []
    for op in ("Mul", "Add"):
        reader = sole_reader(graph, tensor)
        if reader is not None and reader.standard_op == op and constant_operand(graph, reader) is not None:
            nodes.append(reader)
            tensor = reader.outputs[0]
    return tensor, nodes


def _find_inverse(graph: Graph, tensor: str) -> tuple[Squares, tuple[Node, ...], tuple[Node, ...]] | None:
    """Of 1 / root, times constants, kept under a constant at most; spelled as a power, or as the root of 1 / squares, too."""
    tensor, limits = skip(graph, tensor, ("Min",))
    tensor, scales = skip(graph, tensor, ("Mul",))
    node = maker(graph, tensor, "Reciprocal", "Div", "Pow", "Sqrt")
    if node is None:
        return None
    if node.standard_op in ("Pow", "Sqrt"):
        inverted = _find_inverted(graph, node)
        squares = None if inverted is None else _find_squares(graph, inverted)
        return None if squares is None else (squares, tuple(limits), tuple(scales))
    if not _inverts(graph, node):
        return None
    found = _find_root(graph, node.inputs[-1])
    return None if found is None else (found[0], (*limits, *found[1]), tuple(scales))


def _find_inverted(graph: Graph, node: Node) -> str | None:
    """v of v^-0.5 or of the root of 1 / v."""
    if node.standard_op == "Pow":
        return node.inputs[0] if read_number(graph, node.inputs[1]) == -0.5 else None
    inverse = maker(graph, node.inputs[0], "Reciprocal", "Div")
    return inverse.inputs[-1] if inverse is not None and _inverts(graph, inverse) else None


def _inverts(graph: Graph, node: Node) -> bool:
    """Whether it is one over something."""
    return node.standard_op == "Reciprocal" or read_number(graph, node.inputs[0]) == 1


def _find_root(graph: Graph, tensor: str) -> tuple[Squares, tuple[Node, ...]] | None:
    tensor, changes = skip(graph, tensor, _GUARDS)
    norm = reduction(graph, tensor, "ReduceL2")
    if norm is not None:
        return Squares(norm.inputs[0], read_axes(graph, norm), False, ()), tuple(changes)
    node = maker(graph, tensor, "Sqrt", "Pow")
    if node is None or (node.standard_op == "Pow" and read_number(graph, node.inputs[1]) != 0.5):
        return None
    squares = _find_squares(graph, node.inputs[0])
    return None if squares is None else (squares, tuple(changes))


def _find_squares(graph: Graph, tensor: str) -> Squares | None:
    tensor, changes = skip(graph, tensor, (*_GUARDS, *_SCALES))
    difference = maker(graph, tensor, "Sub")
    if difference is not None:
        return _find_spread(graph, difference, changes)
    node = reduction(graph, tensor, *MEANS, "ReduceSum", "ReduceSumSquare")
    if node is None:
        return None
    squared = _find_square(graph, node)
    is_mean = node.standard_op in MEANS or any(change.standard_op in _SCALES for change in changes)
    if changes and node.standard_op not in MEANS and averages(graph, changes[-1], node):
        changes.pop()
    return None if squared is None else Squares(squared, read_axes(graph, node), is_mean, tuple(changes))


def _find_square(graph: Graph, total: Node) -> str | None:
    """What the reduction adds up the squares of."""
    if total.standard_op == "ReduceSumSquare":
        return total.inputs[0]
    node = writer(graph, total.inputs[0], "Pow", "Mul")
    return None if node is None else _find_base(graph, node)


def _find_base(graph: Graph, node: Node) -> str | None:
    """x of x^2 or x * x, |x| taken for x."""
    is_square = (
        read_number(graph, node.inputs[1]) == 2 if node.standard_op == "Pow" else is_same(graph, *node.inputs)
    )
    if not is_square:
        return None
    magnitude = writer(graph, node.inputs[0], "Abs")
    return node.inputs[0] if magnitude is None else magnitude.inputs[0]


def _find_spread(graph: Graph, node: Node, changes: list[Node]) -> Squares | None:
    """The mean of x^2 less the square of the mean of x."""
    mean_of_squares = mean_reduction(graph, node.inputs[0], "ReduceSum", "ReduceSumSquare")
    square_of_mean = maker(graph, node.inputs[1], "Pow", "Mul")
    dropped = {dropped_axes(graph, name) for name in node.inputs}
    if mean_of_squares is None or square_of_mean is None or len(dropped) > 1 or None in dropped:
        return None
    squared, root = _find_square(graph, mean_of_squares), _find_base(graph, square_of_mean)
    mean = None if root is None else find_mean(graph, root)
    axes = read_axes(graph, mean_of_squares)
    if squared is None or mean is None or mean[1] != axes or not is_same(graph, squared, mean[0]):
        return None
    return Squares(squared, axes, True, tuple(changes), spread=True)


def common_source(graph: Graph, one: str, other: str) -> str:
    """The tensor that both are, or that the values of both come from."""
    return one if one == other else origin(graph, one)


def close_region(graph: Graph, kind: str, source: str, quotient: Quotient) -> Iterator[Region]:
    """The region from the source to the quotient and what constants make of it; none where it cannot be one."""
    output, _ = follow_affine(graph, quotient.node.outputs[0])
    nodes = collect(graph, source, output)
    if nodes:
        yield Region(kind, tuple(node.label for node in nodes), source, output)
