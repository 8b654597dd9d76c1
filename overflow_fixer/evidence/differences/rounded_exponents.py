"""Differences of any floats in an exponent, exp(−β (t1 − t2)), of which FP16 takes too much: what the scan measured tells."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from overflow_fixer.evidence.differences.losses import LostDifference, tell_steps
from overflow_fixer.evidence.differences.terms_alike import find_rounded_terms
from overflow_fixer.evidence.measured import list_inner, read_maxima, read_worst
from overflow_fixer.evidence.paths import find_given, find_ways
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS
from overflow_fixer.inner.exponentials import find_exponent
from overflow_fixer.patterns.softmax import find_softmax
from overflow_fixer.records import RangeTable

_LARGEST_LOSS = 1 / 32
"""30 dB of an exponential, as verification tolerates."""
_GROWS = frozenset("Add Sum ReduceSum".split())


def find_rounded_exponents(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each whose exponential loses more than 1/32 of itself, root mean square, in the batch in which that is most.

    The value is that loss. None inside a Softmax or LogSoftmax that is written out, of which a row may bear it: see the rule
    lost_logit. None where something that is added to it hides the loss, or a logarithm is taken of it, or of a sum.
    """
    for node, inner in list_inner(graph, ranges, "exponent loss"):
        loss, batch = read_worst(inner)
        if loss > _LARGEST_LOSS and _shows(graph, ranges, node, loss, batch):
            yield from _tell(graph, ranges, node, loss, batch)


def _shows(graph: Graph, ranges: RangeTable, node: Node, loss: float, batch: int) -> bool:
    """Whether the loss may show in what is made of what the node writes."""
    output = node.outputs[0]
    most = loss * float(read_maxima(ranges, output)[batch]) / _LARGEST_LOSS

    def is_hidden(reader: Node, slot: int) -> bool:
        is_first = reader.inputs[slot] == output
        return reader.standard_op == "Log" or (is_first and _adds_larger(ranges, reader, slot, most, batch))

    def hands_on(reader: Node, slot: int) -> bool:
        return not is_hidden(reader, slot) and (reader.standard_op in _GROWS or moves(reader, slot))

    def shows(reader: Node, slot: int) -> bool:
        return not is_hidden(reader, slot) and not hands_on(reader, slot)

    return find_given(graph, output, hands_on) is not None or bool(find_ways(graph, output, hands_on, shows))


def _adds_larger(ranges: RangeTable, reader: Node, slot: int, most: float, batch: int) -> bool:
    """Whether it adds something that is as large as that in the batch."""
    others = reader.beside(slot) if reader.standard_op in ADDS else ()
    return any(read_maxima(ranges, name)[batch] >= most for name in others)


def _tell(graph: Graph, ranges: RangeTable, node: Node, loss: float, batch: int) -> Iterator[LostDifference]:
    """With the differences of which FP16 rounds a term by more than half of what leaves 30 dB, and what computes such terms."""
    exponent = find_exponent(graph, node)
    if exponent is None:
        return
    allowed = _LARGEST_LOSS / math.log1p(loss)  # an exponent off by d makes e^d of 1
    rounded = find_rounded_terms(graph, ranges, exponent.differences, batch, allowed)
    if rounded is None or any(one.label in _list_softmaxes(graph) for one in rounded.lost):
        return
    name, most = rounded.nodes[0].outputs[0], rounded.most
    reason = (
        f"{node.op_type} {node.label} loses {loss:.3g} of what it gives where {' and '.join(rounded.terms)}, up to {most:.6g} where they "
        f"cancel, of which {name} in its exponent is made, are rounded to FP16: {tell_steps(most)}"
    )
    yield LostDifference(rounded.nodes, name, loss, _LARGEST_LOSS, reason, ranges.batch_names[batch])


@lru_cache(maxsize=1)
def _list_softmaxes(graph: Graph) -> frozenset[str]:
    """The labels of their nodes."""
    return frozenset(label for region in find_softmax(graph) for label in region.nodes)
