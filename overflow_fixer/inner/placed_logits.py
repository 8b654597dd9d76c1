"""What a Softmax loses where FP16 rounds logits to which a bias that grows with the place is added, as of ALiBi: slopes times positions.

The bias of a row is an offset that all near its largest logit share, in some heads hundreds and in others nothing, so that
neither the largest logits of the rows nor the largest probability tell of those that FP16 rounds away.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from onnx import TensorProto

from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import REARRANGES
from overflow_fixer.inner.expression import Expression
from overflow_fixer.inner.rounding import measure_loss, round_to_fp16

_LEAST = 128.0
"""A constant bias under it is no matter: FP16's steps there are 1/16."""
_MASKS_FROM = 1000.0
"""A factor as large makes a mask."""
_MOST_NODES = 16
_MOVES = REARRANGES | frozenset("Expand Tile Slice Gather Concat".split())
_HANDS_ON = _MOVES | frozenset("Add Sub Where Mul Div Clip Max Min Cast".split())
_COUNTS = _MOVES | frozenset("Add Sub Neg Abs Mul Div Cast".split())
_COUNTERS = frozenset("Range CumSum".split())
_INTEGERS = frozenset((TensorProto.INT64, TensorProto.INT32))
_LOWEST = -65504.0


def has_placed_bias(graph: Graph, logits: str) -> bool:
    """Whether something is added to them, behind masks and moves, that is counted and scaled: see _is_placed."""
    pending, seen = [logits], set[str]()
    while pending and len(seen) < _MOST_NODES:
        node = graph.producers.get(pending.pop(0))
        if node is None or node.label in seen or node.standard_op not in _HANDS_ON:
            continue
        seen.add(node.label)
        if node.standard_op in ("Add", "Sub") and any(_is_placed(graph, name) for name in node.inputs):
            return True
        pending += [name for name in node.inputs if graph.dtypes.get(name) == TensorProto.FLOAT]
    return False


def measure_softmax_loss(expression: Expression) -> str:
    """The root mean square of what a Softmax loses where its logits are rounded, as a share of that of what it gives; 0 where that is zero.

    Of a row that is masked as a whole, by numbers under -65504 or -inf, nothing is lost, unless FP32 has NaN of it. NaN where
    a logit is NaN, or so large that FP16 makes infinity of it.
    """
    bounded = expression.apply("Max", expression.source, expression.number(_LOWEST))
    rounded = round_to_fp16(expression, bounded)
    return measure_loss(expression, expression.repeat(expression.node, rounded))


def _is_placed(graph: Graph, tensor: str) -> bool:
    """Whether it is made of integers, or of a constant of as large numbers, by moves, sums and small factors alone, and no mask."""
    pending, seen, is_counted = [tensor], set[str](), False
    while pending:
        name = pending.pop()
        node = graph.producers.get(name)
        if name in graph.constants:
            is_counted = is_counted or _is_far(graph, name)
        elif node is None or len(seen) >= _MOST_NODES or not _counts(graph, node):
            return False
        elif node.standard_op in _COUNTERS or _reads_integers(graph, node):
            is_counted = True
        elif node.label not in seen:
            seen.add(node.label)
            pending += _list_moved(node)
    return is_counted


def _counts(graph: Graph, node: Node) -> bool:
    return node.standard_op in _COUNTS | _COUNTERS and not _makes_mask(graph, node)


def _reads_integers(graph: Graph, node: Node) -> bool:
    return node.standard_op == "Cast" and graph.dtypes.get(node.inputs[0]) in _INTEGERS


def _list_moved(node: Node) -> list[str]:
    """What the node makes its output of: of one that moves, not where to."""
    is_move = node.standard_op in _MOVES and node.standard_op != "Concat"
    return [node.inputs[0]] if is_move else [name for name in node.inputs if name]


def _makes_mask(graph: Graph, node: Node) -> bool:
    factors = [graph.find_constant(name) for name in node.inputs] if node.standard_op == "Mul" else []
    return any(one is not None and one.size and np.abs(one).max() >= _MASKS_FROM for one in factors)


@lru_cache(maxsize=8)  # each layer asks for the same mask
def _is_far(graph: Graph, tensor: str) -> bool:
    """Whether a constant has an element from 128 to 1000, as a mask has none."""
    value = graph.find_constant(tensor)
    if value is None or graph.dtypes.get(tensor) != TensorProto.FLOAT:
        return False
    magnitude = np.abs(value)
    return bool(((magnitude >= _LEAST) & (magnitude < _MASKS_FROM)).any())
