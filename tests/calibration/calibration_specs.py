"""What the tests of calibration share: input specs, and walks over batches."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from overflow_fixer.calibration import CalibrationOptions, open_calibration
from overflow_fixer.errors import CalibrationError
from overflow_fixer.records import Batch, Dim, InputSpec


def spec(name: str, *dims: Dim, dtype: Any = np.float32) -> InputSpec:
    return InputSpec(name, onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), dims)


def floats(*shape: int) -> np.ndarray:
    """Distinct values, so that a mixed-up sample shows."""
    return np.arange(0.5, math.prod(shape), dtype=np.float32).reshape(shape)


def walk(path: Path | str, *inputs: InputSpec, **options: Any) -> list[Batch]:
    return list(open_calibration(path, inputs, CalibrationOptions(**options)))


def refusal(path: Path | str, *inputs: InputSpec, **options: Any) -> str:
    """The text of the CalibrationError that opening or walking ends with: always one paragraph."""
    with pytest.raises(CalibrationError) as caught:
        walk(path, *inputs, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert "Expected" in text
    return text
