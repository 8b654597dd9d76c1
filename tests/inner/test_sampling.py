"""How rough what a GridSample samples is, against an independent computation in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import make_model, node, scan

from overflow_fixer.records import InnerRange

GENERATOR = np.random.default_rng(0)


def _draw(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def _measure(
    folder: Path, *images: np.ndarray, opset: int = 20, rank: int | None = 4, **attributes: Any
) -> list[InnerRange]:
    nodes = [node("GridSample", "x g", "y", **attributes)]
    inputs = {"x": None if rank is None else [None] * rank, "g": None}
    grids = [np.zeros((len(image), *[2] * (image.ndim - 2), image.ndim - 2), np.float32) for image in images]
    feeds = ({"x": image, "g": grid} for image, grid in zip(images, grids, strict=True))
    _, ranges = scan(make_model(nodes, inputs, "y", opset=opset), folder, *feeds)
    return list(ranges.inner)


def _find_roughness(image: np.ndarray) -> float:
    squared = 0.0
    for axis in range(2, image.ndim):
        other = 3 if axis == 2 else axis - 1
        rows = image.astype(np.float64).take(range(0, image.shape[other], 16), other)
        if image.shape[axis] > 1 and rows.any():
            change = np.square(np.diff(rows, axis=axis)).mean() / np.square(rows).mean()
            squared += (image.shape[axis] / 2) ** 2 * change
    return math.sqrt(squared)


IMAGES = {
    "an image": _draw(1, 3, 40, 70),
    "a large one": _draw(2, 4, 130, 300),
    "far from zero": 100 + _draw(1, 3, 40, 70),
    "one column": _draw(1, 3, 40, 1),
    "one row": _draw(2, 3, 1, 17),
    "one element": _draw(1, 1, 1, 1),
    "zeros": np.zeros((1, 2, 20, 20), np.float32),
    "a volume": _draw(1, 2, 9, 20, 33),
}


@pytest.mark.parametrize("native", ["0", "1"])
@pytest.mark.parametrize("image", IMAGES)
def test_roughness(image: str, native: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERFLOW_FIXER_NATIVE", native)
    x = IMAGES[image]
    (found,) = _measure(tmp_path, x, 2 * x, rank=x.ndim)
    assert (found.node, found.quantity, found.is_bound) == ("GridSample_y", "roughness", False)
    assert found.batch_max_abs.tolist() == pytest.approx([_find_roughness(x)] * 2, rel=1e-5)


@pytest.mark.parametrize(
    ("opset", "mode"), [(16, "bilinear"), (16, "bicubic"), (20, "linear"), (22, "cubic")]
)
def test_of_each_opset_and_mode(opset: int, mode: str, tmp_path: Path) -> None:
    (found,) = _measure(tmp_path, IMAGES["an image"], opset=opset, mode=mode)
    assert found.seen.max_abs == pytest.approx(_find_roughness(IMAGES["an image"]), rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_none(value: float, tmp_path: Path) -> None:
    image = IMAGES["an image"].copy()
    image[0, 0, 0, 0] = value
    (found,) = _measure(tmp_path, image)
    assert not math.isfinite(found.seen.max_abs) or found.seen.nan_count


def test_not_measured(tmp_path: Path) -> None:
    """Of the nearest element, and where not even the number of axes is known."""
    assert _measure(tmp_path, IMAGES["an image"], mode="nearest") == []
    assert _measure(tmp_path, IMAGES["an image"], rank=None) == []
