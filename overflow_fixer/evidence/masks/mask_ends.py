"""Which ends of its rows a mask leaves unmasked, whatever the sizes: the first or the last element of the last axis.

A causal mask of any size leaves the first element of every row: Trilu(upper = 1, k) keeps what is at column - row >= k, and
makes 0 of the rest; with k >= 1 the first column is of the rest in every row. Trilu(upper = 0, k) keeps column - row <= k,
and leaves the last of C columns in each of R rows where R - 1 + k < C - 1.
"""

from __future__ import annotations

from typing import Literal

from onnx import TensorProto

from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array

End = Literal["first", "last"]
Ends = frozenset[End]

NO_END: Ends = frozenset()
FIRST: Ends = frozenset({"first"})
BOTH_ENDS: Ends = frozenset({"first", "last"})

_KEEPS_ROWS = frozenset({"Identity", "Cast", "CastLike", "Dropout", "Expand", "Tile"})
"""Operators behind which each row of the last axis is one as before, or repeated."""
_KEEPS_ORDER = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Flatten"})


def find_ends(pattern: Array) -> Ends:
    """The ends that a mask, True where it masks, leaves in every row; both of one without rows."""
    if not pattern.any():
        return BOTH_ENDS
    if not pattern.ndim:
        return NO_END
    places: dict[End, int] = {"first": 0, "last": -1}
    return frozenset(end for end, place in places.items() if not pattern[..., place].any())


def find_opened(graph: Graph, node: Node) -> Ends:
    """The ends of which a Trilu makes 0 in every row, whatever it reads; none where k or the sizes it takes are not known."""
    k = _read_integers(graph, node, 1, [0])
    if node.value_of("upper", 1):
        return FIRST if k is not None and k[0] >= 1 else NO_END
    dims = graph.sure_shapes.get(node.outputs[0], ())[-2:]
    if k is None or len(dims) < 2:
        return NO_END
    rows, columns = dims
    is_left = isinstance(rows, int) and isinstance(columns, int) and rows + k[0] < columns
    return frozenset({"last"}) if is_left else NO_END


def keeps_first_column(graph: Graph, node: Node) -> bool:
    """Whether a Trilu leaves the first element of every row: column - row <= k is true of column 0 from k = 0 on."""
    k = _read_integers(graph, node, 1, [0])
    return not node.value_of("upper", 1) and k is not None and k[0] >= 0


def is_always_switch(graph: Graph, tensor: str) -> bool:
    """Whether it is a constant, or made of booleans and moved, and so 0 or 1 whatever is fed, where it was so once."""
    while tensor not in graph.constants:
        node = graph.producers.get(tensor)
        if node is None or not moves(node, 0) or node.standard_op == "Concat":
            return False
        tensor = node.inputs[0]
        if graph.dtypes.get(tensor) == TensorProto.BOOL:
            return True
    return tensor not in graph.defaults


def find_kept(graph: Graph, node: Node) -> Ends:
    """Which ends of rows are ends of rows behind a node that moves elements."""
    op = node.standard_op
    if op == "Slice":
        return _kept_by_slice(graph, node)
    keeps = op in _KEEPS_ROWS or (op == "Transpose" and _is_last_kept(node))
    keeps = keeps or keeps_rows_in_order(graph, node) or _is_put_before(graph, node)
    return BOTH_ENDS if keeps else NO_END


def keeps_rows_in_order(graph: Graph, node: Node) -> bool:
    """Whether it keeps the order of all elements, and is known to cut them into rows of the last axis as before."""
    if node.standard_op not in _KEEPS_ORDER:
        return False
    lengths = [graph.sure_shapes.get(name, ())[-1:] for name in (node.inputs[0], node.outputs[0])]
    return lengths[0] == lengths[1] != () and all(isinstance(dim, int) for dim in lengths[0])


def _is_last_kept(node: Node) -> bool:
    """Whether a Transpose leaves the last axis the last."""
    order = list(node.value_of("perm", []))
    return bool(order) and order[-1] == len(order) - 1


def _is_put_before(graph: Graph, node: Node) -> bool:
    """Whether an Unsqueeze puts its axes before the last one; of an unknown rank, before all."""
    axes = _read_axes(graph, node) if node.standard_op == "Unsqueeze" else None
    if axes is None:
        return False
    rank = (_read_rank(graph, node.inputs[0]) or 1) + len(axes)
    return all(axis < rank - 1 if axis >= 0 else axis < -1 for axis in axes)


def _kept_by_slice(graph: Graph, node: Node) -> Ends:
    """Both where the last axis is left; the first where it is cut, or may be, from its start on."""
    starts, axes = (_read_integers(graph, node, slot) for slot in (1, 3))
    if axes is None:
        return NO_END
    rank = _read_rank(graph, node.inputs[0])
    may_be_last = [axis == -1 or (axis >= 0 and (rank is None or axis == rank - 1)) for axis in axes]
    if not any(may_be_last):
        return BOTH_ENDS
    steps = _read_integers(graph, node, 4, [1] * len(axes))
    if starts is None or steps is None:
        return NO_END
    cuts = [(start, step) for start, step, is_last in zip(starts, steps, may_be_last, strict=True) if is_last]
    return FIRST if all(cut == (0, 1) for cut in cuts) else NO_END


def _read_rank(graph: Graph, tensor: str) -> int | None:
    """None where it is not known."""
    if tensor in graph.constants:
        return len(graph.constants[tensor].dims)
    dims = graph.sure_shapes.get(tensor)
    return graph.ranks.get(tensor) if dims is None else len(dims)


def _read_axes(graph: Graph, node: Node) -> list[int] | None:
    """An attribute below opset 13, an input since."""
    attribute = node.attribute("axes")
    return list(attribute.ints) if attribute is not None else _read_integers(graph, node, 1)


def _read_integers(
    graph: Graph, node: Node, slot: int, left_out: list[int] | None = None
) -> list[int] | None:
    """The constant integers in a slot; `left_out` where the node has none there, None where they are computed, or may be fed."""
    if slot >= len(node.inputs) or not node.inputs[slot]:
        return left_out
    value = graph.read_fixed(node.inputs[slot])
    return None if value is None else [int(each) for each in value.reshape(-1)]
