"""What a tool's model is judged as, and how outcomes are counted."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

from benchmarks.outcomes.judge import INVALID, NONFINITE, RIGHT, UNJUDGED, WRONG, Outcome, judge
from benchmarks.outcomes.tables import network_table, summary_table
from benchmarks.rounds import ROOT

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
SINGLE = "agraph (float[N] x) => (float[N] y) { c = Constant<value = float {300.0}>() d = Mul(x, c) y = Div(d, c) }"
HALVES = """agraph (float[N] x) => (float[N] y) {
  k = Constant<value = float {300.0}>() c = Cast<to = 10>(k) h = Cast<to = 10>(x) d = Mul(h, c) e = Div(d, c) y = Cast<to = 1>(e) }"""
MIXED = """agraph (float[N] x) => (float[N] y) {
  c = Constant<value = float {300.0}>() d = Mul(x, c) e = Div(d, c) h = Cast<to = 10>(e) i = Neg(h) j = Neg(i)
  y = Cast<to = 1>(j) }"""
OTHER = "agraph (float[N] x) => (float[N] y) { h = Cast<to = 10>(x) i = Add(h, h) y = Cast<to = 1>(i) }"
IN_A_BODY = """agraph (float[N] x) => (float[N] y) {
  c = Constant<value = bool {1}>() h = Cast<to = 10>(x)
  z = If(c) <then_branch = a () => (float16[N] p) { p = Neg(h) }, else_branch = b () => (float16[N] q) { q = Abs(h) }>
  y = Cast<to = 1>(z) }"""
TWO_TYPES = "agraph (float[N] x) => (float[N] y) { h = Cast<to = 10>(x) i = Add(h, x) y = Cast<to = 1>(i) }"


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A folder as the command takes it: values up to 1000, which FP16 holds and 300 times them it does not."""
    _write(SINGLE, tmp_path / "model.onnx")
    for part, seed in (("calib", 0), ("fresh", 1)):
        (tmp_path / part).mkdir()
        values = np.random.default_rng(seed).uniform(-1000, 1000, 50).astype(np.float32)
        np.savez(tmp_path / part / "b0.npz", x=values)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "verdict", "fp32_share"),
    [
        (SINGLE, RIGHT, 1.0),
        (MIXED, RIGHT, 0.5),
        (HALVES, NONFINITE, 0.0),
        (OTHER, WRONG, 0.0),
        (IN_A_BODY, UNJUDGED, math.nan),
        (TWO_TYPES, INVALID, math.nan),
    ],
)
def test_each_verdict(network: Path, text: str, verdict: str, fp32_share: float) -> None:
    found = judge(network / "model.onnx", _write(text, network / "typed.onnx"), network / "fresh")
    assert found.verdict == verdict
    assert found.fp32_share == pytest.approx(fp32_share, nan_ok=True)
    assert (found.snr_db >= 30) == (verdict == RIGHT)
    assert bool(found.remark) == (verdict != RIGHT)


def test_of_outputs_that_fail_the_decibels_are_told(network: Path) -> None:
    both = "agraph (float[N] x) => (float[N] y, int64[N] i) { y = Neg(x) z = Round(x) i = Cast<to = 7>(z) }"
    wrong = """agraph (float[N] x) => (float[N] y, int64[N] i) {
      h = Cast<to = 10>(x) z = Neg(h) y = Cast<to = 1>(z) i = Cast<to = 7>(y) }"""
    _write(both, network / "model.onnx")
    found = judge(network / "model.onnx", _write(wrong, network / "typed.onnx"), network / "fresh")
    assert found.verdict == WRONG
    assert math.isnan(found.snr_db)
    assert "**wrong**: integers, 0%" in network_table({"both": {"one": found}})


def test_the_command_converts_and_judges_on_the_unseen_batches(network: Path, tmp_path: Path) -> None:
    done = _run(network, "--tools", "overflow_fixer", "--json", tmp_path / "found.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())[network.name]["overflow_fixer"]
    assert found["verdict"] == RIGHT
    assert 0 < found["fp32_share"] <= 1
    assert f"| {network.name} | {found['snr_db']:.1f}, {found['fp32_share']:.0%} |" in done.stdout


def test_what_is_kept_is_not_measured_again(network: Path, tmp_path: Path) -> None:
    kept = tmp_path / "found.json"
    kept.write_text(json.dumps({network.name: {"overflow_fixer": asdict(Outcome(WRONG, 12.25, 0.5))}}))
    assert "**wrong**: 12.2, 50%" in _run(network, "--tools", "overflow_fixer", "--json", kept).stdout
    assert "no model" in _run(network, "--tools", "ModelOpt AutoCast", "--json", kept).stdout
    assert list(json.loads(kept.read_text())[network.name]) == ["overflow_fixer", "ModelOpt AutoCast"]


@pytest.mark.skipif(find_spec("modelopt") is not None, reason="AutoCast is installed")
def test_a_tool_that_is_not_there_makes_no_model_and_says_why(network: Path) -> None:
    done = _run(network, "--tools", "ModelOpt AutoCast")
    assert f"| {network.name} | no model |" in done.stdout
    assert "No module named 'modelopt'" in done.stderr


def test_what_cannot_be_used_is_told_before_anything_runs(network: Path) -> None:
    assert "'Autocast' is none of overflow_fixer; ModelOpt" in _run(network, "--tools", "Autocast").stderr
    shutil.rmtree(network / "fresh")
    done = _run(network)
    assert done.returncode == 2
    assert f"{network} has no fresh" in done.stderr


def test_the_tables_count_and_show_each_verdict() -> None:
    by_network = {
        "a": {"one": Outcome(RIGHT, 41.26, 0.25), "two": Outcome(WRONG, 12.04, 0.5)},
        "b": {"one": Outcome(RIGHT, math.inf, 0.75), "two": Outcome(NONFINITE, math.nan, 0.0)},
        "c": {"one": Outcome(INVALID), "two": Outcome(WRONG, -3.0, 0.1)},
    }
    assert summary_table(by_network).splitlines()[2:] == [
        "| one | 2 |  |  | 1 |  |  | 50% |",
        "| two |  | 2 | 1 |  |  |  |  |",
    ]
    assert network_table(by_network).splitlines()[2:] == [
        "| a | 41.3, 25% | **wrong**: 12.0, 50% |",
        "| b | inf, 75% | NaN or Inf |",
        "| c | not a valid model | **wrong**: -3.0, 10% |",
    ]


def _write(text: str, path: Path) -> Path:
    onnx.save(parser.parse_model(HEAD + text), path)
    return path


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.outcomes", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
