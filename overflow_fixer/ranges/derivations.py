"""Tensors whose extremes follow exactly from those of another, so that they need no probe.

What nodes do to extremes is told by `monotone`. A Slice or Gather keeps a part only, and tells nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from overflow_fixer.formats import FP16_MAX, FP16_OVERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.ranges.monotone import Step, Values, clip, find_monotone, keep, leaves_fp16, negate
from overflow_fixer.ranges.summaries import Summaries
from overflow_fixer.records import Array

_COUNTED = (keep, negate, clip)
"""The steps of which `tally` can count what comes of them."""


@dataclass(frozen=True)
class Derivation:
    """`tensor` holds what `step` makes of each element of its `sources`, or NaN.

    `step` takes the extremes [2, source], and for each source the `numbers` [k, source], and gives values [2, source]
    among which are the tensor's extremes. A NaN that the sources hide shows in `guard`. `element_count` is None where it
    is the sum of those of the sources.
    """

    tensor: str
    sources: tuple[str, ...]
    step: Step
    numbers: tuple[float, ...] = ()
    guard: str | None = None
    element_count: int | None = None


@dataclass(frozen=True, eq=False)
class Steps:
    """Derivations that one step makes at once: none of these `rows` is a source of another.

    Of `rows[i]`, the sources are those of `sources` from `starts[i]` on, each with its `numbers` [k, source]; `counts` are
    -1 where they are the sum of the sources'.
    """

    step: Step
    rows: npt.NDArray[np.int64]
    sources: npt.NDArray[np.int64]
    numbers: Values
    starts: npt.NDArray[np.int64]
    guards: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @staticmethod
    def of(derivations: Sequence[Derivation], row_of: Mapping[str, int]) -> Steps:
        lengths = [len(one.sources) for one in derivations]
        return Steps(
            derivations[0].step,
            np.array([row_of[one.tensor] for one in derivations]),
            np.array([row_of[name] for one in derivations for name in one.sources]),
            np.repeat(np.array([one.numbers for one in derivations], np.float32).T, lengths, axis=1),
            np.cumsum([0, *lengths[:-1]]),
            np.array([row_of[one.guard or one.sources[0]] for one in derivations]),
            np.array([-1 if one.element_count is None else one.element_count for one in derivations]),
        )

    def join(self, ufunc: np.ufunc, values: Array) -> Array:
        """What is [source], to one for each of the rows."""
        if len(self.rows) == len(self.sources):
            return values
        return np.asarray(ufunc.reduceat(values, self.starts))


def find_derivations(graph: Graph, sources: Mapping[str, str]) -> Iterator[Derivation]:
    """The derivations among the tensors that hold values of their own, in graph order.

    `sources` maps each observed tensor to the one whose values it holds (see sources.find_sources).
    """
    for name, source in sources.items():
        node = graph.producers.get(name)
        if name != source or node is None:
            continue
        for reads, step, numbers in find_monotone(graph, node):
            if all(tensor in sources for tensor in reads):
                yield Derivation(name, tuple(sources[tensor] for tensor in reads), step, numbers)
                break


def leave_out_of_range(graph: Graph, derivations: Iterable[Derivation]) -> Iterator[Derivation]:
    """Those but the ones that would be given up when a run shows values over FP16's range, where these are to be expected.

    Logarithms give -inf of zeros (as those of T5's distances), fills of masks are over the range; what is made of them by
    steps that `tally` cannot count is better probed from the start than the session opened anew. Sources come before what is
    derived of them.
    """
    beyond = {tensor for node in graph.nodes if node.standard_op == "Log" for tensor in node.outputs}
    for one in derivations:
        if leaves_fp16(one.step, one.numbers) or not beyond.isdisjoint(one.sources):
            beyond.add(one.tensor)
            if one.step not in _COUNTED:
                continue
        yield one


def derive_from_rows(tensor: str, rows: tuple[str, str, str], element_count: int) -> Derivation:
    """From tensors that hold, of each row, the largest and the smallest, which hide a NaN, and one that shows it."""
    return Derivation(tensor, rows[:2], keep, guard=rows[2], element_count=element_count)


def order_steps(derivations: Iterable[Derivation], row_of: Mapping[str, int]) -> list[Steps]:
    """The derivations, of which sources come before what is derived of them, in as few steps as they can be made in."""
    depths: dict[str, int] = {}
    found: dict[tuple[int, Step], list[Derivation]] = {}
    for one in derivations:
        depth = depths[one.tensor] = 1 + max(depths.get(name, 0) for name in one.sources)
        found.setdefault((depth, one.step), []).append(one)
    return [Steps.of(found[key], row_of) for key in sorted(found, key=lambda key: key[0])]


def derive(
    steps: Iterable[Steps],
    ends: Values,
    counts: Array,
    is_plain: npt.NDArray[np.bool_],
    has_nan: npt.NDArray[np.bool_],
) -> None:
    """Fill in the extremes and the numbers of elements [tensor] of derived tensors, in place.

    `steps` come in order. `ends` [2, tensor] are the least and the largest value, NaN of an empty tensor. `is_plain`
    [tensor] says that all values are finite and within FP16's range; a derived tensor is plain when its sources are,
    its guard has no NaN, and its own extremes are.
    """
    with np.errstate(all="ignore"):
        for one in steps:
            reached = one.step(ends[:, one.sources], one.numbers)
            least, most = one.join(np.fmin, np.minimum(*reached)), one.join(np.fmax, np.maximum(*reached))
            ends[0, one.rows], ends[1, one.rows] = least, most
            counts[one.rows] = np.where(one.counts < 0, one.join(np.add, counts[one.sources]), one.counts)
            is_told = one.join(np.logical_and, is_plain[one.sources]) & ~has_nan[one.guards]
            is_within = (least > -FP16_OVERFLOW) & (most < FP16_OVERFLOW)
            is_plain[one.rows] = is_told & (is_within | (counts[one.rows] == 0))


def tally(steps: Iterable[Steps], seen: Summaries, high: Array, is_counted: npt.NDArray[np.bool_]) -> None:
    """Fill in what is counted in derived tensors [tensor], in place, where the sources' counts tell it.

    `steps` come in order, and ends are filled in. `high` [tensor] says how many elements are over FP16's range above 0, NaN
    where nobody knows, `is_counted` [tensor] in which all is counted. A tensor joined from others, or with other signs, holds
    what they hold; one that is clipped what lies on the sides that are open.
    """
    for one in steps:
        if one.step not in _COUNTED:
            continue
        can_tell = one.counts < 0  # of rows, a NaN is shown elsewhere
        can_tell &= one.join(np.logical_and, is_counted[one.sources])
        sources = seen[one.sources]
        nan, inf, over = (sources[name] for name in ("nan_count", "inf_count", "over_fp16_count"))
        above = _count_above(sources, over, high[one.sources], FP16_OVERFLOW)
        if one.step is clip:
            infinite = _count_above(sources, inf, np.full(len(inf), np.nan), np.inf)
            inf, _ = _keep_open(np.isinf(one.numbers), infinite, inf - infinite)
            over, above = _keep_open(np.abs(one.numbers) > FP16_MAX, above, over - above)
            can_tell &= (nan == 0) & ~np.isnan(over + inf)
        if one.step is negate:
            above = over - above
        for name, found in (("nan_count", nan), ("inf_count", inf), ("over_fp16_count", over)):
            told = np.where(can_tell, one.join(np.add, found), seen[name][one.rows])
            seen[name][one.rows] = told
        high[one.rows] = one.join(np.add, above)
        is_counted[one.rows] |= can_tell


def _keep_open(is_open: npt.NDArray[np.bool_], above: Array, below: Array) -> tuple[Array, Array]:
    """Of numbers of elements on either side, how many lie on one that `is_open` [2, source], and how many of these above 0."""
    kept_above = np.where(is_open[1], above, 0)
    return kept_above + np.where(is_open[0], below, 0), kept_above


def _count_above(sources: Summaries, counts: Array, known: Array, limit: float) -> Array:
    """How many of those that are `limit` or more in magnitude, of which there are so many, are above 0; NaN where nobody knows."""
    none_above, none_below = ~(sources["max"] >= limit), ~(sources["min"] <= -limit)
    return np.asarray(np.where(none_above, 0, np.where(none_below, counts, known)))
