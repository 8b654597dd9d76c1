"""Rules allow what verification does."""

import math

import pytest

from overflow_fixer.records import Tolerance
from overflow_fixer.rules.tolerated import MOST_NOISE


def test_it_is_what_verification_tolerates() -> None:
    assert -20 * math.log10(MOST_NOISE) == pytest.approx(Tolerance().min_snr_db)
