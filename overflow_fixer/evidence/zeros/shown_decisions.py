"""Whether it shows how a comparison of a value near zero is decided.

It does not where both ways lead to values near zero: Where(x > 0, x, 0.01 x), or sign(x) · √|x|. A mask, a choice between x
and 1, and a quotient do show it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from overflow_fixer.evidence.paths import list_values
from overflow_fixer.evidence.semantics import moves, readers
from overflow_fixer.evidence.zeros.near_zero import keeps_zero
from overflow_fixer.formats import FP16_UNDERFLOW
from overflow_fixer.graph.comparisons import Comparison
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.powers import is_square
from overflow_fixer.records import RangeTable

_IS_ZERO_WITH = frozenset("Abs Neg Sqrt".split())
"""Operators of which what they read is near zero where what they write is."""
_COMBINES = frozenset("Not And Or Xor Neg".split())


def is_shown(graph: Graph, ranges: RangeTable, comparison: Comparison) -> bool:
    """Whether some way from the comparison comes to what differs by more than a value near zero."""
    root, ends = _find_root(graph, comparison.tensor), _find_ends(graph)
    pending = [ends.get(name, name) for name in comparison.node.writes]
    seen = set(pending)
    while pending:
        name = pending.pop()
        if name in graph.outputs:
            return True
        for node, slot in readers(graph, name):
            if _is_hidden(graph, ranges, node, slot, root):
                continue
            if not _hands_on(node, slot, comparison.number):
                return True
            fresh = {ends.get(one, one) for one in node.writes} - seen
            seen |= fresh
            pending += fresh
    return False


@lru_cache(maxsize=1)
def _find_ends(graph: Graph) -> Mapping[str, str]:
    """Of a truth that one node alone reads, and hands on beside any number, what comes of it at the end of all such nodes.

    In one pass: of a long chain each comparison would go through all behind it.
    """
    given, found = set(graph.outputs), dict[str, str]()
    for node in reversed(graph.nodes):
        for slot, name in enumerate(node.inputs) if len(node.writes) == 1 else ():
            is_read_once = len(graph.consumers.get(name, ())) == 1 == node.inputs.count(name)
            if is_read_once and name not in given and _combines(node, slot):
                found[name] = found.get(node.writes[0], node.writes[0])
    return found


def _is_hidden(graph: Graph, ranges: RangeTable, node: Node, slot: int, root: str) -> bool:
    """Whether what the node makes of the decision is near zero either way."""
    if node.standard_op == "Where" and slot == 0:
        return all(_is_small(graph, ranges, name, root) for name in node.inputs[1:])
    return node.standard_op == "Mul" and _is_zero_with(graph, node.inputs[1 - slot], root)


def _is_small(graph: Graph, ranges: RangeTable, name: str, root: str) -> bool:
    constant = ranges.get(name) if name in graph.constants else None
    is_tiny = constant is not None and constant.max_abs <= FP16_UNDERFLOW
    return is_tiny or _is_zero_with(graph, name, root)


def _hands_on(node: Node, slot: int, number: float) -> bool:
    """Whether something behind may hide what the node makes of the decision: of a choice, where zero is told from the rest.

    Beside another number FP16 may choose a quotient by zero, which no product hides.
    """
    return _combines(node, slot) or (node.standard_op == "Where" and slot == 0 and number == 0)


def _combines(node: Node, slot: int) -> bool:
    return node.standard_op in _COMBINES or moves(node, slot)


def _is_zero_with(graph: Graph, tensor: str, root: str) -> bool:
    """Whether operators that keep zero make the tensor of the root: nothing before that is looked at."""
    writer = graph.producers.get(root)
    first = -1 if writer is None else writer.index
    pending = [_find_root(graph, tensor)]
    seen = set(pending)
    while pending and root not in seen:
        name = pending.pop()
        node = graph.producers.get(name)
        if node is not None and node.index > first and name in list_values(node):
            kept = (one for slot, one in enumerate(node.inputs) if one and _keeps(graph, node, slot))
            fresh = {_find_root(graph, one) for one in kept} - seen
            seen |= fresh
            pending += fresh
    return root in seen


def _find_root(graph: Graph, tensor: str) -> str:
    """What the tensor is made of that is near zero with it, back to the first; itself where that is nothing."""
    return _find_roots(graph).get(tensor, tensor)


@lru_cache(maxsize=1)
def _find_roots(graph: Graph) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for node in graph.nodes:
        source = _find_source(graph, node)
        if source is not None:
            found.update(dict.fromkeys(list_values(node), found.get(source, source)))
    return found


def _find_source(graph: Graph, node: Node) -> str | None:
    """The one float that the node reads but constants, where that is near zero with what it writes.

    Not what a constant is divided by: that is large.
    """
    live = [one for one in dict.fromkeys(node.inputs) if graph.is_float(one) and one not in graph.constants]
    if len(live) != 1 or not _keeps(graph, node, node.inputs.index(live[0])):
        return None
    is_plain = node.standard_op in _IS_ZERO_WITH or is_square(graph, node) or moves(node, 0)
    return live[0] if is_plain or node.standard_op in ("Mul", "Div") else None


def _keeps(graph: Graph, node: Node, slot: int) -> bool:
    return node.standard_op == "Sign" or keeps_zero(graph, node, slot)
