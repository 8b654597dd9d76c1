"""The networks that nothing was tuned on: what of them can be tried without the libraries they are made with."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.models import MODELS, find_model
from benchmarks.networks import NETWORKS
from benchmarks.page import put_into
from benchmarks.rounds import ROOT

LOOPS = [name for name in NETWORKS if name.startswith("Loop")]
MADE_BY_TORCH = ["8 dense layers of 512", "GRU of 100 steps, unrolled", "LSTM, 3 layers, both ways"]


def test_their_names_are_their_own() -> None:
    assert not NETWORKS.keys() & MODELS.keys()
    assert all(find_model(name) is network for name, network in NETWORKS.items())


@pytest.mark.parametrize("name", NETWORKS)
def test_batches_differ_and_are_drawn_anew_the_same(name: str) -> None:
    draw = NETWORKS[name].draw
    (first,), (again,), (other,) = (draw(np.random.default_rng(seed)).values() for seed in (0, 0, 1))
    assert first.dtype in (np.float32, np.int64)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", [*LOOPS, *MADE_BY_TORCH])
def test_small_ones_are_valid_and_run_to_finite_outputs(name: str) -> None:
    if name in MADE_BY_TORCH and not find_spec("torch"):
        pytest.skip("torch is not installed")
    model = NETWORKS[name].build()
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, NETWORKS[name].draw(np.random.default_rng(0)))
    assert np.isfinite(output).all()
    assert output.std() > 0


def test_the_command_measures_writes_its_table_and_keeps_the_model(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nafter\n")
    done = _run(LOOPS[0], "--rounds", "2", "--batches", "1", "--folder", tmp_path, "--write", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    row = next(line for line in text.splitlines() if line.startswith(f"| {LOOPS[0]} |"))
    assert row.count("|") == 6
    assert "–" in row
    assert "2 rounds of 1 batches" in text
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    (model,) = tmp_path.glob("*/model.onnx")
    stamp = model.stat().st_mtime_ns
    assert _run(LOOPS[0], "--rounds", "1", "--batches", "1", "--folder", tmp_path).returncode == 0
    assert model.stat().st_mtime_ns == stamp


def test_an_unknown_network_is_told_with_those_there_are() -> None:
    done = _run("ResNet-17")
    assert done.returncode == 2
    assert "'ResNet-17' is none of" in done.stderr
    assert "ResNet-18" in done.stderr


def test_a_page_without_markers_is_left_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("text\n")
    with pytest.raises(SystemExit, match="lacks the lines"):
        put_into(page, "table")
    assert page.read_text() == "text\n"


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.networks", *map(str, arguments), "--patience", "0"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
