"""Engines whose pinned products need more than the 10 bits of TF32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from gpu_fixes import fix_on_batches
from in_memory_calibration import make_model, node

pytestmark = pytest.mark.gpu


def test_a_phase_behind_a_product_is_right_whatever_kernel_it_gets(tmp_path: Path) -> None:
    """Of 2000 to 4000, rounded to 10 bits, a cosine keeps 16 dB; which kernel is the fastest is found by timing."""
    weights = {"w": np.eye(256, dtype=np.float32) * np.float32(249.3), "b": np.full(256, 3000, np.float32)}
    nodes = [node("Gemm", "x w b", "phase"), node("Cos", "phase", "y")]
    model = tmp_path / "model.onnx"
    onnx.save(make_model(nodes, {"x": [256, 256]}, "y", weights), model)
    generator = np.random.default_rng(0)
    batches = (generator.uniform(-4, 4, (256, 256)).astype(np.float32) for _ in range(3))
    report = fix_on_batches(model, batches)
    assert report.passed
    assert report.artifact.engine is not None
    assert report.artifact.engine.tf32_layers == 0
