"""Casts that make integers of data that FP16 rounds to another integer, by which something is looked up."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from overflow_fixer.evidence.integers.integer_samples import is_sampling
from overflow_fixer.evidence.integers.interpolated import find_next_cells
from overflow_fixer.evidence.integers.multiples import EXACT_STEPS, INTEGERS
from overflow_fixer.evidence.integers.places import FARTHEST_CELL, LARGEST_COORDINATE, is_far
from overflow_fixer.evidence.origins import find_origins
from overflow_fixer.evidence.paths import find_ways, walk_back
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, CASTS, ROUNDS, SCATTERS, UNSEEN
from overflow_fixer.records import RangeTable

KEEPS_ERROR = (ADDS | ROUNDS | SCATTERS).union(
    "Mean Max Min Where Clip Neg Abs Pad Relu CumSum ReduceSum ReduceMax ReduceMin Trilu".split()
)
"""Operators that keep an absolute error."""
_LOOKS_UP = SCATTERS.union("Gather GatherElements GatherND".split())
_INDEXES = {
    **dict.fromkeys((*_LOOKS_UP, "TopK"), frozenset({1})),
    **dict.fromkeys("Slice Expand Reshape Tile Pad".split(), frozenset({1, 2, 3, 4})),
    **dict.fromkeys("OneHot Range ConstantOfShape EyeLike".split(), None),
    **dict.fromkeys("Split CenterCropPad ReverseSequence".split(), frozenset({1})),
    **dict.fromkeys("LSTM GRU RNN".split(), frozenset({4})),
    "MaxUnpool": frozenset({1, 2}),
    "RoiAlign": frozenset({2}),
    "Resize": frozenset({3}),
    "Mod": None,
}
"""Operators to which another integer is another place, or another size, and at which slots (None: at any)."""
_FINEST_CELL = 2.0
"""Up to it FP16's steps are 1/1024, and one number in 2,000 comes to another cell, which leaves 30 dB."""


class Cut(NamedTuple):
    """A Cast of `data` to integers, and the nodes that have to stay in FP32 for it, itself first."""

    cast: Node
    data: str
    nodes: tuple[Node, ...]


def find_cuts(graph: Graph, ranges: RangeTable) -> Iterator[Cut]:
    """Those of data that FP16 rounds to other integers, over 2048 as they are, over 1024 rounded, over 32 as places in cells."""
    for node in graph.nodes:
        limit = _find_limit(graph, ranges, node)
        if limit is not None:
            yield Cut(node, _find_data(graph, node), tuple(_trace(graph, ranges, node, limit)))


def _find_limit(graph: Graph, ranges: RangeTable, node: Node) -> float | None:
    """From where on data matter of which a Cast makes integers by which something is looked up; None of another node.

    That is of data over 2048, or over 1024 of what was rounded, whose fractions matter; integers up to 2048 may be among others.
    What was rounded to more is one of the lost integers itself. Of what was scaled, as places over the size of a cell, it is
    from 32 on, where it is no size and is not given out.
    """
    is_cut = node.standard_op in CASTS and graph.dtypes.get(node.outputs[0]) in INTEGERS
    data = _find_data(graph, node) if is_cut else ""
    if not is_cut or is_sampling(graph, node) or not is_far(graph, ranges, data, FARTHEST_CELL):
        return None
    is_large = ranges.by_tensor[node.inputs[0]].max_abs > EXACT_STEPS
    is_rounded = data != node.inputs[0]
    if is_large != is_rounded and is_far(graph, ranges, data) and _is_looked_up(graph, node.outputs[0]):
        return LARGEST_COORDINATE
    is_cell = not is_large and _is_scaled(graph, data) and _tells_a_cell(graph, node, data)
    return FARTHEST_CELL if is_cell else None


def _trace(graph: Graph, ranges: RangeTable, cast: Node, limit: float) -> Iterator[Node]:
    """The Cast, and what computes its data, of cells as far as its rounding leaves fewer than 30 dB."""
    yield cast
    rounded = _FINEST_CELL if limit == FARTHEST_CELL else limit
    yield from find_origins(graph, ranges, cast.inputs[0], rounded)


def _is_scaled(graph: Graph, data: str) -> bool:
    """Whether it is a quotient or a product, bounded or added to perhaps."""
    return any(
        node.standard_op in ("Mul", "Div") for node in walk_back(graph, data, lambda node, name: _adds(node))
    )


def _adds(node: Node) -> bool:
    return node.standard_op in KEEPS_ERROR or moves(node, 0)


def _find_data(graph: Graph, cast: Node) -> str:
    """What the Cast makes integers of; what a Floor, Ceil or Round reads in front of it."""
    writer = graph.producers.get(cast.inputs[0])
    return writer.inputs[0] if writer is not None and writer.standard_op in ROUNDS else cast.inputs[0]


def _is_looked_up(graph: Graph, tensor: str) -> bool:
    """Whether integers, or what is computed of them as integers, are places or sizes, or leave the model."""

    def stays_integer(node: Node, slot: int) -> bool:
        return any(graph.dtypes.get(name) in INTEGERS for name in node.writes)

    def is_end(node: Node, slot: int) -> bool:
        slots = None if node.standard_op in UNSEEN else _INDEXES.get(node.standard_op, frozenset())
        gives_out = any(name in graph.outputs and graph.dtypes.get(name) in INTEGERS for name in node.writes)
        return slots is None or slot in slots or gives_out

    return tensor in graph.outputs or bool(find_ways(graph, tensor, stays_integer, is_end))


def _tells_a_cell(graph: Graph, cast: Node, data: str) -> bool:
    """Whether something else is looked up in the next cell: not where that is looked up, too, and both are weighed by the rest."""
    next_cells = find_next_cells(graph, data)
    is_interpolated = bool(next_cells) and _tells_a_place(graph, cast.outputs[0], next_cells)
    return not is_interpolated and _tells_a_place(graph, cast.outputs[0])


def _tells_a_place(graph: Graph, tensor: str, without: Container[str] = ()) -> bool:
    """Whether integers, or what nodes but those compute of them as integers, are places in something else, as indices are."""

    def stays_integer(node: Node, slot: int) -> bool:
        return node.label not in without and any(graph.dtypes.get(name) in INTEGERS for name in node.writes)

    def is_end(node: Node, slot: int) -> bool:
        return node.standard_op in _LOOKS_UP and slot == 1

    return bool(find_ways(graph, tensor, stays_integer, is_end))
