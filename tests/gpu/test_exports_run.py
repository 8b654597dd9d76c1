"""The exported scripts run as they are: what other tools build with them passes our verification."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_fixes import SCRIPTED, Fixed, Fixes

from overflow_fixer.backends.tensorrt.builder import Precision, build
from overflow_fixer.backends.tensorrt.emission import open_tensorrt
from overflow_fixer.backends.tensorrt.network import parse_model
from overflow_fixer.backends.tensorrt.runner import EngineRunner
from overflow_fixer.progress import silent

pytestmark = pytest.mark.gpu
needs_polygraphy = pytest.mark.skipif(
    importlib.util.find_spec("polygraphy") is None, reason="Polygraphy is not installed here."
)
_RUN_POLYGRAPHY = "import sys; from polygraphy.tools import main; sys.exit(main())"
_FP16 = ("--convert-to", "trt", "--fp16", "--precision-constraints", "obey")


@pytest.fixture
def fixed(fixes: Fixes) -> Fixed:
    found = fixes(SCRIPTED)
    if found.engine.typing != "weak":
        pytest.skip("Layers are pinned by these scripts with weak typing alone.")
    assert found.report.naive is not None
    assert not found.report.naive.passed
    return found


def _find(fixed: Fixed, kind: str) -> Path:
    path = fixed.config.folder / f"model_{kind}.py"
    assert path.is_file(), sorted(found.name for found in fixed.config.folder.iterdir())
    return path


def _convert(engine: Path, *arguments: str) -> None:
    command = [sys.executable, "-c", _RUN_POLYGRAPHY, "convert", *arguments, *_FP16, "-o", str(engine)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=engine.parent)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def _passes(fixed: Fixed, engine: Path) -> bool:
    return fixed.verify(fixed.open(replace(fixed.report.artifact, path=engine))).passed


def test_trtexec_is_told_the_layers(fixes: Fixes) -> None:
    fixed = fixes("big_conv_chain")
    if fixed.engine.typing != "weak":
        pytest.skip("trtexec is told layers with weak typing alone.")
    text = (fixed.config.folder / "model.trtexec.txt").read_text(encoding="utf-8")
    options = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    for option in ("--layerPrecisions", "--layerOutputTypes"):
        assert {f"{layer}:fp32" for layer in ("conv5", "relu5", "conv6")} <= set(options[option].split(","))


def test_the_postprocessing_script_pins_a_network_that_was_parsed_plainly(fixed: Fixed) -> None:
    trt, found, typing = open_tensorrt(fixed.settings)
    model = fixed.config.model
    parsed = parse_model(trt, found, model, model, str(model), typing, "")
    runpy.run_path(str(_find(fixed, "npps")))["postprocess"](network=parsed.network)
    precision = Precision(fp16=True, constraints="obey")
    built = build(trt, found, parsed.network, precision, fixed.settings, silent)
    assert fixed.verify(EngineRunner(trt, built.plan)).passed


@needs_polygraphy
def test_polygraphy_builds_with_the_postprocessing_script(fixed: Fixed, tmp_path: Path) -> None:
    engine = tmp_path / "npps.engine"
    _convert(engine, str(fixed.config.model), "--trt-npps", f"{_find(fixed, 'npps')}:postprocess")
    assert _passes(fixed, engine)


@needs_polygraphy
def test_polygraphy_builds_from_the_loader_script(fixed: Fixed, tmp_path: Path) -> None:
    engine = tmp_path / "loader.engine"
    _convert(engine, str(_find(fixed, "loader")), "--model-type", "trt-network-script")
    assert _passes(fixed, engine)


@needs_polygraphy
def test_polygraphy_without_our_scripts_is_wrong(fixed: Fixed, tmp_path: Path) -> None:
    """So the two above pass because of the pins, not because of how Polygraphy builds."""
    engine = tmp_path / "plain.engine"
    _convert(engine, str(fixed.config.model))
    assert not _passes(fixed, engine)
