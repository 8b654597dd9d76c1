"""Statistics of a tensor (sums, means, maxima, norms), and what is made of them by constants.

A reduction that drops its axes leaves them to a Reshape or Unsqueeze that puts them back, there or some nodes later, and
to an Expand behind that: JAX and TensorFlow write it so. Whether they are put back is told by shapes that can be relied
on; where those do not prove it, there is no match.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.patterns.shapes import output_shape, read_elements
from overflow_fixer.patterns.tracing import constant_operand, is_constant, origin, read_number
from overflow_fixer.records import Dim

_LONGEST = 8
"""Nodes that take a constant in, in a row."""
_MOST_NODES = 40
"""Nodes between a statistic and its reduction."""
MEANS = ("ReduceMean", "GlobalAveragePool")
MAXIMA = ("ReduceMax", "GlobalMaxPool")
_POOLS = frozenset({"GlobalAveragePool", "GlobalMaxPool"})
_REDUCTIONS = frozenset({*MEANS, *MAXIMA, "ReduceL2", "ReduceLogSumExp", "ReduceSum", "ReduceSumSquare"})
_PUTS_BACK = frozenset({"Reshape", "Unsqueeze"})
_ELEMENTWISE = frozenset(
    "Abs Add Cast Clip Div Dropout Identity Log Max Min Mul Neg Pow Reciprocal Sqrt Sub".split()
)
_PASSES = _ELEMENTWISE | _PUTS_BACK | {"Expand"}
_MAX_RELATIVE_ERROR = 2.0**-22
"""Of 1 / N in FP32, rounded twice."""


def maker(graph: Graph, tensor: str, *operators: str) -> Node | None:
    """The node that makes a statistic's values, if its operator is one of these; axes that are put back are passed."""
    for _ in range(_LONGEST):
        tensor = origin(graph, tensor)
        node = graph.producers.get(tensor)
        if node is None or node.standard_op not in _PUTS_BACK or not is_aligned(graph, tensor):
            break
        tensor = node.inputs[0]
    return node if node is not None and node.standard_op in operators else None


def reduction(graph: Graph, tensor: str, *operators: str) -> Node | None:
    """The reduction that makes the tensor. Whether that broadcasts against what is reduced, is_aligned tells."""
    node = maker(graph, tensor, *operators)
    if node is None:
        return None
    does_nothing = node.value_of("noop_with_empty_axes", 0) and read_axes(graph, node) == ()
    return None if does_nothing else node


def mean_reduction(graph: Graph, tensor: str, *sums: str) -> Node | None:
    """The reduction of a mean: ReduceMean, GlobalAveragePool, or one of `sums` that is divided by the number of elements it adds up."""
    node = maker(graph, tensor, "Mul", "Div")
    found = None if node is None else constant_operand(graph, node)
    if node is None or found is None:
        return reduction(graph, tensor, *MEANS)
    total = reduction(graph, found[0], *sums)
    return total if total is not None and averages(graph, node, total) else None


def averages(graph: Graph, node: Node, total: Node) -> bool:
    """Whether the node makes the mean of a sum: it divides by the number of elements, or multiplies by its inverse."""
    found, count = constant_operand(graph, node), _count_reduced(graph, total)
    number = None if found is None else read_number(graph, found[1])
    if found is None or not number or not count:
        return False
    if node.standard_op == "Mul":
        return abs(number * count - 1) <= _MAX_RELATIVE_ERROR
    return node.standard_op == "Div" and found[0] == node.inputs[0] and number == count


def skip(graph: Graph, tensor: str, operators: Iterable[str]) -> tuple[str, list[Node]]:
    """The statistic before nodes of these operators that take a constant in, and those nodes, the last first."""
    skipped: list[Node] = []
    while len(skipped) < _LONGEST:
        node = maker(graph, tensor, *operators)
        before = None if node is None else _variable(graph, node)
        if node is None or before is None:
            break
        tensor = before
        skipped.append(node)
    return tensor, skipped


def read_axes(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """The axes that a reduction goes over, in order; () where it names none, None where they are computed or not known."""
    if node.standard_op in _POOLS:
        shape = _shape_before(graph, node)
        return None if shape is None else tuple(range(2, len(shape)))
    attribute = node.attribute("axes")
    if attribute is not None:
        return tuple(sorted(attribute.ints))
    if len(node.inputs) < 2 or not node.inputs[1]:
        return ()
    value = graph.find_constant(node.inputs[1])
    return None if value is None else tuple(sorted(value.reshape(-1).tolist()))


def is_aligned(graph: Graph, tensor: str) -> bool:
    """Whether a statistic broadcasts against what was reduced: its axes are kept, put back, or all gone."""
    return dropped_axes(graph, tensor) == ()


def dropped_axes(graph: Graph, tensor: str) -> tuple[int, ...] | None:
    """The axes, counted from the first, that a statistic lacks of what was reduced.

    () where it lacks none or is a scalar; None where that is not proved, or the tensor is no statistic.
    """
    reduced, way = _way_from_reduction(graph, tensor)
    dropped = None if reduced is None else _dropped_by(graph, reduced)
    if reduced is None or dropped is None:
        return None
    has_its_size = True
    for node in way:
        if node.standard_op in _PUTS_BACK:
            if not has_its_size or not _puts_back(graph, node, reduced):
                return None
            dropped = ()
        elif node.standard_op == "Expand" or _takes_in_vector(graph, node):
            if dropped or not _fits(graph, node, reduced):
                return None
            has_its_size = False
    return dropped


def _way_from_reduction(graph: Graph, tensor: str) -> tuple[Node | None, list[Node]]:
    """The reduction, and the nodes behind it that lead to the tensor, in order."""
    way: list[Node] = []
    for _ in range(_MOST_NODES):
        node = graph.producers.get(tensor)
        if node is not None and node.standard_op in _REDUCTIONS:
            return node, way[::-1]
        if node is None or node.standard_op not in _PASSES:
            break
        way.append(node)
        tensor = next((name for name in node.reads if not is_constant(graph, name)), "")
    return None, []


def _dropped_by(graph: Graph, reduced: Node) -> tuple[int, ...] | None:
    if reduced.value_of("keepdims", 1) or read_axes(graph, reduced) == ():
        return ()
    shape, axes = _shape_before(graph, reduced), _reduced_axes(graph, reduced)
    return () if shape is not None and axes is not None and len(axes) == len(shape) else axes


def _reduced_axes(graph: Graph, reduced: Node) -> tuple[int, ...] | None:
    """The axes that a reduction goes over, counted from the first; None where they or the rank are not known."""
    shape, axes = _shape_before(graph, reduced), read_axes(graph, reduced)
    if shape is None or axes is None:
        return None
    return tuple(sorted(axis % max(len(shape), 1) for axis in axes)) or tuple(range(len(shape)))


def _shape_before(graph: Graph, reduced: Node) -> tuple[Dim, ...] | None:
    """Of what is reduced; where it is not inferred, that of the tensor it is made of one element for one."""
    tensor = reduced.inputs[0]
    for _ in range(_LONGEST):
        shape, node = graph.sure_shapes.get(tensor), graph.producers.get(tensor)
        if shape is not None or node is None or not _keeps_shape(graph, node):
            return shape
        tensor = node.inputs[0]
    return None


def _keeps_shape(graph: Graph, node: Node) -> bool:
    """Whether it writes the shape of its first input: an exponential, a square, x less a statistic of x."""
    op = node.standard_op
    if op == "Sub":
        return _subtracts_own(graph, node)
    is_square = op == "Mul" and len(set(node.inputs)) == 1
    is_power = op == "Pow" and _is_scalar(graph, node.inputs[1])
    return op in ("Abs", "Cast", "Exp", "Identity") or is_square or is_power


def _subtracts_own(graph: Graph, node: Node) -> bool:
    """Whether it is x less a statistic of x that is proved to broadcast against x and to be no larger.

    The shape of x must be inferred: it is not followed through one difference after the other.
    """
    own, statistic = node.inputs
    reduced, way = _way_from_reduction(graph, statistic)
    if reduced is None or reduced.inputs[0] != own or own not in graph.sure_shapes:
        return False
    return is_aligned(graph, statistic) and all(
        _is_within(graph, step, graph.sure_shapes[own]) for step in way
    )


def _is_within(graph: Graph, node: Node, shape: tuple[Dim, ...]) -> bool:
    """Whether what it makes of a statistic is proved to be no larger than this shape; that of put back axes is aligned."""
    if node.standard_op in _PUTS_BACK:
        return True
    if node.standard_op != "Expand":
        variables = {name for name in node.reads if not is_constant(graph, name)}
        return len(variables) == 1 and not _takes_in_vector(graph, node)
    told = read_elements(graph, node.inputs[1])
    if told is None or len(told) > len(shape):
        return False
    pairs = zip(told[::-1], shape[::-1], strict=False)
    return all(dim is not None and dim in (1, size) for dim, size in pairs)


def _count_reduced(graph: Graph, reduced: Node) -> int | None:
    """How many elements a reduction makes one of."""
    shape, axes = _shape_before(graph, reduced), _reduced_axes(graph, reduced)
    if shape is None or axes is None:
        return None
    sizes = [dim for dim in (shape[axis] for axis in axes) if isinstance(dim, int)]
    return math.prod(sizes) if len(sizes) == len(axes) else None


def _puts_back(graph: Graph, node: Node, reduced: Node) -> bool:
    """Whether what it writes has the shape of what was reduced, with 1 for each axis that was.

    Of its dimensions one need not be known: as many elements come in as go out.
    """
    axes = _reduced_axes(graph, reduced)
    before, after = _shape_before(graph, reduced), output_shape(graph, node)
    if axes is None or before is None or after is None or len(before) != len(after):
        return False
    expected = [1 if axis in axes else dim for axis, dim in enumerate(before)]
    doubtful = [axis for axis, dim in enumerate(after) if dim is None or dim != expected[axis]]
    return len(doubtful) <= 1 and all(_may_be_equal(expected[axis], after[axis]) for axis in doubtful)


def _may_be_equal(one: Dim, other: Dim) -> bool:
    return not (isinstance(one, int) and isinstance(other, int)) or one == other


def _takes_in_vector(graph: Graph, node: Node) -> bool:
    """Whether it computes with a constant that may broadcast the other operand: of more elements or axes than one."""
    constants = [name for name in node.reads if is_constant(graph, name)]
    return not all(_is_scalar(graph, name) for name in constants)


def _is_scalar(graph: Graph, tensor: str) -> bool:
    dims = graph.fixed_dims.get(tensor)
    return dims is not None and dims in ((), (1,))


def _fits(graph: Graph, node: Node, reduced: Node) -> bool:
    """Whether an Expand makes nothing that is known to be larger than what was reduced; of other nodes True."""
    before, after = _shape_before(graph, reduced), graph.sure_shapes.get(node.outputs[0])
    if node.standard_op != "Expand" or before is None or after is None:
        return True
    pairs = zip(before[::-1], after[::-1], strict=False)
    return len(after) <= len(before) and all(new == 1 or _may_be_equal(old, new) for old, new in pairs)


def _variable(graph: Graph, node: Node) -> str | None:
    if node.standard_op == "Clip":
        return node.inputs[0]
    found = constant_operand(graph, node)
    is_divided = found is not None and node.standard_op in ("Div", "Sub") and found[0] != node.inputs[0]
    return None if found is None or is_divided else found[0]
