"""What a scan saw of tensors, batch by batch."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from in_memory_calibration import floats, make_model, node, scan

from overflow_fixer.evidence.measured import read_maxima


def test_maxima_by_batch(tmp_path: Path) -> None:
    model = make_model([node("Neg", "a", "y")], {"a": [None]}, "y")
    batches = floats(-3, 2), floats(), floats(math.nan), floats(math.inf)
    _, ranges = scan(model, tmp_path, *({"a": one} for one in batches))
    np.testing.assert_array_equal(read_maxima(ranges, "a"), [3, math.nan, math.nan, math.inf])
    np.testing.assert_array_equal(read_maxima(ranges, "nowhere"), [math.nan] * 4)
