"""Every float tensor inside an artifact held against FP32 on one batch, and the first that goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from overflow_fixer.errors import RunError
from overflow_fixer.evidence.constants.repeated import find_repeated
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.repeatability import is_repeatable_node
from overflow_fixer.metrics.error_meter import ErrorMeter
from overflow_fixer.metrics.fills import without_fills
from overflow_fixer.records import (
    Batch,
    RangeTable,
    Runner,
    TensorError,
    Tolerance,
    TracedIn,
    Verification,
)
from overflow_fixer.repair.chunks import Chunks
from overflow_fixer.verification.comparison import find_worst_batch, judge, open_reference

OpenRunner = Callable[[Sequence[str]], Runner]
"""Opens a runner whose outputs include the tensors named, as far as the candidate has them."""


def trace(
    verification: Verification,
    graph: Graph,
    ranges: RangeTable,
    batches: Iterable[Batch],
    open_candidate: OpenRunner,
    tolerance: Tolerance,
    ignore: frozenset[str] = frozenset(),
    traced_in: TracedIn = "candidate",
) -> Verification:
    """Compare every computed float tensor on the worst batch and name the first, in order, that is wrong.

    Tensors go out in chunks of about 256 MiB, so that memory stays bounded. Constants are not
    compared: what FP16 makes of them shows in what reads them; of what only repeats one, nothing but infinities is told, unless it
    is an output. Nor are tensors compared that the candidate does
    not have (an engine folds some away). `ignore` are tensors that differ by design (a clamped mask);
    `traced_in` says what `open_candidate` opens. Where a node of the candidate cannot be run, what it
    writes and all that depends on it is wrong.
    """
    names = [
        name
        for node in graph.nodes
        for name in (node.writes if is_repeatable_node(graph, node) else ())
        if graph.is_float(name) and name not in graph.constants and name not in ignore
    ]
    inside = _Inside(graph, open_candidate, find_worst_batch(verification, batches), tolerance.fills)
    chunks = Chunks(ranges)
    errors: list[TensorError] = []
    for chunk in chunks.cut(names):
        found, size_bytes = inside.compare(chunk)
        chunks.note(chunk, size_bytes)
        errors += (error for error in found if _counts(graph, error))
    wrong = next((error for error in errors if not judge(error, tolerance).passed), None)
    return replace(verification, first_wrong=wrong, trace=tuple(errors), traced_in=traced_in)


def _counts(graph: Graph, error: TensorError) -> bool:
    """Whether it is more than digits of what only repeats a constant, which may be a bias that matters to nobody."""
    is_fixed = error.tensor in find_repeated(graph) and error.tensor not in graph.outputs
    return not is_fixed or error.lost_count > 0


@dataclass
class _Inside:
    """A candidate's inner tensors on one batch. `failures` are those that it cannot compute, with the reason."""

    graph: Graph
    open_candidate: OpenRunner
    batch: Batch
    fills: Mapping[str, Sequence[float]]
    failures: dict[str, str] = field(default_factory=dict)

    def compare(self, tensors: Sequence[str]) -> tuple[list[TensorError], int]:
        """The errors of the tensors, in order, and the bytes that they took."""
        found: Mapping[str, Any] = self._run(tensors)
        right = open_reference(self.graph, tensors).run(self.batch)
        expected, found = without_fills(self.fills, right, found)
        meters = [ErrorMeter(name) for name in tensors if name in found or name in self.failures]
        for meter in meters:
            if meter.tensor in self.failures:
                meter.add_failure(expected[meter.tensor], self.batch.name, self.failures[meter.tensor])
            else:
                meter.add(expected[meter.tensor], found[meter.tensor], self.batch.name)
        sides = (value for side in (expected, found) for value in side.values())
        size_bytes = sum(value.nbytes for value in sides if isinstance(value, np.ndarray))
        return [meter.result() for meter in meters], size_bytes

    def _run(self, tensors: Sequence[str]) -> dict[str, Any]:
        """The values of those that can be computed; where that fails, by halves, until one is left to blame."""
        left = [name for name in tensors if name not in self.failures]
        if not left:
            return {}
        try:
            return self.open_candidate(left).run(self.batch)
        except RunError as error:
            if len(left) == 1:
                self._blame(left[0], error.reason)
                return {}
        half = len(left) // 2
        return {**self._run(left[:half]), **self._run(left[half:])}

    def _blame(self, tensor: str, reason: str) -> None:
        """This tensor fails, and with it what depends on it."""
        failed = {tensor}
        for node in self.graph.nodes:
            if not failed.isdisjoint(node.reads):
                failed.update(node.writes)
        self.failures.update(dict.fromkeys(failed - self.failures.keys(), reason))
