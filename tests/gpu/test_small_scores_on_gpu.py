"""Engines of networks whose scores are small in all data, as of a word that nobody says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typed_models import write_model

from overflow_fixer import fix
from overflow_fixer.config import BuildOptions, FixConfig

pytestmark = pytest.mark.gpu


def test_scores_below_the_steps_of_tensorrts_sigmoid_are_right_and_not_all_is_pinned(
    tmp_path: Path,
) -> None:
    """Its own, pinned where FP16 is allowed, gives 0 for 4e-8."""
    weights = ", ".join(f"{value:.3f}" for value in np.random.default_rng(5).normal(0, 0.3, 256))
    text = f"""g (float[8,16] x) => (float[8,16] y) <float[16,16] w = {{{weights}}}, float far = {{-15}}> {{
        h = MatMul(x, w) r = Relu(h) s = MatMul(r, w) a = Add(s, far) y = Sigmoid(a) }}"""
    model = write_model(tmp_path, text, opset=17)
    (tmp_path / "calib").mkdir()
    generator = np.random.default_rng(0)
    for number in range(3):
        batch = generator.standard_normal((8, 16), np.float32)
        np.savez(tmp_path / f"calib/{number}.npz", x=batch)
    build = BuildOptions(backend="tensorrt")
    report = fix(FixConfig(model=model, calib=tmp_path / "calib", out=tmp_path / "out", build=build))
    assert report.passed
    assert report.artifact.fp16_nodes
