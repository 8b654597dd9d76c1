"""The nodes whose FP16 the outputs cannot bear, found by trying them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from overflow_fixer.records import TensorError, Tolerance
from overflow_fixer.verification.comparison import worst_snr_db

BEARABLE = 0.8
"""Of the error that is allowed: 1 dB is left for batches that were not tried."""
_HALF = 0.5
_NEXT_LOOK = 1.25
_LEAST = 1e-3
_MOST_DB = 3000.0
IsLate = Callable[[], bool]


def excess(errors: Sequence[TensorError], tolerance: Tolerance) -> float:
    """The largest error of an output, or a part of one, as a multiple of what is allowed: of its energy, or of the share that differs.

    inf where values do not match that FP32 has; what is NaN in FP32 too counts for nothing.
    """
    return max((_excess(error, tolerance) for error in errors), default=0.0)


def _excess(error: TensorError, tolerance: Tolerance) -> float:
    if not error.is_float:
        share, allowed = error.mismatched / max(error.element_count, 1), 1 - tolerance.min_agreement
        return share / allowed if allowed > 0 else math.inf if share else 0.0
    if error.mismatched > error.reference_nan:
        return math.inf
    if error.compared == 0 or error.max_abs_error <= tolerance.max_abs_error_of(error):
        return 0.0
    missing_db = tolerance.min_snr_of(error.tensor, error.part) - worst_snr_db(error)
    return math.inf if missing_db > _MOST_DB else 10 ** (missing_db / 10)


@dataclass(order=True)
class _Group:
    """Neighbours, and what they cost each output where they alone are in FP16."""

    gain: float
    """The largest excess, negative, so that the worst comes first."""
    nodes: tuple[str, ...]
    costs: tuple[float, ...] = field(compare=False)


@dataclass
class CulpritSearch:
    """Finds the nodes that are to leave FP16 for the outputs to pass.

    The errors of nodes that are rounded apart from one another add up, as energies, in each output of each batch. So groups are
    measured with all others in FP32, and the worst is halved until the rest together is bearable. Where errors add up to more, as
    behind a network that magnifies them, that is asked as often as what was found grows by a quarter. `cost` tells the excess of
    each output in each batch with nodes in FP16. `nodes` are those in FP16 now, of which those `movable` can leave it; the search
    ends where it `is_late`.
    """

    cost: Callable[[Collection[str]], Sequence[float]]
    nodes: tuple[str, ...]
    movable: Collection[str]
    is_late: IsLate

    def run(self) -> dict[str, float]:
        """The nodes with the excess of each alone; none where the outputs bear all as they are."""
        self._found: dict[str, float] = {}
        self._allowed, self._next_look = BEARABLE, 1
        self._groups = [self._measure(self.nodes)]
        while self._groups and not self._is_bearable() and not self.is_late():
            self._split()
        return self._found

    def _is_bearable(self) -> bool:
        """Whether the outputs pass without what was found. Where errors add up to more, less is allowed."""
        total = max(map(sum, zip(*(group.costs for group in self._groups), strict=True)), default=0.0)
        if total > self._allowed and len(self._found) < self._next_look:
            return False
        self._next_look = max(self._next_look, math.ceil(_NEXT_LOOK * len(self._found)))
        rest = [label for label in self.nodes if label not in self._found]
        if max(self.cost(rest), default=0.0) <= BEARABLE:
            return True
        while total <= self._allowed and self._allowed >= _LEAST:
            self._allowed *= _HALF
        return total <= self._allowed

    def _split(self) -> None:
        """Find out more about the worst group."""
        worst = heapq.heappop(self._groups)
        if len(worst.nodes) <= 1:
            self._found.update({label: -worst.gain for label in worst.nodes if label in self.movable})
            return
        half = len(worst.nodes) // 2
        for nodes in (worst.nodes[:half], worst.nodes[half:]):
            heapq.heappush(self._groups, self._measure(nodes))

    def _measure(self, nodes: tuple[str, ...]) -> _Group:
        costs = tuple(self.cost(nodes))
        return _Group(-max(costs, default=0.0), nodes, costs)
