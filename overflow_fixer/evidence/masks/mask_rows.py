"""Rows that masks may hide as a whole: what shows that there are none, or that their softmax is as it was. See 3. of the proof in mask_verdicts."""

from __future__ import annotations

from functools import reduce
from typing import Literal, get_args

import numpy as np

from overflow_fixer.evidence.masks.mask_ends import BOTH_ENDS, End
from overflow_fixer.evidence.masks.mask_walk import MaskWalk, NotProvedError
from overflow_fixer.evidence.masks.masked_scores import Scores, Use
from overflow_fixer.evidence.measured import find_inner
from overflow_fixer.formats import FP16_OVERFLOW
from overflow_fixer.graph.constant_shapes import read_fill
from overflow_fixer.graph.model import Graph
from overflow_fixer.graph.nodes import Node
from overflow_fixer.records import Array, PlanPolicy

Ground = Literal["constants", "asked", "data", "infinity"]
"""What shows that rows under a mask stay as they are; of two that hold for one mask, the later counts."""
GROUNDS: tuple[Ground, ...] = get_args(Ground)


def judge_rows(walk: MaskWalk, softmax: Node, scores: Scores, policy: PlanPolicy) -> Ground:
    """What shows that a row that is masked as a whole keeps its softmax, or that there is none (3. of the proof).

    Raises NotProvedError where nothing does.
    """
    amounts = walk.amounts_in(scores)
    is_infinite = amounts == {-np.inf}
    made = [name for name in scores.origins if name not in walk.graph.constants]
    fed = [name for name in made if not can_clamp(walk.graph, name)]
    if fed and not is_infinite and min(amounts) <= -FP16_OVERFLOW:
        raise NotProvedError(f"{fed[0]} is no constant that could be clamped")
    if policy.masks == "clamp" and not (made if is_infinite else fed):
        return "asked"
    if all(use.replaces for use in scores.uses) and len(amounts) == 1 and not is_infinite:
        return "constants"
    pattern = _union(scores.uses)
    masks_row = pattern is not None and _masks_whole_row(pattern, _row_axis(walk, softmax, scores))
    if is_infinite and (made or pattern is None or masks_row):
        return "infinity"
    if _leaves_an_end(walk, softmax, scores):
        return "constants"
    if masks_row:
        raise NotProvedError("it masks a row as a whole, whose softmax would change")
    if pattern is not None:
        return "constants"
    if min(amounts) <= -FP16_OVERFLOW:
        raise NotProvedError(_doubt(scores.uses))
    _check_measured_rows(walk, softmax, scores)
    return "data"


def can_clamp(graph: Graph, tensor: str) -> bool:
    return tensor in graph.constants or read_fill(graph, tensor) is not None


def _leaves_an_end(walk: MaskWalk, softmax: Node, scores: Scores) -> bool:
    """Whether all masks leave the same end of every row that Softmax is of, or that is in one."""
    ends = reduce(frozenset[End].__and__, (use.ends for use in scores.uses), BOTH_ENDS)
    return bool(ends) and _axis_from_end(walk.graph, softmax) == 1


def _check_measured_rows(walk: MaskWalk, softmax: Node, scores: Scores) -> None:
    """Raise unless the largest element of every row was measured, and was plain."""
    rows = find_inner(walk.ranges, softmax, "row maximum")
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


def _row_axis(walk: MaskWalk, softmax: Node, scores: Scores) -> int | None:
    """The axis, counted from the end, along which the patterns have whole rows; None where it is not known."""
    axis = _axis_from_end(walk.graph, softmax)
    return axis if axis == 1 or all(use.is_aligned for use in scores.uses) else None


def _axis_from_end(graph: Graph, softmax: Node) -> int | None:
    """Softmax's axis as 1 for the last one, 2 for the one before; None where the rank is not known.

    Below opset 13 Softmax runs over all axes from `axis` on, so a row holds whole rows of the last one.
    """
    axis = int(softmax.value_of("axis", -1)) if graph.opset >= 13 else -1
    if axis < 0:
        return -axis
    dims = graph.sure_shapes.get(softmax.inputs[0])
    return None if dims is None else len(dims) - axis


def _masks_whole_row(pattern: Array, axis_from_end: int | None) -> bool:
    """Whether a row along the axis may have no element left, the pattern's other axes broadcast."""
    if axis_from_end is None or pattern.ndim < axis_from_end or pattern.shape[-axis_from_end] < 2:
        return bool(pattern.any())
    return bool(pattern.all(axis=-axis_from_end).any())


def _doubt(uses: tuple[Use, ...]) -> str:
    """Why a row that is masked as a whole, if there can be one, would change."""
    unknown = "proved to leave an element of every row; the softmax of one masked as a whole would change"
    if all(use.replaces for use in uses):
        return f"masks of different values meet, and are not {unknown}"
    what = "it, or a mask that it meets," if len(uses) > 1 else "it"
    return f"{what} is added to the scores, and is not {unknown}"
