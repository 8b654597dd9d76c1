"""Engines of control flow whose values FP16 cannot hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typed_models import write_model

from overflow_fixer import fix
from overflow_fixer.config import BuildOptions, FixConfig

pytestmark = pytest.mark.gpu


def test_a_loop_whose_state_passes_the_largest_fp16_is_right(tmp_path: Path) -> None:
    """Pins alone do not reach what carries the state from one iteration to the next."""
    text = """g (float[4,8] x) => (float[4,8] y) <int64 n = {20}, float one = {1}> {
    c = Constant <value = bool {1}> ()
    s = Loop (n, c, x) <body = b (int64 i, bool on, float[4,8] h) => (bool still, float[4,8] next) <float k = {1.7}>
        { still = Identity(on) m = Mul(h, k) next = Add(m, x) }>
    a = Abs(s) d = Add(a, one) y = Log(d) }"""
    model = write_model(tmp_path, text, opset=17)
    (tmp_path / "calib").mkdir()
    generator = np.random.default_rng(0)
    for number in range(3):
        batch = generator.standard_normal((4, 8), np.float32)
        np.savez(tmp_path / f"calib/{number}.npz", x=batch)
    report = fix(
        FixConfig(
            model=model,
            calib=tmp_path / "calib",
            out=tmp_path / "out",
            build=BuildOptions(backend="tensorrt"),
        )
    )
    assert report.passed
