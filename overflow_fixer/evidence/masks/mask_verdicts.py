"""Masks of -3.4e38, -inf, -65504, -10000 and the like, which FP16 computes as FP32 does.

A mask is a constant c that is below zero by the threshold (a floor of 1000 at least) or more. What is less than
-25000 is clamped to that, where it provably changes nothing; what is not is left as it is. The proof is about what
Softmax reads: plain elements (scores and biases, of which the sum of the measured max |x| is B, at most 10000) and
masked ones (the constant in place of a score, or added to it, at most twice). With c at most -25000 or as it was:
1. B is so small that c + 2 B <= -746. In a row with a plain element the maximum m >= -B is plain, before and after.
   A masked element is at most c + B, so exp(masked - m) <= exp(-746), which is 0 in FP16, FP32 and float64, as it
   was before. All sums and quotients of the row are the same.
2. A clamped element is at least -2 * 25000 - 10000 > -65504: finite in FP16. One that is left as it is may be -inf there,
   which 1. is true of as well.
3. A row that is masked as a whole is left. Where masks replace scores and all hold the same finite c, the
   row is constant, and Softmax uniform, before and after. Else the row was uniform (c swallows the score), NaN
   (c = -inf) or the softmax of its scores, and FP16, of which a step at c may be 8 or 16, gives another; so there
   the masks must be made of constants and leave an element of every row unmasked, or leave the first or the last of
   every row whatever the sizes and the data are (see mask_ends).
   Where FP16 holds every c, only data can bring a tensor over the threshold, and so it is enough there that the
   same data have no such row: no row's maximum was less than -B.
   Where every c is -inf and constants do not show that a row keeps an element, they are left as they are: FP16 holds
   -inf, which swallows a score there too, and such a row is NaN before and after. A backend that makes -65504 of
   it hides as well what 1. says.
Nothing else may read the mask, or what carries it, since clamping shows everywhere but behind Softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from overflow_fixer.evidence.constants.carriers import find_huge_constants
from overflow_fixer.evidence.constants.huge_values import NEGATIVE
from overflow_fixer.evidence.constants.traces import Origin
from overflow_fixer.evidence.masks.mask_rows import GROUNDS, Ground, can_clamp, judge_rows
from overflow_fixer.evidence.masks.mask_walk import MaskWalk, NotProvedError
from overflow_fixer.evidence.masks.masked_scores import Scores, Use
from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import Clamp, PlanPolicy, Range, RangeTable

MASK_MAGNITUDE = 25000.0
_LEAST_FLOOR = 1000.0
"""A user's threshold may be lower; what is not far below zero is a score or a bias."""
_VANISHED = 746.0
"""exp(-746) is 0 in float64, whose least number is 2^-1074 = exp(-744.4)."""


MAGNITUDE_RULES = frozenset({"threshold", "non_finite", "constant_range"})
"""Rules whose findings about a tensor a clamp answers, and a mask of -inf that is left as it is."""
LEFT_RULES = frozenset({"threshold"})
"""Those that another mask answers that is left as it is."""


@dataclass(frozen=True)
class MaskVerdict:
    """Whether FP16 computes a mask as FP32 does, clamped or as it is, and why or why not.

    Of a mask that FP16 holds and that is not clamped, `held` are the tensors that hold it, or scores under it, and
    `answered` the rules whose findings about them the verdict is on.
    """

    origin: Origin
    clamp: Clamp | None
    reason: str
    is_left: bool = False
    held: tuple[str, ...] = ()
    answered: frozenset[str] = LEFT_RULES


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
    walk.follow({origin.tensor: origin.value for origin in found})
    grounds = _check_every_softmax(walk, policy)
    _leave_partners(walk, grounds)
    _refuse_outputs(walk)
    _refuse_partners(walk)
    uses: dict[str, list[Use]] = {}
    for use in (use for _, scores in walk.groups for use in scores.uses):
        for name in use.origins:
            uses.setdefault(name, []).append(use)
    for origin in found:
        if origin.tensor in uses or not _fits(origin):
            ground = grounds.get(origin.tensor, "asked" if policy.masks == "clamp" else "constants")
            yield _verdict(walk, origin, uses.get(origin.tensor, []), ground)


def _find_masks(graph: Graph, ranges: RangeTable, floor: float) -> Iterator[Origin]:
    """Negative constants that FP16 cannot hold, then those that it can, from -`floor` down, then inputs of 0 and such a number."""
    out_of_range = list(find_huge_constants(graph, ranges))
    yield from (o for o in out_of_range if o.signs == NEGATIVE and graph.is_float(o.tensor))
    known = {origin.tensor for origin in out_of_range}
    fills = [node.outputs[0] for node in graph.nodes if node.standard_op == "ConstantOfShape"]
    for name in (*graph.constants, *fills):
        seen = ranges.get(name)
        if name not in known and seen is not None and seen.min <= -floor:
            yield Origin(name, seen.min, NEGATIVE)
    floats = (spec.name for spec in graph.inputs if graph.dtypes.get(spec.name) == TensorProto.FLOAT)
    for seen in map(ranges.get, floats):
        if seen is not None and _is_switched(seen, floor):
            yield Origin(seen.tensor, seen.min, NEGATIVE)


def _is_switched(seen: Range, floor: float) -> bool:
    """Whether it holds nothing but zeros and one number of -`floor` or less."""
    return not seen.nan_count and seen.max <= 0 and floor <= -seen.min == seen.min_nonzero_abs


def _fits(origin: Origin) -> bool:
    """Whether FP16 holds the constant."""
    return origin.value > -FP16_OVERFLOW


def _check_every_softmax(walk: MaskWalk, policy: PlanPolicy) -> dict[str, Ground]:
    """Refuse what is not proved at a Softmax. Returns what shows of each other mask that rows stay as they are."""
    grounds: dict[str, Ground] = {}
    for node, scores in walk.groups:
        with walk.refusing(scores.origins):
            _check_bound(walk, scores)
            ground = judge_rows(walk, node, scores, policy)
            _check_threshold(walk, scores, ground, policy.threshold)
            for name in scores.origins:
                grounds[name] = max(grounds.get(name, ground), ground, key=GROUNDS.index)
    return grounds


def _check_bound(walk: MaskWalk, scores: Scores) -> None:
    """Raise unless what is masked is 0 behind Softmax, before and after (1. of the proof)."""
    least = min(-max(walk.amounts_in(scores)), MASK_MAGNITUDE)
    if least - 2 * scores.bound < _VANISHED:
        raise NotProvedError(
            f"the scores may reach {scores.bound:.6g}, so near to a mask of -{least:g} that it may not vanish in Softmax"
        )


def _check_threshold(walk: MaskWalk, scores: Scores, ground: Ground, threshold: float) -> None:
    """Raise where masks are left as they are and the scores are over the threshold, which their verdict would hide."""
    is_left = ground == "infinity" or -max(walk.amounts_in(scores)) < FP16_OVERFLOW
    if is_left and scores.bound > threshold:
        raise NotProvedError(f"the scores may reach {scores.bound:.6g}, over the threshold by themselves")


def _leave_partners(walk: MaskWalk, grounds: dict[str, Ground]) -> None:
    """A mask of -inf that is left at one Softmax is left at all, and so are those that it meets, or neither is proved."""
    groups = [set(scores.origins) for _, scores in walk.groups]
    left = {name for name, ground in grounds.items() if ground == "infinity"}
    before = -1
    while before != len(left):
        before = len(left)
        for there in (group for group in groups if not left.isdisjoint(group)):
            if all(walk.amounts(name) == {-np.inf} for name in there):
                left |= there
                continue
            walk.refuse(there, "it meets a mask of -inf that is left as it is, and one that is clamped")
    grounds.update(dict.fromkeys(left, "infinity"))


def _refuse_outputs(walk: MaskWalk) -> None:
    for origin, tensors in walk.tensors_with.items():
        for output in sorted(tensors.intersection(walk.graph.outputs)):
            walk.refuse((origin,), f"it reaches the output {output}")


def _refuse_partners(walk: MaskWalk) -> None:
    """Refuse masks that share a Softmax with a refused one, until none is left: 3. needs all of them."""
    groups = [(node, set(scores.origins)) for node, scores in walk.groups]
    before = -1
    while before != len(walk.refused):
        before = len(walk.refused)
        for node, origins_there in groups:
            for culprit in sorted(origins_there & walk.refused.keys())[:1]:
                walk.refuse(origins_there, f"{culprit} meets it at {node.label} and is not clamped")


def _verdict(walk: MaskWalk, origin: Origin, uses: list[Use], ground: Ground) -> MaskVerdict:
    is_infinite = ground == "infinity"
    is_constant = can_clamp(walk.graph, origin.tensor)
    is_clamped = origin.value < -MASK_MAGNITUDE and not is_infinite and is_constant
    tensors = walk.tensors_with.get(origin.tensor, set())
    refusal = walk.refused.get(origin.tensor) or (None if uses else "it reaches no Softmax")
    held = tuple(sorted(tensors)) if _fits(origin) or (is_infinite and refusal is None) else ()
    if refusal is not None:
        verb = "clamped" if origin.value < -MASK_MAGNITUDE and is_constant else "proved"
        return MaskVerdict(origin, None, f"not {verb} as a mask: {refusal}", held=held)
    why = _say_why(origin, uses, ground)
    if not is_clamped:
        is_fed = not is_constant and origin.tensor not in walk.graph.producers
        told = f"{origin.value:g}{', which is all that was fed there but 0,' if is_fed else ''}"
        reason = f"the mask {origin.tensor} of {told} is left as it is: {why}"
        return MaskVerdict(origin, None, reason, True, held, MAGNITUDE_RULES if is_infinite else LEFT_RULES)
    reason = f"clamped to -{MASK_MAGNITUDE:g}: {why}"
    covers = tuple(sorted(tensors - {origin.tensor}))
    return MaskVerdict(origin, Clamp(origin.tensor, MASK_MAGNITUDE, reason, covers), reason)


def _say_why(origin: Origin, uses: list[Use], ground: Ground) -> str:
    """Why the mask is as good in FP16, by what shows it of its rows."""
    if ground == "asked":
        return "you asked for it (masks = clamp) and vouch for its rows"
    if ground == "data":
        return "Softmax gives 0 either way, and the calibration data mask no row as a whole"
    if ground == "infinity":
        return (
            "FP16 holds -inf too, so Softmax gives 0 there, and NaN on a row masked as a whole, as FP32 does"
        )
    if np.isinf(origin.value) or not all(use.replaces for use in uses):
        return "Softmax gives 0 either way, and no row is masked as a whole"
    return "it replaces scores; Softmax gives 0 either way, and the same on a row masked as a whole"
