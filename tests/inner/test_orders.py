"""Which share of neighbours in the order of an input FP16 makes equal, against an independent computation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import ints, make_model, node, scan

X = np.random.default_rng(0).uniform(0, 300, (3, 500, 2)).astype(np.float32)


def _share(x: np.ndarray, axis: int, count: int) -> float:
    order = np.moveaxis(-np.sort(-x, axis=axis), axis, -1)[..., :count]
    rounded = order.astype(np.float16)
    are_alike = (rounded[..., 1:] == rounded[..., :-1]) & (order[..., 1:] != order[..., :-1])
    return float(are_alike.mean())


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize(("axis", "count"), [(1, 500), (1, 20), (-2, 500)])
def test_forms(opset: int, axis: int, count: int, tmp_path: Path) -> None:
    nodes = [node("TopK", "x k", "v i", axis=axis), node("Cast", "i", "y", to=1)]
    model = make_model(nodes, {"x": [None, None, None]}, "y", {"k": ints(count)}, opset)
    _, ranges = scan(model, tmp_path, {"x": X}, {"x": np.floor(X)})
    (found,) = (one for one in ranges.inner if one.quantity == "made equal")
    assert found.batch_max_abs == pytest.approx([_share(X, axis, count), 0], rel=1e-5)
    assert 0.05 < found.batch_max_abs[0] < 0.9


def test_of_one_there_is_no_neighbour(tmp_path: Path) -> None:
    nodes = [node("TopK", "x k", "v i", axis=1), node("Cast", "i", "y", to=1)]
    _, ranges = scan(
        make_model(nodes, {"x": [None, None, None]}, "y", {"k": ints(1)}, 13), tmp_path, {"x": X}
    )
    assert [float(one.batch_max_abs[0]) for one in ranges.inner if one.quantity == "made equal"] == [0]
