"""What exporters write and TensorRT refuses, of models that others ship: dimensions named "?", bounds of infinity."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import make_model, node, scalar

from overflow_fixer import fix
from overflow_fixer.config import BuildOptions, FixConfig

pytestmark = pytest.mark.gpu


def _fix(folder: Path, model: onnx.ModelProto, *shapes: tuple[int, ...]) -> None:
    (folder / "calib").mkdir()
    generator = np.random.default_rng(0)
    for number, shape in enumerate(shapes):
        np.savez(folder / f"calib/{number}.npz", x=generator.random(shape, np.float32))
    onnx.save(model, folder / "model.onnx")
    report = fix(
        FixConfig(
            model=folder / "model.onnx",
            calib=folder / "calib",
            out=folder / "out",
            build=BuildOptions(backend="tensorrt"),
        )
    )
    assert report.passed


def test_dimensions_of_one_name_may_differ(tmp_path: Path) -> None:
    """By their ranges, and in a batch alone."""
    weights = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [node("Conv", "x w", "h", pads=[1, 1, 1, 1]), node("Relu", "h", "y")]
    model = make_model(nodes, {"x": ["?", 3, "?", "?"]}, "y", {"w": weights})
    _fix(tmp_path, model, (1, 3, 16, 24), (1, 3, 24, 16), (2, 3, 16, 16))


def test_a_bound_may_be_infinite(tmp_path: Path) -> None:
    nodes = [node("Clip", "x low none", "h"), node("Log", "h", "y")]
    model = make_model(nodes, {"x": [1, 4]}, "y", {"low": scalar(0.5), "none": scalar(np.inf)})
    _fix(tmp_path, model, (1, 4), (1, 4))
