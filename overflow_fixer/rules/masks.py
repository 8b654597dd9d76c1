"""Masks of -3.4e38, -inf and the like, clamped to what FP16 holds where that provably changes nothing.

The proof is about what Softmax reads: plain elements (scores and biases, of which the sum of the measured
max |x| is at most 10000) and masked ones (the constant c <= -65520 in place of a score, or added to it, at
most twice). With c clamped to -25000:
1. In a row with a plain element the maximum m >= -10000 is plain, before and after. A masked element is at
   most -25000 + 10000, so exp(masked - m) <= exp(-5000), which is 0 in FP16, FP32 and float64, as it was
   before. All sums and quotients of the row are the same.
2. A masked element is at least -2 * 25000 - 10000 > -65504: finite in FP16.
3. A row that is masked as a whole is left. Where masks replace scores and all hold the same finite c, the
   row is constant, and Softmax uniform, before and after. Else the row was uniform (c swallows the score) or
   NaN (c = -inf) and would become the softmax of its scores; so there the masks must be made of constants
   and leave an element of every row unmasked.
Nothing else may read the mask, or what carries it, since clamping shows everywhere but behind Softmax.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce

import numpy as np

from overflow_fixer.graph import Graph
from overflow_fixer.nodes import Node
from overflow_fixer.records import Array, Clamp, PlanPolicy, RangeTable
from overflow_fixer.rules.constant_range import Origin, origins
from overflow_fixer.rules.mask_walk import MaskWalk, NotProvedError, Use, is_masked
from overflow_fixer.rules.semantics import NEGATIVE

MASK_MAGNITUDE = 25000.0


@dataclass(frozen=True)
class MaskVerdict:
    """Whether a negative constant out of range is a mask that can be clamped, and why or why not."""

    origin: Origin
    clamp: Clamp | None
    reason: str


def judge_masks(graph: Graph, ranges: RangeTable, policy: PlanPolicy) -> Iterator[MaskVerdict]:
    """A verdict on every constant out of range that holds negative floats; none where masks = "pin"."""
    if policy.masks == "pin":
        return
    found = [o for o in origins(graph, ranges) if o.signs == NEGATIVE and graph.is_float(o.tensor)]
    walk = MaskWalk(graph, ranges)
    walk.follow(origin.tensor for origin in found)
    if policy.masks == "auto":
        _check_every_softmax(walk)
    _refuse_outputs(walk)
    _refuse_partners(walk)
    uses: dict[str, list[Use]] = {}
    for use in (use for _, together in walk.groups for use in together):
        for name in use.origins:
            uses.setdefault(name, []).append(use)
    for origin in found:
        yield _verdict(walk, origin, uses.get(origin.tensor, []), policy)


def _check_every_softmax(walk: MaskWalk) -> None:
    for node, uses in walk.groups:
        with walk.refusing({name for use in uses for name in use.origins}):
            _check_rows(walk.graph, node, uses)


def _check_rows(graph: Graph, softmax: Node, uses: tuple[Use, ...]) -> None:
    """Raise unless a row that is masked as a whole keeps its softmax, or there is none (3. of the proof)."""
    constants = {name for use in uses for name in use.origins}
    amounts = {amount for name in constants for amount in _amounts(graph, name)}
    if all(use.replaces for use in uses) and len(amounts) == 1 and np.isfinite(list(amounts)).all():
        return
    pattern = _union(uses)
    if pattern is None:
        raise NotProvedError(_doubt(uses, amounts))
    axis = _axis_from_end(graph, softmax)
    if not all(use.is_aligned for use in uses) and axis != 1:
        axis = None
    if _masks_whole_row(pattern, axis):
        raise NotProvedError("it masks a row as a whole, whose softmax would change")


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


def _amounts(graph: Graph, constant: str) -> set[float]:
    """The different values by which a constant masks."""
    value = graph.read_constant(constant)
    return set() if value is None else set(np.unique(value[is_masked(value)]).tolist())


def _refuse_outputs(walk: MaskWalk) -> None:
    for origin, tensors in walk.tensors_with.items():
        for output in sorted(tensors.intersection(walk.graph.outputs)):
            with walk.refusing((origin,)):
                raise NotProvedError(f"it reaches the output {output}")


def _refuse_partners(walk: MaskWalk) -> None:
    """Refuse masks that share a Softmax with a refused one, until none is left: 3. needs all of them."""
    groups = [(node, {name for use in uses for name in use.origins}) for node, uses in walk.groups]
    before = -1
    while before != len(walk.refused):
        before = len(walk.refused)
        for node, origins_there in groups:
            for culprit in sorted(origins_there & walk.refused.keys())[:1]:
                with walk.refusing(origins_there):
                    raise NotProvedError(f"{culprit} meets it at {node.label} and is not clamped")


def _verdict(walk: MaskWalk, origin: Origin, uses: list[Use], policy: PlanPolicy) -> MaskVerdict:
    refusal = walk.refused.get(origin.tensor) or (None if uses else "it reaches no Softmax")
    if refusal is not None:
        return MaskVerdict(origin, None, f"not clamped as a mask: {refusal}")
    if policy.masks == "clamp":
        why = "you asked for it (masks = clamp) and vouch for its rows"
    elif np.isinf(origin.value) or not all(use.replaces for use in uses):
        why = "Softmax gives 0 either way, and no row is masked as a whole"
    else:
        why = "it replaces scores; Softmax gives 0 either way, and the same on a row masked as a whole"
    reason = f"clamped to -{MASK_MAGNITUDE:g}: {why}"
    covers = tuple(sorted(walk.tensors_with[origin.tensor] - {origin.tensor}))
    return MaskVerdict(origin, Clamp(origin.tensor, MASK_MAGNITUDE, reason, covers), reason)
