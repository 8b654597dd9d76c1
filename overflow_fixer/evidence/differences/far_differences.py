"""A difference of values over 1024 that is no more than a few of FP16's steps there: the side of a box, x2 - x1.

3000.3 and 3004.8 are 3000 and 3004 in FP16, so a side of 4.5 becomes 4; what each lost is a large share of what is left.
"""

from __future__ import annotations

from collections.abc import Iterator

from overflow_fixer.evidence.differences.losses import FEWEST_STEPS, LostDifference, tell_steps
from overflow_fixer.evidence.differences.sources import find_sources
from overflow_fixer.evidence.differences.terms import find_terms
from overflow_fixer.evidence.integers.places import is_far, trace_back
from overflow_fixer.formats import step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import RangeTable

_LAYERS = frozenset("Conv ConvTranspose Gemm MatMul".split())


def find_far(graph: Graph, ranges: RangeTable) -> Iterator[LostDifference]:
    """Each of which less than 64 of FP16's steps at the largest term are left; the value is max |x|.

    None of terms with NaN or infinities, that FP16 is known to hold, or of integers; none of a difference of zeros.
    """
    for node in graph.nodes:
        terms = _find_terms(graph, ranges, node)
        if terms:
            seen = ranges.by_tensor[node.outputs[0]]
            most = max(ranges.by_tensor[name].max_abs for name in terms)
            reason = (
                f"{seen.tensor} is {seen.max_abs:.6g} at most, of which {' and '.join(terms)}, up to {most:.6g}, lose much: "
                f"{tell_steps(most)}"
            )
            nodes, limit = tuple(_trace(graph, ranges, node, terms)), FEWEST_STEPS * step_at(most)
            yield LostDifference(nodes, seen.tensor, seen.max_abs, limit, reason, ranges.worst_batch_of(seen))


def _find_terms(graph: Graph, ranges: RangeTable, node: Node) -> tuple[str, ...]:
    """The terms over 1024 of which no more than a few steps are left; none where more is, or none is so large."""
    added = find_terms(graph, node)
    left = ranges.get(node.outputs[0]) if added else None
    if left is None or not left.max_abs > 0:
        return ()
    terms = tuple(dict.fromkeys(name for name in added if is_far(graph, ranges, name)))
    step = max((step_at(ranges.by_tensor[name].max_abs) for name in terms), default=0.0)
    return terms if left.max_abs < FEWEST_STEPS * step else ()


def _trace(graph: Graph, ranges: RangeTable, node: Node, terms: tuple[str, ...]) -> Iterator[Node]:
    """The node, what computes its terms, and what is smaller before it is added up or squared, as far as its rounding matters.

    Of that not the layers that write data, whose errors average out.
    """
    yield node
    sources = find_sources(graph, ranges, node, ranges.by_tensor[node.outputs[0]].max_abs)
    yield from (source for source in sources if source.standard_op not in _LAYERS)
    for name in terms:
        yield from trace_back(graph, ranges, name)
