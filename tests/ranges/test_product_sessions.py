"""A product's node run by itself on magnitudes: sums over many channels, right to 1e-5."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import make_model, node, save

from overflow_fixer.graph.model import Graph
from overflow_fixer.inner.products import find_products
from overflow_fixer.ranges.product_sessions import ProductSessions
from overflow_fixer.records import Array, Batch


def _convolve(folder: Path, x: Array, weights: Array, *bias: Array, **attributes: object) -> Array:
    inputs = {"x": x.shape, "w": weights.shape, **({"b": bias[0].shape} if bias else {})}
    nodes = [node("Conv", " ".join(inputs), "y", **attributes)]
    graph: Graph = save(make_model(nodes, {k: list(v) for k, v in inputs.items()}, "y"), folder)
    feeds = {f"input_{slot}": value for slot, value in enumerate((x, weights, *bias))}
    return ProductSessions(graph).run(find_products(graph)[0].node, Batch("b", feeds))


@pytest.mark.parametrize(("channels", "kernel"), [(8192, 1), (64, 15), (8, 31), (1, 40)])
@pytest.mark.parametrize("bias", [(), (-1000.0,)])
def test_a_long_sum_of_equal_terms(
    channels: int, kernel: int, bias: tuple[float, ...], tmp_path: Path
) -> None:
    """In which each step of FP32 rounds the same way."""
    x = np.full((1, channels, kernel, kernel), 254.7, np.float32)
    weights = np.full((1, channels, kernel, kernel), -0.0203, np.float32)
    biases = [np.array(bias, np.float32)] if bias else []
    found = _convolve(tmp_path, x, weights, *biases)
    right = np.abs(x.astype(np.float64) * weights.astype(np.float64)).sum() + abs(sum(bias))
    assert found.item() == pytest.approx(right, rel=1e-5)
    assert found.dtype == np.float32


def test_channels_are_added_up_wherever_the_kernel_stands(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((2, 300, 9, 7)).astype(np.float32)
    weights = generator.standard_normal((4, 300, 3, 3)).astype(np.float32)
    bias = generator.standard_normal(4).astype(np.float32)
    way = {"strides": [2, 1], "pads": [1, 0, 1, 2], "dilations": [1, 2]}
    found = _convolve(tmp_path, x, weights, bias, **way)
    parts = [
        _convolve(tmp_path, x[:, i : i + 20], weights[:, i : i + 20], **way).astype(np.float64)
        for i in range(0, 300, 20)
    ]
    np.testing.assert_allclose(found, sum(parts) + np.abs(bias).reshape(1, 4, 1, 1), rtol=1e-6)


def test_an_empty_batch_and_an_overflow_are_run_too(tmp_path: Path) -> None:
    weights = np.full((1, 300, 1, 1), 3e38, np.float32)
    assert _convolve(tmp_path, np.zeros((0, 300, 2, 2), np.float32), weights).shape == (0, 1, 2, 2)
    assert np.isposinf(_convolve(tmp_path, np.ones((1, 300, 1, 1), np.float32), weights)).all()
    beside = np.full((1, 300, 1, 1), np.nan, np.float32)
    assert np.isnan(_convolve(tmp_path, beside, np.ones((1, 300, 1, 1), np.float32))).all()


@pytest.mark.parametrize(("channels", "kernel"), [(300, 3), (1, 40), (2, 17), (256, 1)])
def test_each_group_has_channels_of_its_own(channels: int, kernel: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    shape = (2, 3 * channels, kernel + 2, kernel)
    x, weights = (
        generator.random(dims).astype(np.float32) for dims in (shape, (6, channels, kernel, kernel))
    )
    found = _convolve(tmp_path, x, -weights, group=3, pads=[0, 1, 0, 1])
    for group in range(3):
        of_group = slice(group * channels, (group + 1) * channels)
        alone = _convolve(tmp_path, x[:, of_group], weights[2 * group : 2 * group + 2], pads=[0, 1, 0, 1])
        np.testing.assert_allclose(found[:, 2 * group : 2 * group + 2], alone, rtol=1e-6)
    wide = (x[0, :channels, :kernel].astype(np.float64) * weights[0]).sum()
    assert found[0, 0, 0, 1] == pytest.approx(wide, rel=1e-6)
