"""Engines of control flow whose values FP16 cannot hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_fixes import fix_on_batches
from typed_models import write_model

from overflow_fixer import FixReport

pytestmark = pytest.mark.gpu


LOOP = """c = Constant <value = bool {1}> ()
    s = Loop (n, c, x0) <body = b (int64 i, bool on, float[4,8] h) => (bool still, float[4,8] next) <float k = {1.7}>
        { still = Identity(on) m = Mul(h, k) next = Add(m, x0) }>
    a = Abs(s) d = Add(a, one)"""


def _fix(folder: Path, text: str) -> FixReport:
    model = write_model(folder, text, opset=17)
    generator = np.random.default_rng(0)
    return fix_on_batches(model, (generator.standard_normal((4, 8), np.float32) for _ in range(3)))


def test_a_loop_whose_state_passes_the_largest_fp16_is_right(tmp_path: Path) -> None:
    """Pins alone do not reach what carries the state from one iteration to the next."""
    text = f"""g (float[4,8] x) => (float[4,8] y) <int64 n = {{20}}, float one = {{1}}> {{
        {LOOP.replace("x0", "x")} y = Log(d) }}"""
    report = _fix(tmp_path, text)
    assert report.passed


def test_a_loop_beside_another_head_is_right_once_nothing_is_left_for_fp16(tmp_path: Path) -> None:
    weights = ", ".join(f"{value:.3f}" for value in np.random.default_rng(5).normal(0, 0.4, 64))
    text = f"""g (float[4,8] x) => (float[4,8] y, float[4,8] z)
        <int64 n = {{20}}, float one = {{1}}, float[8,8] w = {{{weights}}}> {{
        x0 = MatMul(x, w) {LOOP} l = Log(d) q = MatMul(l, w) r = Relu(q) y = MatMul(r, w)
        f = Relu(x) g = MatMul(f, w) z = MatMul(g, w) }}"""
    report = _fix(tmp_path, text)
    assert report.passed
    assert report.rounds[-1].action == "pinned all of the model"
