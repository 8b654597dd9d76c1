"""A row of features of which little is left less its mean or its least, that is scaled up by what it is: pressures, in 1013 ± 1.

(x − μ) / σ makes as much of them as of the wind beside them, of 180 ± 180, which alone the ranges show. How little is
left was measured row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from overflow_fixer.evidence.differences.kept_small import may_keep
from overflow_fixer.evidence.differences.losses import LostDifference
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.differences.terms import find_lost_terms
from overflow_fixer.evidence.measured import are_finite, list_inner
from overflow_fixer.evidence.paths import find_given, find_ways, walk_back
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.evidence.zeros.near_zero import divides
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import InnerRange, RangeTable

_MOST = 64.0
"""Where a row is more times what is left of it, that is less than 32 of FP16's steps: under 30 dB, see docs/numerics.md."""
_AS_LARGE = frozenset("ReduceMax ReduceMin ReduceMean Abs Max Clip Where Constant ConstantOfShape".split())
"""Operators that make numbers as large as the row of a row, or guards: to divide what is left by such a one scales nothing up."""


def find_row_differences(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each difference of which that is so, and that is divided by what is made of the same; the value is how many times.

    None of terms or results with NaN or infinities, and of terms that FP16 is known to hold.
    """
    for node, inner in list_inner(graph, ranges, "row cancellation"):
        is_lost = inner.seen.max_abs > _MOST and _is_rounded(graph, ranges, node)
        end = _find_end(graph, ranges, node) if is_lost else None
        if end is not None:
            yield _tell(graph, ranges, node, inner, end)


def _is_rounded(graph: Graph, ranges: RangeTable, node: Node) -> bool:
    read = node.inputs if node.standard_op == "Sub" else node.inputs[:1]
    is_finite = are_finite(graph, ranges, *read, node.outputs[0])
    return is_finite and bool(find_lost_terms(graph, ranges, node))


def _find_end(graph: Graph, ranges: RangeTable, node: Node) -> Node | None:
    """What scales it up: the normalisation itself, or what divides it, or something, by what is made of it or of its row.

    Not by fewer numbers than there are rows, which are of all of them.
    """
    if node.standard_op != "Sub":
        return node
    count = _count(ranges, node.inputs[1])

    def divides_rows(reader: Node, slot: int) -> bool:
        return divides(graph, reader, slot) and _count(ranges, reader.inputs[slot]) >= count

    divided_by = find_ways(graph, node.outputs[0], partial(may_keep, graph), divides_rows)
    return find_scaling(graph, ranges, node) or (divided_by[-1] if divided_by else None)


def find_scaling(graph: Graph, ranges: RangeTable, node: Node) -> Node | None:
    """What divides a difference from a mean, row by row, by what is made of the same, or multiplies it by one over that."""
    count = _count(ranges, node.inputs[1])

    def scales_rows(reader: Node, slot: int) -> bool:
        return _scales(graph, node, reader, slot) and _count(ranges, reader.inputs[1 - slot]) >= count

    scaled = find_ways(graph, node.outputs[0], moves, scales_rows)
    return scaled[-1] if scaled else None


def _count(ranges: RangeTable, tensor: str) -> int:
    seen = ranges.get(tensor)
    return 0 if seen is None else seen.element_count


def _scales(graph: Graph, node: Node, reader: Node, slot: int) -> bool:
    """Whether it divides the difference by something that is made of what the difference is of, or multiplies it by one over that."""
    if (reader.standard_op, slot) not in (("Div", 0), ("Mul", 0), ("Mul", 1)):
        return False
    other, sources = reader.inputs[1 - slot], {*node.inputs, *node.outputs}
    makers = list(walk_back(graph, other, lambda writer, name: name not in sources))
    is_made_of_it = any(not sources.isdisjoint(one.inputs) for one in makers)
    divides_by_it = reader if reader.standard_op == "Div" else _find_reciprocal(graph, makers)
    is_as_large = all(one is divides_by_it or _is_as_large(graph, node, one) for one in makers)
    return is_made_of_it and divides_by_it is not None and not is_as_large


def _is_as_large(graph: Graph, node: Node, maker: Node) -> bool:
    """Whether what is made of the row is as large as that: it is chosen, or a guard is added, and it is not of what is left."""
    is_condition = all(name in graph.dtypes and not graph.is_float(name) for name in maker.writes)
    if is_condition or not set(maker.inputs).isdisjoint(node.outputs):
        return is_condition
    adds = maker.standard_op == "Add" and not graph.constants.keys().isdisjoint(maker.inputs)
    return adds or maker.standard_op in _AS_LARGE or moves(maker, 0)


def _find_reciprocal(graph: Graph, makers: Sequence[Node]) -> Node | None:
    """The last that computes, and does not move, if it divides by what it reads."""
    last = next((one for one in makers if not moves(one, 0)), None)
    is_one = last is not None and any(divides(graph, last, slot) for slot in range(len(last.inputs)))
    return last if is_one else None


def _tell(graph: Graph, ranges: RangeTable, node: Node, inner: InnerRange, end: Node) -> LostDifference:
    source, times = ranges.by_tensor[node.inputs[0]], inner.seen.max_abs
    taken = "its mean" if end is node else node.inputs[1]
    reason = (
        f"a row of {source.tensor} is {times:.6g} times as large as what is left of it less {taken}, over the limit of {_MOST:g}: "
        f"FP16 has less than 32 steps for that, and {end.op_type} {end.label} scales it up"
    )
    nodes = (*find_sources(graph, ranges, node, source.max_abs / times), *_find_restoring(graph, node))
    batch = ranges.worst_batch_of(inner.seen)
    return LostDifference(nodes, node.outputs[0], times, _MOST, reason, batch)


def _find_restoring(graph: Graph, node: Node) -> Iterator[Node]:
    """What adds the mean again to what is given out, as far from zero as the row was, and moves both there."""
    if node.standard_op != "Sub":
        return

    def restores(reader: Node, slot: int) -> bool:
        is_sum = reader.standard_op in ("Add", "Sub") and reader is not node
        return is_sum and find_given(graph, reader.outputs[0], moves) is not None

    def gives_out(reader: Node, slot: int) -> bool:
        return moves(reader, slot) and not set(reader.writes).isdisjoint(graph.outputs)

    for one in find_ways(graph, node.inputs[1], moves, restores):
        yield one
        yield from find_ways(graph, one.outputs[0], moves, gives_out) if not moves(one, 0) else ()
