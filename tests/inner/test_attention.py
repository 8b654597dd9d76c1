"""Products of queries and keys before they are scaled, against numpy in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from in_memory_calibration import InMemoryCalibration, ints, make_model, node, save
from onnx import TensorProto
from ways_to_observe import scan_each_way

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


def test_scores_that_are_given_out_are_as_wide_as_the_past_and_the_new_keys(tmp_path: Path) -> None:
    """ONNX infers the new keys alone; a probe that relied on that ended the scan."""
    sizes = {"q": (3, 5), "k": (3, 5), "v": (3, 5), "pk": (3, 4), "pv": (3, 4)}
    rng = np.random.default_rng(0)
    feeds = {name: rng.normal(0, 4, (1, *size, 8)).astype(np.float32) for name, size in sizes.items()}
    dims = {name: [1, 3, 5 if name in "qkv" else "past", 8] for name in feeds}
    nodes = [node("Attention", "q k v - pk pv", "y pko pvo qk"), node("Neg", "qk", "z")]
    model = make_model(nodes, dims, "y z", {}, 23)
    model.ir_version = 10
    graph = save(model, tmp_path)
    ranges = scan_each_way(graph, InMemoryCalibration((feeds,)))
    assert ranges.by_tensor["qk"].element_count == 3 * 5 * 9
    assert graph.sure_shapes.keys().isdisjoint({"qk", "z"})


@pytest.mark.parametrize(
    ("scale", "quantity", "factor"),
    [
        (40.0, "scaled scores", 40.0),
        (1.25, "scaled scores", 1.25),
        (1.0, "scores", 1.0),
        (0.1, "scores", 1.0),
    ],
)
def test_a_scale_over_1_makes_the_scores_larger(
    scale: float, quantity: str, factor: float, tmp_path: Path
) -> None:
    feeds = {
        name: np.random.default_rng(at).normal(0, 4, (2, 3, 5, 8)).astype(np.float32)
        for at, name in enumerate("qkv")
    }
    model = make_model(
        [node("Attention", "q k v", "y", scale=scale)], {name: [None] * 4 for name in feeds}, "y", {}, 23
    )
    model.ir_version = 10
    ranges = scan_each_way(save(model, tmp_path), InMemoryCalibration((feeds,)))
    (found,) = ranges.inner
    q, k = (feeds[name].astype(np.float64) for name in "qk")
    expected = factor * (q @ k.transpose(0, 1, 3, 2))
    assert found.quantity == quantity
    np.testing.assert_allclose(
        [found.seen.max_abs, found.seen.min, found.seen.max],
        [np.abs(expected).max(), expected.min(), expected.max()],
        rtol=1e-5,
    )


@pytest.mark.parametrize("size", [4, 5])
@pytest.mark.parametrize("is_rank_known", [True, False])
@pytest.mark.parametrize(
    ("is_flat", "attributes"),
    [
        (True, {"q_num_heads": 4, "kv_num_heads": 2}),
        (False, {"q_num_heads": 4, "kv_num_heads": 2}),
        (False, {"kv_num_heads": 2}),
        (False, {}),
    ],
)
def test_heads_are_found_by_the_rank(
    is_rank_known: bool, size: int, is_flat: bool, attributes: dict[str, int], tmp_path: Path
) -> None:
    """ONNX Runtime takes the numbers of heads with four dimensions too."""
    rng = np.random.default_rng(0)
    drawn = {name: rng.normal(0, 30, (1, count, 2, size)) for name, count in (("q", 4), ("k", 2), ("v", 2))}
    heads = {name: x.astype(np.float32) for name, x in drawn.items()}
    given = {name: _flatten(x) if is_flat else x for name, x in heads.items()}
    nodes, inputs, feeds = [node("Attention", "q k v", "y", **attributes)], {}, given
    if is_rank_known:
        inputs = {name: [None] * x.ndim for name, x in given.items()}
    else:
        nodes = [*(node("Reshape", f"{name}_values {name}_shape", name) for name in given), *nodes]
        inputs = {f"{name}_values": ["?"] for name in given}
        inputs |= {f"{name}_shape": (TensorProto.INT64, ["rank"]) for name in given}
        feeds = {f"{name}_values": x.reshape(-1) for name, x in given.items()}
        feeds |= {f"{name}_shape": ints(*x.shape) for name, x in given.items()}
    model = make_model(nodes, inputs, "y", {}, 23)
    model.ir_version = 10
    ranges = scan_each_way(save(model, tmp_path), InMemoryCalibration((feeds,)))
    (found,) = [inner for inner in ranges.inner if inner.quantity == "scores"]
    keys = np.repeat(heads["k"], 2, axis=1).transpose(0, 1, 3, 2).astype(np.float64)
    expected = heads["q"].astype(np.float64) @ keys
    np.testing.assert_allclose([found.seen.min, found.seen.max], [expected.min(), expected.max()], rtol=1e-5)
    assert found.seen.element_count == expected.size
