"""Whether it shows how a comparison of a value near zero is decided.

It does not where both ways lead to values near zero: Where(x > 0, x, 0.01 x), or sign(x) · √|x|. A mask, a choice between x
and 1, and a quotient do show it.
"""

from __future__ import annotations

from overflow_fixer.evidence.paths import list_values
from overflow_fixer.evidence.semantics import moves, readers
from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.graph.comparisons import Comparison
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import is_square, read_exponent
from overflow_fixer.records import RangeTable

_KEEPS_ZERO = frozenset(
    """Sqrt Mul Abs Neg Relu LeakyRelu PRelu Softsign Tanh Sin Tan Sinh Asin Atan Asinh Atanh Erf Sign""".split()
)
_IS_ZERO_WITH = frozenset("Abs Neg Sqrt".split())
"""Operators of which what they read is near zero where what they write is."""
_COMBINES = frozenset("Not And Or Xor".split())


def is_shown(graph: Graph, ranges: RangeTable, comparison: Comparison) -> bool:
    """Whether some way from the comparison comes to what differs by more than a value near zero."""
    near_zero = _find_near_zero(graph, comparison.tensor)
    pending, seen = list(comparison.node.writes), set(comparison.node.writes)
    while pending:
        name = pending.pop()
        if name in graph.outputs:
            return True
        for node, slot in readers(graph, name):
            if _is_hidden(graph, ranges, node, slot, near_zero):
                continue
            if not _hands_on(graph, node, slot, comparison.number):
                return True
            fresh = [one for one in node.writes if one not in seen]
            seen.update(fresh)
            pending += fresh
    return False


def _is_hidden(graph: Graph, ranges: RangeTable, node: Node, slot: int, near_zero: frozenset[str]) -> bool:
    """Whether what the node makes of the decision is near zero either way."""
    if node.standard_op == "Where" and slot == 0:
        return all(_is_small(graph, ranges, name, near_zero) for name in node.inputs[1:])
    return node.standard_op == "Mul" and node.inputs[1 - slot] in near_zero


def _is_small(graph: Graph, ranges: RangeTable, name: str, near_zero: frozenset[str]) -> bool:
    constant = ranges.get(name) if name in graph.constants else None
    return name in near_zero or (constant is not None and constant.max_abs <= FP16_UNDERFLOW)


def _hands_on(graph: Graph, node: Node, slot: int, number: float) -> bool:
    """Whether something behind may hide what the node makes of the decision: of a choice, where zero is told from the rest.

    Beside another number FP16 may choose a quotient by zero, which no product hides.
    """
    is_choice = node.standard_op == "Where" and slot == 0 and number == 0
    return is_choice or node.standard_op in _COMBINES or node.standard_op == "Neg" or moves(node, slot)


def _find_near_zero(graph: Graph, tensor: str) -> frozenset[str]:
    """The tensor, what it is made of that is near zero with it, and what is near zero with these."""
    found = _list_sources(graph, tensor)
    pending = list(found)
    while pending:
        for node, slot in readers(graph, pending.pop()):
            fresh = (
                [one for one in list_values(node) if one not in found] if _keeps(graph, node, slot) else []
            )
            found.update(fresh)
            pending += fresh
    return frozenset(found)


def _list_sources(graph: Graph, tensor: str) -> set[str]:
    found = {tensor}
    while (source := _find_source(graph, graph.producers.get(tensor))) is not None:
        found.add(source)
        tensor = source
    return found


def _find_source(graph: Graph, node: Node | None) -> str | None:
    """The one float that the node reads but constants, where that is near zero with what it writes; None of another node.

    Not what a constant is divided by: that is large.
    """
    live = [] if node is None else [one for one in dict.fromkeys(node.inputs) if graph.is_float(one)]
    live = [name for name in live if name not in graph.constants]
    if node is None or len(live) != 1 or not _keeps(graph, node, node.inputs.index(live[0])):
        return None
    is_plain = node.standard_op in _IS_ZERO_WITH or is_square(graph, node) or moves(node, 0)
    return live[0] if is_plain or node.standard_op in ("Mul", "Div") else None


def _keeps(graph: Graph, node: Node, slot: int) -> bool:
    is_plain = node.standard_op in _KEEPS_ZERO or moves(node, slot) or read_exponent(graph, node) > 0
    return is_plain or (node.standard_op == "Div" and slot == 0)
