"""Products of queries and keys before they are scaled, against numpy in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from in_memory_calibration import InMemoryCalibration, make_model, node, save

from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Array

RUNS_ATTENTION = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 23)
pytestmark = pytest.mark.skipif(not RUNS_ATTENTION, reason="ONNX Runtime runs Attention from 1.23 on")


def _flatten(heads: Array) -> Array:
    """[batch, heads, tokens, size] to [batch, tokens, heads * size]."""
    return heads.transpose(0, 2, 1, 3).reshape(heads.shape[0], heads.shape[2], -1)


@pytest.mark.parametrize("way", ["reductions", "outputs"])
@pytest.mark.parametrize(
    ("heads", "key_heads", "is_flat", "past"),
    [(4, 4, False, 0), (4, 2, False, 0), (4, 2, True, 0), (4, 1, True, 3), (4, 2, False, 3)],
)
def test_scores_before_the_scale(
    tmp_path: Path, way: str, heads: int, key_heads: int, is_flat: bool, past: int
) -> None:
    rng = np.random.default_rng(0)
    sizes = {
        "q": (heads, 5),
        "k": (key_heads, 6),
        "v": (key_heads, 6),
        "pk": (key_heads, past),
        "pv": (key_heads, past),
    }
    drawn = {n: rng.normal(0, 30, (2, *size, 8)).astype(np.float32) for n, size in sizes.items() if size[1]}
    feeds = {n: _flatten(x) if is_flat and len(n) == 1 else x for n, x in drawn.items()}
    attributes = {"q_num_heads": heads, "kv_num_heads": key_heads} if is_flat else {}
    at = node("Attention", "q k v - pk pv" if past else "q k v", "y pko pvo" if past else "y", **attributes)
    model = make_model([at], {name: [None] * x.ndim for name, x in feeds.items()}, "y", {}, 23)
    model.ir_version = 10
    graph = save(model, tmp_path)
    ranges = collect_ranges(graph, InMemoryCalibration((feeds,)), observe=way)  # type: ignore[arg-type]
    keys = np.concatenate([drawn["pk"], drawn["k"]], axis=2) if past else drawn["k"]
    everywhere = np.repeat(keys, heads // key_heads, axis=1).transpose(0, 1, 3, 2).astype(np.float64)
    expected = drawn["q"].astype(np.float64) @ everywhere
    (found,) = [inner for inner in ranges.inner if inner.quantity == "scores"]
    np.testing.assert_allclose(
        [found.seen.max_abs, found.seen.min, found.seen.max],
        [np.abs(expected).max(), expected.min(), expected.max()],
        rtol=1e-5,
    )
    assert not found.is_bound
