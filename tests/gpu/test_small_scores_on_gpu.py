"""Engines of networks whose scores are small in all data, as of a word that nobody says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_fixes import fix_on_batches
from typed_models import write_model

pytestmark = pytest.mark.gpu


def test_scores_below_the_steps_of_tensorrts_sigmoid_are_right_and_not_all_is_pinned(
    tmp_path: Path,
) -> None:
    """Its own, pinned where FP16 is allowed, gives 0 for 4e-8."""
    weights = ", ".join(f"{value:.3f}" for value in np.random.default_rng(5).normal(0, 0.3, 256))
    text = f"""g (float[8,16] x) => (float[8,16] y) <float[16,16] w = {{{weights}}}, float far = {{-15}}> {{
        h = MatMul(x, w) r = Relu(h) s = MatMul(r, w) a = Add(s, far) y = Sigmoid(a) }}"""
    model = write_model(tmp_path, text, opset=17)
    generator = np.random.default_rng(0)
    report = fix_on_batches(model, (generator.standard_normal((8, 16), np.float32) for _ in range(3)))
    assert report.passed
    assert report.artifact.fp16_nodes
