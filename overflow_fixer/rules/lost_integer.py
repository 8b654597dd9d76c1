"""Integers over 2048 in floats, of which FP16 cannot tell all apart, where something tells them apart.

Position 2049 becomes 2048. That is one in two thousand, no more than any other value loses, and no harm in a
mean or a product. It is harm where a difference, a comparison or an index is made of them, or where they leave
the model: the nodes from where they come from up to there stay in FP32. So do those before a Floor, Ceil or Round
that they come from, and before a Cast that makes integers, by which something is looked up, of data over 2048, or of
data over 1024 that were rounded: there FP16 rounds a number to an integer by itself. Of a place over the size of a cell,
by which one is looked up, these are places over 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from onnx import TensorProto

from overflow_fixer.evidence.integers.coordinates import find_coordinates
from overflow_fixer.evidence.integers.cuts import KEEPS_ERROR, find_cuts
from overflow_fixer.evidence.integers.integer_samples import is_sampling
from overflow_fixer.evidence.integers.multiples import EXACT_STEPS, Multiples, find_multiples
from overflow_fixer.evidence.integers.places import FARTHEST_CELL, LARGEST_COORDINATE
from overflow_fixer.evidence.origins import find_origins
from overflow_fixer.evidence.semantics import moves
from overflow_fixer.formats import FP16_MAX, step_at
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.graph.operators import ADDS, CASTS, MATRIX_PRODUCTS, ROUNDS, UNSEEN
from overflow_fixer.records import Finding, PlanPolicy, RangeTable
from overflow_fixer.rules.batches import find_worst_batch

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
_DECIDES = {
    **dict.fromkeys("Equal Greater Less GreaterOrEqual LessOrEqual Mod Range".split(), None),
    **dict.fromkeys("ArgMax ArgMin TopK OneHot NonMaxSuppression Unique".split(), frozenset({0})),
    **dict.fromkeys("RoiAlign MaxRoiPool Upsample".split(), frozenset({1})),
    "Resize": frozenset({2}),
    **dict.fromkeys("SequenceConstruct SequenceInsert SplitToSequence Optional".split(), None),
}
"""Operators to which another integer is another answer, and at which slots (None: at any); and those behind which nobody looks."""


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
    for cut in find_cuts(graph, ranges):
        for node in cut.nodes:
            found.setdefault(node.label, {}).setdefault(cut.data, _Use(cut.data, cut.cast))
    return found


def _tells_exactly(graph: Graph, node: Node) -> bool:
    """Whether it is a Cast to integers, or to float64, which has all of them; not to samples, which are right nearly."""
    is_exact = node.standard_op in CASTS and graph.dtypes.get(node.outputs[0]) not in _NOT_EXACT
    return is_exact and not is_sampling(graph, node)


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
        return op in KEEPS_ERROR or moves(node, slot) or (op in _CHOSEN and slot == 0)

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
        return op in UNSEEN

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
