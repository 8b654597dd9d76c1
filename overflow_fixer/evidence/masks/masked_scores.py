"""Masks, and scores under them: what is known of such tensors, and what comes of two masks, or of one on scores."""

from __future__ import annotations

from dataclasses import dataclass, replace

from overflow_fixer.evidence.masks.mask_ends import NO_END, Ends, find_ends
from overflow_fixer.records import Array


@dataclass(frozen=True)
class Mask:
    """A tensor whose elements are masked, or at most `bound` in magnitude.

    A masked element is one of the constants `origins`, or the sum of up to `stacked` of them, and of what is at most
    `bound`. `exact`: it is a constant as it stands, not computed with. `ends` are those that it leaves unmasked in every row.
    """

    origins: tuple[str, ...]
    bound: float
    stacked: int = 1
    exact: bool = True
    ends: Ends = NO_END


@dataclass(frozen=True, eq=False)
class Use:
    """A mask laid on scores. `replaces`: it stands in place of them, nothing added to it.

    `pattern` is True where it masks, its last axes being those of the scores; None where the data say.
    Not `is_aligned`: behind a Reshape, its rows are those of the scores, but not in their places. `ends` are those that it
    leaves unmasked in every row of the last axis, whatever the data say.
    """

    origins: tuple[str, ...]
    replaces: bool
    pattern: Array | None
    is_aligned: bool = True
    ends: Ends = NO_END


@dataclass(frozen=True)
class Scores:
    """A tensor of scores under masks: what no mask hides is at most `bound` in magnitude."""

    bound: float
    uses: tuple[Use, ...] = ()
    stacked: int = 0

    @property
    def origins(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for use in self.uses for name in use.origins))


def lay_mask(mask: Mask, replaces: bool, pattern: Array | None, left: Ends = NO_END) -> Use:
    """The mask on scores, of which it may have `left` ends of every row."""
    ends = mask.ends if pattern is None else mask.ends | find_ends(pattern)
    return Use(mask.origins, replaces, pattern, ends=ends | left)


def choose_mask(one: Mask, other: Mask, left: Ends = NO_END) -> Mask:
    """Either; of those that leave it `left`, what is known not to mask is chosen there."""
    origins = tuple(dict.fromkeys((*one.origins, *other.origins)))
    bound, stacked = max(one.bound, other.bound), max(one.stacked, other.stacked)
    return Mask(origins, bound, stacked, one.exact and other.exact, one.ends & other.ends | left)


def add_masks(one: Mask, other: Mask) -> Mask:
    origins = tuple(dict.fromkeys((*one.origins, *other.origins)))
    bound, stacked = one.bound + other.bound, one.stacked + other.stacked
    return Mask(origins, bound, stacked, False, one.ends & other.ends)


def computed_with(uses: tuple[Use, ...]) -> tuple[Use, ...]:
    return tuple(replace(use, replaces=False) for use in uses)
