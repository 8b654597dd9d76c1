"""Masks of -3.4e38, -inf, -65504, -10000 and the like, which FP16 computes as FP32 does.

A mask is a constant c that is below zero by the threshold (a floor of 1000 at least) or more. What is less than
-25000 is clamped to that, where it provably changes nothing; what is not is left as it is. The proof is about what
Softmax reads: plain elements (scores and biases, of which the sum of the measured max |x| is B, at most 10000) and
masked ones (the constant in place of a score, or added to it, at most twice). With c at most -25000 or as it was:
1. B is so small that c + 2 B <= -746. In a row with a plain element the maximum m >= -B is plain, before and after.
   A masked element is at most c + B, so exp(masked - m) <= exp(-746), which is 0 in FP16, FP32 and float64, as it
   was before. All sums and quotients of the row are the same.
2. A masked element is at least -2 * 25000 - 10000 > -65504: finite in FP16.
3. A row that is masked as a whole is left. Where masks replace scores and all hold the same finite c, the
   row is constant, and Softmax uniform, before and after. Else the row was uniform (c swallows the score), NaN
   (c = -inf) or the softmax of its scores, and FP16, of which a step at c may be 8 or 16, gives another; so there
   the masks must be made of constants and leave an element of every row unmasked.
   Where FP16 holds every c, only data can bring a tensor over the threshold, and so it is enough there that the
   same data have no such row: no row's maximum was less than -B.
Nothing else may read the mask, or what carries it, since clamping shows everywhere but behind Softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np

from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.graph import Graph
from overflow_fixer.nodes import Node
from overflow_fixer.records import Array, Clamp, PlanPolicy, RangeTable
from overflow_fixer.rules.constant_range import Origin, origins
from overflow_fixer.rules.mask_walk import MaskWalk, NotProvedError, Scores, Use
from overflow_fixer.rules.semantics import NEGATIVE

MASK_MAGNITUDE = 25000.0
_LEAST_FLOOR = 1000.0
"""A user's threshold may be lower; what is not far below zero is a score or a bias."""
_VANISHED = 746.0
"""exp(-746) is 0 in float64, whose least number is 2^-1074 = exp(-744.4)."""


@dataclass(frozen=True)
class MaskVerdict:
    """Whether FP16 computes a mask as FP32 does, clamped or as it is, and why or why not.

    Of a mask that FP16 holds and that is not clamped, `held` are the tensors that hold it, or scores under it.
    """

    origin: Origin
    clamp: Clamp | None
    reason: str
    is_left: bool = False
    held: tuple[str, ...] = ()


def judge_masks(graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[MaskVerdict]:
    """A verdict on every constant out of range that holds negative floats, and no positive ones out of range.

    And on every other constant with an element under minus the threshold that reaches a Softmax as a mask. None where
    masks = "pin".
    """
    if policy.masks == "pin":
        return
    floor = min(max(policy.threshold, _LEAST_FLOOR), FP16_OVERFLOW)
    found = list(_find_masks(graph, ranges, floor))
    walk = MaskWalk(graph, ranges, floor)
    walk.follow(origin.tensor for origin in found)
    by_data = _check_every_softmax(walk, policy)
    _refuse_outputs(walk)
    _refuse_partners(walk)
    uses: dict[str, list[Use]] = {}
    for use in (use for _, scores in walk.groups for use in scores.uses):
        for name in use.origins:
            uses.setdefault(name, []).append(use)
    for origin in found:
        if origin.tensor in uses or not _fits(origin):
            rows = policy.masks if origin.tensor not in by_data else "data"
            yield _verdict(walk, origin, uses.get(origin.tensor, []), rows)


def _find_masks(graph: Graph, ranges: RangeTable, floor: float) -> Iterator[Origin]:
    """Negative constants that FP16 cannot hold, then those that it can, from -`floor` down."""
    out_of_range = list(origins(graph, ranges))
    yield from (o for o in out_of_range if o.signs == NEGATIVE and graph.is_float(o.tensor))
    known = {origin.tensor for origin in out_of_range}
    for name in graph.constants:
        seen = ranges.get(name)
        if name not in known and seen is not None and seen.min <= -floor:
            yield Origin(name, seen.min, NEGATIVE)


def _fits(origin: Origin) -> bool:
    """Whether FP16 holds the constant."""
    return origin.value > -FP16_OVERFLOW


def _check_every_softmax(walk: MaskWalk, policy: PlanPolicy) -> set[str]:
    """Refuse what is not proved at a Softmax. Returns the masks of which the data alone show that they leave every row an element."""
    by_data: set[str] = set()
    for node, scores in walk.groups:
        with walk.refusing(scores.origins):
            _check_bound(walk, scores, policy.threshold)
            if policy.masks == "auto" and not _keeps_rows(walk, node, scores.uses):
                _check_measured_rows(walk, node, scores)
                by_data.update(scores.origins)
    return by_data


def _check_bound(walk: MaskWalk, scores: Scores, threshold: float) -> None:
    """Raise unless what is masked is 0 behind Softmax, before and after (1. of the proof)."""
    amounts = [amount for name in scores.origins for amount in _amounts(walk, name)]
    least = min(-max(amounts), MASK_MAGNITUDE)
    if least - 2 * scores.bound < _VANISHED:
        raise NotProvedError(
            f"the scores may reach {scores.bound:.6g}, so near to a mask of -{least:g} that it may not vanish in Softmax"
        )
    if scores.bound > threshold and -max(amounts) < FP16_OVERFLOW:
        raise NotProvedError(f"the scores may reach {scores.bound:.6g}, over the threshold by themselves")


def _keeps_rows(walk: MaskWalk, softmax: Node, uses: tuple[Use, ...]) -> bool:
    """Whether a row that is masked as a whole keeps its softmax, or there is none (3. of the proof); False where the data decide.

    Raises NotProvedError where constants mask one, or where the data decide and FP16 cannot hold a mask.
    """
    constants = {name for use in uses for name in use.origins}
    amounts = {amount for name in constants for amount in _amounts(walk, name)}
    if all(use.replaces for use in uses) and len(amounts) == 1 and np.isfinite(list(amounts)).all():
        return True
    pattern = _union(uses)
    if pattern is None:
        if min(amounts) <= -FP16_OVERFLOW:
            raise NotProvedError(_doubt(uses, amounts))
        return False
    axis = _axis_from_end(walk.graph, softmax)
    if not all(use.is_aligned for use in uses) and axis != 1:
        axis = None
    if _masks_whole_row(pattern, axis):
        raise NotProvedError("it masks a row as a whole, whose softmax would change")
    return True


def _check_measured_rows(walk: MaskWalk, softmax: Node, scores: Scores) -> None:
    """Raise unless the largest element of every row was measured, and was plain."""
    rows = walk.ranges.inner_of.get(softmax.label, {}).get("row maximum")
    if rows is None or not rows.seen.min >= -scores.bound:
        raise NotProvedError("the calibration data mask a row as a whole, whose softmax would change")


def _union(uses: tuple[Use, ...]) -> Array | None:
    """Where any of the masks hides the score; None where the data decide, or shapes do not fit."""
    patterns = [_placed(use, len(uses) == 1) for use in uses if use.pattern is not None]
    try:
        return np.asarray(reduce(np.logical_or, patterns)) if len(patterns) == len(uses) else None
    except ValueError:
        return None


def _placed(use: Use, is_alone: bool) -> Array:
    """The use's pattern; where its rows may lie under other rows of another mask, what any of them masks."""
    assert use.pattern is not None
    if use.is_aligned or is_alone:
        return use.pattern
    return np.asarray(use.pattern.any(axis=tuple(range(use.pattern.ndim - 1))))


def _axis_from_end(graph: Graph, softmax: Node) -> int | None:
    """Softmax's axis as 1 for the last one, 2 for the one before; None where the rank is not known.

    Below opset 13 Softmax runs over all axes from `axis` on, so a row holds whole rows of the last one.
    """
    attribute = softmax.attribute("axis")
    if graph.opset < 13 or attribute is None:
        return 1
    dims = graph.sure_shapes.get(softmax.inputs[0])
    if attribute.i < 0:
        return -int(attribute.i)
    return None if dims is None else len(dims) - int(attribute.i)


def _masks_whole_row(pattern: Array, axis_from_end: int | None) -> bool:
    """Whether a row along the axis may have no element left, the pattern's other axes broadcast."""
    if axis_from_end is None or pattern.ndim < axis_from_end or pattern.shape[-axis_from_end] < 2:
        return bool(pattern.any())
    return bool(pattern.all(axis=-axis_from_end).any())


def _doubt(uses: tuple[Use, ...], amounts: set[float]) -> str:
    """Why a row that is masked as a whole, which the data may bring, would change."""
    if any(not use.replaces for use in uses):
        return "it is added to the scores, and the data may mask a row as a whole, whose softmax would change"
    if any(np.isinf(amount) for amount in amounts):
        return "the data may mask a row as a whole: -inf makes it NaN in FP32, a finite mask would not"
    return (
        "masks of different values meet, and the data may mask a row as a whole, whose softmax would change"
    )


def _amounts(walk: MaskWalk, constant: str) -> set[float]:
    """The different values by which a constant masks."""
    value = walk.graph.read_constant(constant)
    return set() if value is None else set(np.unique(value[walk.is_masked(value)]).tolist())


def _refuse_outputs(walk: MaskWalk) -> None:
    for origin, tensors in walk.tensors_with.items():
        for output in sorted(tensors.intersection(walk.graph.outputs)):
            with walk.refusing((origin,)):
                raise NotProvedError(f"it reaches the output {output}")


def _refuse_partners(walk: MaskWalk) -> None:
    """Refuse masks that share a Softmax with a refused one, until none is left: 3. needs all of them."""
    groups = [(node, set(scores.origins)) for node, scores in walk.groups]
    before = -1
    while before != len(walk.refused):
        before = len(walk.refused)
        for node, origins_there in groups:
            for culprit in sorted(origins_there & walk.refused.keys())[:1]:
                with walk.refusing(origins_there):
                    raise NotProvedError(f"{culprit} meets it at {node.label} and is not clamped")


def _verdict(walk: MaskWalk, origin: Origin, uses: list[Use], rows: str) -> MaskVerdict:
    is_clamped = origin.value < -MASK_MAGNITUDE
    tensors = walk.tensors_with.get(origin.tensor, set())
    held = tuple(sorted(tensors)) if _fits(origin) else ()
    refusal = walk.refused.get(origin.tensor) or (None if uses else "it reaches no Softmax")
    if refusal is not None:
        verb = "clamped" if is_clamped else "proved"
        return MaskVerdict(origin, None, f"not {verb} as a mask: {refusal}", held=held)
    why = _say_why(origin, uses, rows)
    if not is_clamped:
        reason = f"the mask {origin.tensor} of {origin.value:g} is left as it is: {why}"
        return MaskVerdict(origin, None, reason, True, held)
    reason = f"clamped to -{MASK_MAGNITUDE:g}: {why}"
    covers = tuple(sorted(tensors - {origin.tensor}))
    return MaskVerdict(origin, Clamp(origin.tensor, MASK_MAGNITUDE, reason, covers), reason)


def _say_why(origin: Origin, uses: list[Use], rows: str) -> str:
    """`rows`: "clamp" where the user vouches for them, "data" where the calibration data do."""
    if rows == "clamp":
        return "you asked for it (masks = clamp) and vouch for its rows"
    if rows == "data":
        return "Softmax gives 0 either way, and the calibration data mask no row as a whole"
    if np.isinf(origin.value) or not all(use.replaces for use in uses):
        return "Softmax gives 0 either way, and no row is masked as a whole"
    return "it replaces scores; Softmax gives 0 either way, and the same on a row masked as a whole"
