"""Integers over 2048 in floats, of which FP16 cannot tell all apart, where something tells them apart.

Position 2049 becomes 2048. That is one in two thousand, no more than any other value loses, and no harm in a
mean or a product. It is harm where a difference, a comparison or an index is made of them, or where they leave
the model: the nodes from where they come from up to there stay in FP32. So do those before a Floor, Ceil or Round
that they come from, and before a Cast that makes integers, by which something is looked up, of data over 2048, or of
data over 1024 that were rounded: there FP16 rounds a number to an integer by itself. Of a place over the size of a cell,
by which one is looked up, these are places over 32.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from onnx import TensorProto

from overflow_fixer.evidence.integers.coordinates import find_coordinates
from overflow_fixer.evidence.integers.interpolated import find_next_cells
from overflow_fixer.evidence.integers.multiples import EXACT_STEPS, INTEGERS, Multiples, find_multiples
from overflow_fixer.evidence.integers.places import FARTHEST_CELL, LARGEST_COORDINATE, is_far
from overflow_fixer.evidence.origins import find_origins
from overflow_fixer.evidence.paths import find_ways, walk_back
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.formats import FP16_MAX, step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, CASTS, MATRIX_PRODUCTS, ROUNDS, SCATTERS
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.batches import find_worst_batch

_ADDED = (ADDS | ROUNDS | SCATTERS).union(
    "Mean Max Min Where Clip Neg Abs Pad Relu CumSum ReduceSum ReduceMax ReduceMin Trilu".split()
)
"""Operators that keep an absolute error."""
_CHOSEN = frozenset(
    "Resize Upsample CenterCropPad ThresholdedRelu LeakyRelu PRelu MaxPool GlobalMaxPool GridSample".split()
)
"""Operators that do so of their first input."""
_SCALED = {
    "Mul": frozenset({0, 1}),
    "Div": frozenset({0}),
    **dict.fromkeys(MATRIX_PRODUCTS, frozenset({0, 1})),
}
"""Operators that scale it; followed where the other factor is no data."""
_NOT_EXACT = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL})
"""Types into which a Cast does not take integers for exact ones."""
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
_UNSEEN = frozenset({"", "If", "Loop", "Scan"})
"""Operators behind which nobody looks, those of other domains among them."""
_DECIDES = {
    **dict.fromkeys("Equal Greater Less GreaterOrEqual LessOrEqual Mod Range".split(), None),
    **dict.fromkeys("ArgMax ArgMin TopK OneHot NonMaxSuppression Unique".split(), frozenset({0})),
    **dict.fromkeys("RoiAlign MaxRoiPool Upsample".split(), frozenset({1})),
    "Resize": frozenset({2}),
    **dict.fromkeys("SequenceConstruct SequenceInsert SplitToSequence Optional".split(), None),
}
"""Operators to which another integer is another answer, and at which slots (None: at any); and those behind which nobody looks."""


_FINEST_CELL = 2.0
"""Up to it FP16's steps are 1/1024, and one number in 2,000 comes to another cell, which leaves 30 dB."""


@dataclass(frozen=True)
class _Trace:
    """What a tensor has of the lost integers in `source`. `is_mixed`: data were added to them."""

    source: str
    is_mixed: bool = False


@dataclass(frozen=True)
class _Use:
    """A node that tells them apart in `tensor`, in words; None: the model gives them out."""

    tensor: str
    node: Node | None

    @property
    def text(self) -> str:
        if self.node is None:
            return f"the model gives them out in {self.tensor}"
        return f"{self.node.op_type} {self.node.label} tells them apart"


def find_lost_integers(node: Node, graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[Finding]:
    """A finding for each tensor of lost integers that the node brings to where they are told apart, or tells apart.

    `value` is its max |x|, `limit` up to where FP16 holds all: 2048, or more for multiples of a power of two; of data
    that are rounded, and no larger, 1024, where its steps become 1, and of places in cells, of no more than that, 32.
    """
    multiples = find_multiples(graph, ranges)
    for source, use in _evidence(graph, ranges).get(node.label, {}).items():
        seen = ranges.by_tensor[source]
        step = multiples.step(source) if multiples.is_lost(source) else None
        is_rounded = step is None and seen.max_abs <= EXACT_STEPS
        smallest = FARTHEST_CELL if seen.max_abs <= LARGEST_COORDINATE else LARGEST_COORDINATE
        limit = smallest if is_rounded else min(EXACT_STEPS * (step or 1), FP16_MAX)
        reason = f"{_tell(source, seen.max_abs, step, limit)}, and {use.text}"
        batch = find_worst_batch(graph, ranges, source)
        yield Finding("lost_integer", node.label, source, seen.max_abs, limit, reason, batch)


def _tell(source: str, largest: float, step: float | None, limit: float) -> str:
    """What is lost; `step` is None of data."""
    if step is None and largest <= LARGEST_COORDINATE:
        size = step_at(largest)
        return f"{source} reaches {largest:.9g}, where FP16's steps of {size:g} round one number in {2 / size:.0f} past an integer"
    if step is None and largest <= EXACT_STEPS:
        return f"{source} reaches {largest:.9g}, which FP16 rounds to integers by itself from {limit:g} on"
    if step is None:
        return f"{source} reaches {largest:.9g}, of whose integers FP16 tells apart those up to {limit:g}"
    what = "integers" if step == 1 else f"multiples of {step:g}"
    return f"{source} holds {what} up to {largest:.9g}, of which FP16 tells apart those up to {limit:g}"


@lru_cache(maxsize=1)
def _evidence(graph: Graph, ranges: RangeTable) -> dict[str, dict[str, _Use]]:
    """For each node concerned, the lost integers and what tells them apart."""
    walk = _Walk(graph, ranges, find_multiples(graph, ranges), find_coordinates(graph))
    walk.follow()
    found: dict[str, dict[str, _Use]] = {}
    for use in walk.uses:
        source = walk.traces[use.tensor].source
        for node in walk.lead_back(use):
            found.setdefault(node.label, {}).setdefault(source, use)
    for cast, limit in ((node, _find_cut(graph, ranges, node)) for node in graph.nodes):
        data = _find_data(graph, cast) if limit is not None else ""
        for node in _trace_cut(graph, ranges, cast, limit) if limit is not None else ():
            found.setdefault(node.label, {}).setdefault(data, _Use(data, cast))
    return found


def _find_cut(graph: Graph, ranges: RangeTable, node: Node) -> float | None:
    """From where on data matter of which a Cast makes integers by which something is looked up; None of another node.

    That is of data over 2048, or over 1024 of what was rounded, whose fractions matter; integers up to 2048 may be among others.
    What was rounded to more is one of the lost integers itself. Of what was scaled, as places over the size of a cell, it is
    from 32 on, where it is no size and is not given out.
    """
    is_cut = node.standard_op in CASTS and graph.dtypes.get(node.outputs[0]) in INTEGERS
    data = _find_data(graph, node) if is_cut else ""
    if not is_cut or not is_far(graph, ranges, data, FARTHEST_CELL):
        return None
    is_large = ranges.by_tensor[node.inputs[0]].max_abs > EXACT_STEPS
    is_rounded = data != node.inputs[0]
    if is_large != is_rounded and is_far(graph, ranges, data) and _is_looked_up(graph, node.outputs[0]):
        return LARGEST_COORDINATE
    is_cell = not is_large and _is_scaled(graph, data) and _tells_a_cell(graph, node, data)
    return FARTHEST_CELL if is_cell else None


def _trace_cut(graph: Graph, ranges: RangeTable, cast: Node, limit: float) -> Iterator[Node]:
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
    return node.standard_op in _ADDED or moves(node, 0)


def _find_data(graph: Graph, cast: Node) -> str:
    """What the Cast makes integers of; what a Floor, Ceil or Round reads in front of it."""
    writer = graph.producers.get(cast.inputs[0])
    return writer.inputs[0] if writer is not None and writer.standard_op in ROUNDS else cast.inputs[0]


def _is_looked_up(graph: Graph, tensor: str) -> bool:
    """Whether integers, or what is computed of them as integers, are places or sizes, or leave the model."""

    def stays_integer(node: Node, slot: int) -> bool:
        return any(graph.dtypes.get(name) in INTEGERS for name in node.writes)

    def is_end(node: Node, slot: int) -> bool:
        slots = None if node.standard_op in _UNSEEN else _INDEXES.get(node.standard_op, frozenset())
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


def _tells_exactly(graph: Graph, node: Node) -> bool:
    """Whether it is a Cast to integers, or to float64, which has all of them."""
    return node.standard_op in CASTS and graph.dtypes.get(node.outputs[0]) not in _NOT_EXACT


@dataclass(eq=False)
class _Walk:
    """Follows lost integers forward, once through the graph, and finds what uses them."""

    graph: Graph
    ranges: RangeTable
    multiples: Multiples
    coordinates: frozenset[str]
    traces: dict[str, _Trace] = field(default_factory=dict)
    uses: list[_Use] = field(default_factory=list)

    def follow(self) -> None:
        floats = (*(spec.name for spec in self.graph.inputs), *self.graph.constants)
        self.traces = {name: _Trace(name) for name in floats if self._is_lost(name)}
        for node in self.graph.nodes:
            held = [slot for slot, name in enumerate(node.inputs) if name in self.traces]
            self.uses += [_Use(node.inputs[slot], node) for slot in held if self._tells_apart(node, slot)]
            self.uses += [_Use(name, node) for name in node.captured if name in self.traces]
            for output in node.writes:
                trace = self._carried(node, held, output)
                if trace is None and node.op_type != "Constant" and self._is_lost(output):
                    trace = _Trace(output)
                if trace is not None:
                    self.traces[output] = trace
        outputs = (name for name in self.graph.outputs if name in self.traces)
        self.uses += [_Use(name, None) for name in outputs if self._max_abs(name) > EXACT_STEPS]

    def lead_back(self, use: _Use) -> Iterator[Node]:
        """The node that uses them, and all on the way from where they come from."""
        if use.node is not None:
            yield use.node
        pending, seen = [use.tensor], {use.tensor}
        while pending:
            node = self.graph.producers.get(pending.pop())
            if node is None:
                continue
            yield node
            if node.standard_op in ROUNDS:
                yield from find_origins(self.graph, self.ranges, node.inputs[0], LARGEST_COORDINATE)
            for slot, name in enumerate(node.inputs):
                if name in self.traces and name not in seen and self._carries(node, slot):
                    seen.add(name)
                    pending.append(name)

    def _is_lost(self, tensor: str) -> bool:
        return self.graph.dtypes.get(tensor) == TensorProto.FLOAT and self.multiples.is_lost(tensor)

    def _max_abs(self, tensor: str) -> float:
        seen = self.ranges.get(tensor)
        return 0.0 if seen is None else seen.max_abs

    def _carried(self, node: Node, held: list[int], output: str) -> _Trace | None:
        """The trace that an output has from what the node reads; data in it hide a small one.

        None in what FP16 holds once the node that tells them apart is in FP32.
        """
        if self.graph.dtypes.get(output) != TensorProto.FLOAT:
            return None
        found = [self.traces[node.inputs[slot]] for slot in held if self._carries(node, slot)]
        if not found or self._is_settled(node, held, output):
            return None
        is_mixed = any(trace.is_mixed for trace in found) or not self._are_plain(node)
        return (
            None if is_mixed and self._max_abs(output) <= EXACT_STEPS else _Trace(found[0].source, is_mixed)
        )

    def _is_settled(self, node: Node, held: list[int], output: str) -> bool:
        is_small = self.multiples.is_held(output) or self._max_abs(output) <= EXACT_STEPS
        return is_small and all(self._tells_apart(node, slot) for slot in held)

    def _carries(self, node: Node, slot: int) -> bool:
        op = node.standard_op
        if op in _SCALED:
            return slot in _SCALED[op] and self._are_plain(node)
        return op in _ADDED or moves(node, slot) or (op in _CHOSEN and slot == 0)

    def _are_plain(self, node: Node) -> bool:
        """Whether the node reads no data but integers, inputs and constants."""
        return all(name in self.coordinates or not self.graph.is_float(name) for name in node.reads)

    def _tells_apart(self, node: Node, slot: int) -> bool:
        op = node.standard_op
        if op in _DECIDES:
            slots = _DECIDES[op]
            return slots is None or slot in slots
        if op in ROUNDS:
            return (self.multiples.step(node.inputs[slot]) or 0) < 1
        if op in CASTS:
            return slot == 0 and _tells_exactly(self.graph, node)
        if op in ADDS:
            return self._cancels(node, slot)
        return op in _UNSEEN

    def _cancels(self, node: Node, slot: int) -> bool:
        """Whether values over 2048 at this slot may meet others of the opposite sign and as large."""
        mine = self.ranges.get(node.inputs[slot])
        for other, name in enumerate(node.inputs):
            theirs = self.ranges.get(name)
            if other == slot or mine is None or theirs is None:
                continue
            low, high = (-theirs.max, -theirs.min) if node.standard_op == "Sub" else (theirs.min, theirs.max)
            if (mine.max > EXACT_STEPS and low < -EXACT_STEPS) or (
                mine.min < -EXACT_STEPS and high > EXACT_STEPS
            ):
                return True
        return False
