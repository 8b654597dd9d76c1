"""What comes of two masks, and of a mask on scores."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from overflow_fixer.evidence.masks.mask_ends import BOTH_ENDS, NO_END, find_ends
from overflow_fixer.evidence.masks.masked_scores import (
    Mask,
    Scores,
    Use,
    add_masks,
    choose_mask,
    computed_with,
    lay_mask,
)

ONE, OTHER = Mask(("a", "b"), 1.0, ends=BOTH_ENDS), Mask(("b", "c"), 2.0, stacked=3, exact=False)
CAUSAL = np.triu(np.ones((3, 3), bool), 1)
"""The first element of every row is left, and the last one only of the last."""


def test_a_sum_of_masks_is_exact_no_more_and_leaves_what_both_leave() -> None:
    assert add_masks(ONE, OTHER) == Mask(("a", "b", "c"), 3.0, 4, False, NO_END)
    assert add_masks(ONE, ONE) == Mask(("a", "b"), 2.0, 2, False, BOTH_ENDS)


def test_either_of_two_masks_is_at_most_the_larger() -> None:
    assert choose_mask(ONE, OTHER) == Mask(("a", "b", "c"), 2.0, 3, False, NO_END)
    assert choose_mask(ONE, replace(ONE, bound=0.5)) == ONE
    assert choose_mask(OTHER, OTHER, BOTH_ENDS).ends == BOTH_ENDS


def test_a_mask_on_scores_leaves_the_ends_that_its_pattern_or_itself_does() -> None:
    assert lay_mask(OTHER, True, None).ends == NO_END
    assert lay_mask(OTHER, True, None, BOTH_ENDS).ends == BOTH_ENDS
    assert lay_mask(OTHER, False, CAUSAL).ends == find_ends(CAUSAL) != NO_END
    assert lay_mask(ONE, False, np.ones((3, 3), bool)).ends == BOTH_ENDS


@pytest.mark.parametrize("uses", [(), (Use(("a",), True, None), Use(("a", "b"), False, CAUSAL))])
def test_what_is_computed_with_is_replaced_no_more(uses: tuple[Use, ...]) -> None:
    found = computed_with(uses)
    assert [(use.origins, use.replaces) for use in found] == [(use.origins, False) for use in uses]
    assert all(use.pattern is other.pattern for use, other in zip(found, uses, strict=True))


def test_origins_of_scores_are_told_once_in_their_order() -> None:
    assert Scores(1.0).origins == ()
    uses = (Use(("b", "a"), True, None), Use(("a", "c"), False, None))
    assert Scores(1.0, uses).origins == ("b", "a", "c")
