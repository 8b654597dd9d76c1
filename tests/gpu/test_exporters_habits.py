"""What exporters write and TensorRT refuses or takes for something else, of models that others ship."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, scalar

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


def test_axes_of_a_squeeze_may_be_left_out_where_the_data_have_one_shape(tmp_path: Path) -> None:
    weights = np.random.default_rng(1).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [node("Conv", "x w", "h"), node("GlobalAveragePool", "h", "p"), node("Squeeze", "p", "y")]
    model = make_model(nodes, {"x": ["batch", 3, 16, 16]}, "y", {"w": weights})
    _fix(tmp_path, model, (2, 3, 16, 16), (2, 3, 16, 16))


def test_a_part_of_a_shape_may_be_asked_for(tmp_path: Path) -> None:
    """As PyTorch's newer exporter does for each open dimension."""
    table = np.random.default_rng(1).standard_normal((1, 64, 8)).astype(np.float32)
    nodes = [
        node("Shape", "x", "length", start=1, end=2),
        node("Slice", "table zero length one", "t"),
        node("Add", "x t", "y"),
    ]
    constants = {"table": table, "zero": ints(0), "one": ints(1)}
    model = make_model(nodes, {"x": ["batch", "length", 8]}, "y", constants, opset=18)
    _fix(tmp_path, model, (2, 5, 8), (3, 9, 8), (2, 7, 8))


def test_a_grid_sample_may_have_a_mode_of_opset_20(tmp_path: Path) -> None:
    grid = np.random.default_rng(1).uniform(-1, 1, (2, 5, 5, 2)).astype(np.float32)
    nodes = [node("GridSample", "x grid", "y", mode="linear")]
    model = make_model(nodes, {"x": [2, 3, 16, 16]}, "y", {"grid": grid}, opset=20)
    _fix(tmp_path, model, (2, 3, 16, 16), (2, 3, 16, 16))
