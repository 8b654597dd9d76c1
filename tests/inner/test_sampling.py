"""What a GridSample loses by places that are rounded, against an independent computation in float64."""

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


def _draw_grid(image: np.ndarray, most: float = 1.2) -> np.ndarray:
    """Places for it, some of them outside."""
    axes = image.ndim - 2
    return GENERATOR.uniform(-most, most, (len(image), *[5] * axes, axes)).astype(np.float32)


def _measure(
    folder: Path,
    *batches: tuple[np.ndarray, np.ndarray],
    opset: int = 20,
    rank: int | None = 4,
    **attributes: Any,
) -> list[InnerRange]:
    nodes = [node("GridSample", "x g", "y", **attributes)]
    inputs = {"x": None if rank is None else [None] * rank, "g": None}
    feeds = ({"x": image, "g": grid} for image, grid in batches)
    _, ranges = scan(make_model(nodes, inputs, "y", opset=opset), folder, *feeds)
    return list(ranges.inner)


def _find_loss(image: np.ndarray, grid: np.ndarray) -> float:
    exact = grid.astype(np.float64)
    errors = np.where(np.abs(exact) < 1, exact - grid.astype(np.float16).astype(np.float64), 0)
    squared = 0.0
    for axis in range(2, image.ndim):
        other = 3 if axis == 2 else axis - 1
        rows = image.astype(np.float64).take(range(0, image.shape[other], 16), other)
        if image.shape[axis] > 1 and rows.any():
            change = np.square(np.diff(rows, axis=axis)).mean() / np.square(rows).mean()
            coordinate = np.square(errors[..., image.ndim - 1 - axis]).mean()
            squared += (image.shape[axis] / 2) ** 2 * change * coordinate
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
def test_the_loss(image: str, native: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERFLOW_FIXER_NATIVE", native)
    x = IMAGES[image]
    batches = [(x, _draw_grid(x)), (2 * x, _draw_grid(x, 0.3))]
    (found,) = _measure(tmp_path, *batches, rank=x.ndim)
    assert (found.node, found.quantity, found.is_bound) == ("GridSample_y", "sampling loss", False)
    assert found.batch_max_abs.tolist() == pytest.approx([_find_loss(*batch) for batch in batches], rel=1e-5)


@pytest.mark.parametrize(
    ("opset", "mode"), [(16, "bilinear"), (16, "bicubic"), (20, "linear"), (22, "cubic")]
)
def test_of_each_opset_and_mode(opset: int, mode: str, tmp_path: Path) -> None:
    batch = IMAGES["an image"], _draw_grid(IMAGES["an image"])
    (found,) = _measure(tmp_path, batch, opset=opset, mode=mode)
    assert found.seen.max_abs == pytest.approx(_find_loss(*batch), rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_has_none(value: float, tmp_path: Path) -> None:
    image = IMAGES["an image"].copy()
    image[0, 0, 0, 0] = value
    (found,) = _measure(tmp_path, (image, _draw_grid(image)))
    assert not math.isfinite(found.seen.max_abs) or found.seen.nan_count


def test_places_that_fp16_has_lose_nothing(tmp_path: Path) -> None:
    image = IMAGES["an image"]
    for grid in (np.round(_draw_grid(image)), np.full((1, 2, 2, 2), 3.3, np.float32)):
        (found,) = _measure(tmp_path, (image, grid))
        assert found.seen.max_abs == 0


def test_up_to_opset_19_it_is_an_image_whatever_is_known_of_its_axes(tmp_path: Path) -> None:
    batch = IMAGES["an image"], _draw_grid(IMAGES["an image"])
    (found,) = _measure(tmp_path, batch, opset=19, rank=None)
    assert found.seen.max_abs == pytest.approx(_find_loss(*batch), rel=1e-5)


def test_not_measured(tmp_path: Path) -> None:
    """Of the nearest element, and where not even the number of axes is known."""
    batch = IMAGES["an image"], _draw_grid(IMAGES["an image"])
    assert _measure(tmp_path, batch, mode="nearest") == []
    assert _measure(tmp_path, batch, rank=None) == []
