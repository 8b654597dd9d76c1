"""Sums of |a| |b| are measured only in those batches, and of those nodes, whose bound is over FP16's limit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, floats, ints, make_model, node, save
from onnx import TensorProto
from ways_to_observe import PROBES, Probes, use_probes

from overflow_fixer.inner.products import find_products
from overflow_fixer.ranges import accumulation, collect_ranges, walk
from overflow_fixer.ranges.product_sums import ProductObserver
from overflow_fixer.ranges.summaries import Summaries
from overflow_fixer.records import Array, Batch, RangeTable


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The batches in which sums were measured, each with how many."""
    seen: list[tuple[str, int]] = []

    class Watched(ProductObserver):
        def measure(self, batch: Batch, products: Sequence[int], *rest: Any) -> Summaries:
            found = super().measure(batch, products, *rest)
            if measured := np.count_nonzero(found["element_count"]):
                seen.append((batch.name, int(measured)))
            return found

    monkeypatch.setattr(walk, "ProductObserver", Watched)
    return seen


def _scan(model: Any, folder: Path, *feeds: dict[str, Any]) -> RangeTable:
    return collect_ranges(save(model, folder), InMemoryCalibration(feeds))


def _products(ranges: RangeTable, label: str) -> float:
    return ranges.inner_of[label]["products"].seen.max_abs


W = np.diag(floats(2, 2, 2)) + np.float32(0.25)  # channels of 2.75; 3 x 2.25 = 6.75; a length of 2.28


@pytest.mark.parametrize("probes", PROBES)
@pytest.mark.parametrize(
    ("most", "is_run"), [(9000, False), (23819, False), (23820, True), (29000, True), (29200, False)]
)
def test_a_constants_channels_bound_it_more_tightly_than_its_largest(
    most: float, is_run: bool, probes: Probes, asked: list[tuple[str, int]], tmp_path: Path
) -> None:
    """With native probes, its length more tightly still. An output over the limit shows what there is to see."""
    model = make_model([node("MatMul", "x w", "y")], {"x": [1, 3]}, "y", {"w": W})
    with use_probes(probes):
        ranges = _scan(model, tmp_path, {"x": floats(most, 0, 0)[None]})
    found = _products(ranges, "MatMul_y")
    is_measured = is_run and (most == 29000 or probes == "operators")
    assert asked == ([("batch_0", 1)] if is_measured else [])
    assert found == pytest.approx(most * 2.25, rel=1e-5) if is_measured else math.isnan(found)


@pytest.mark.parametrize("probes", PROBES)
def test_only_nodes_over_the_limit_are_measured_and_only_in_those_batches(
    probes: Probes, asked: list[tuple[str, int]], tmp_path: Path
) -> None:
    nodes = [node("MatMul", "x w", "a"), node("MatMul", "z z", "b"), node("MatMul", "x z", "c")]
    w = np.repeat(floats(2, -2, 1)[:, None], 3, axis=1)
    model = make_model(nodes, {"x": [1, 3], "z": [3, 3]}, "a b c", {"w": w})
    small, large = floats(1, 2, 3)[None], floats(30000, 30000, 1)[None]
    eye, wide = np.eye(3, dtype=np.float32), 200 * np.eye(3, dtype=np.float32)
    with use_probes(probes):
        ranges = _scan(
            model,
            tmp_path,
            *({"x": x, "z": z} for x, z in ((small, eye), (large, eye), (small, wide), (small, eye))),
        )
    assert _products(ranges, "MatMul_a") == pytest.approx(120001, rel=1e-5)
    assert asked == ([("batch_1", 1)] if probes != "operators" else [("batch_1", 2), ("batch_2", 1)])
    if probes != "operators":  # by their lengths, these two are within the limit
        assert math.isnan(_products(ranges, "MatMul_b"))
        assert math.isnan(_products(ranges, "MatMul_c"))
    else:
        assert _products(ranges, "MatMul_b") == pytest.approx(40000, rel=1e-5)
        assert _products(ranges, "MatMul_c") == pytest.approx(30000, rel=1e-5)
        assert [one.seen.worst_batch for one in ranges.inner] == [1, 2, 1]


@pytest.mark.parametrize("probes", PROBES)
def test_the_limit_itself_is_not_over_it(
    probes: Probes, asked: list[tuple[str, int]], tmp_path: Path
) -> None:
    model = make_model([node("MatMul", "x z", "y")], {"x": [1, 2], "z": [2, 1]}, "y")
    z = floats(1, -1)[:, None]
    feeds = ({"x": floats(32752, 32752 + more)[None], "z": z} for more in (0, 2.0**-8))
    with use_probes(probes):
        ranges = _scan(model, tmp_path, *feeds)
    assert asked == [("batch_1", 1)]
    assert _products(ranges, "MatMul_y") == 65504 + 2.0**-8


@pytest.mark.parametrize("probes", PROBES)
@pytest.mark.parametrize("tensor", ["x", "z", "y"])
def test_what_fp16_cannot_hold_on_the_outside_is_not_looked_into(
    tensor: str, probes: Probes, asked: list[tuple[str, int]], tmp_path: Path
) -> None:
    """Such a node runs in FP32 anyway; the second batch shows nothing, and is measured."""
    model = make_model([node("MatMul", "x z", "y")], {"x": [1, 3], "z": [3, 1]}, "y")
    hidden = {"x": floats(300, 300, 1)[None], "z": floats(200, -200, 1)[:, None]}
    shown = {
        "x": {"x": floats(65505, 65505, 1)[None], "z": floats(1, -1, 1)[:, None]},
        "z": {"x": floats(1, 1, 1)[None], "z": floats(65505, -65505, 1)[:, None]},
        "y": {"x": floats(300, 300, 1)[None], "z": floats(200, 200, 1)[:, None]},
    }[tensor]
    with use_probes(probes):
        ranges = _scan(model, tmp_path, shown, hidden, shown)
    assert asked == [("batch_1", 1)]
    assert _products(ranges, "MatMul_y") == pytest.approx(120001, rel=1e-5)
    assert [seen.max_abs > 65504 for seen in ranges.ranges] == [
        seen.tensor == tensor for seen in ranges.ranges
    ]


def _signs(count: int) -> Array:
    """Half of them negative, so that a sum cancels."""
    return np.float32(1) - 2 * (np.arange(count, dtype=np.float32) % 2)


@pytest.mark.parametrize("length", [4, 40])
def test_dynamic_lengths_are_those_of_each_batch(
    length: int, asked: list[tuple[str, int]], tmp_path: Path
) -> None:
    """What the model recorded of an inner tensor, when it had another length, is not relied on."""
    model = make_model(
        [node("Relu", "x", "r"), node("MatMul", "r z", "y")], {"x": [1, "k"], "z": ["k", 1]}, "y"
    )
    info = model.graph.value_info.add(name="r")
    info.type.tensor_type.elem_type = TensorProto.FLOAT
    for dim in (1, 4):
        info.type.tensor_type.shape.dim.add(dim_value=dim)
    x = np.full((1, length), 100, np.float32)
    ranges = _scan(model, tmp_path, {"x": x, "z": x.T * _signs(length)[:, None]})
    assert asked == ([("batch_0", 1)] if length == 40 else [])
    assert length == 4 or _products(ranges, "MatMul_y") == pytest.approx(4e5, rel=1e-5)


def test_where_the_number_of_terms_cannot_be_told_it_is_measured(
    asked: list[tuple[str, int]], tmp_path: Path
) -> None:
    nodes = [node("Reshape", "x shape", "r"), node("MatMul", "r r", "y")]
    model = make_model(nodes, {"x": ["n"], "shape": (TensorProto.INT64, ["rank"])}, "y")
    ranges = _scan(model, tmp_path, {"x": 100 * _signs(400), "shape": ints(20, 20)})
    assert asked == [("batch_0", 1)]
    assert _products(ranges, "MatMul_y") == pytest.approx(2e5, rel=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_ends_no_scan(bad: float, tmp_path: Path) -> None:
    model = make_model([node("MatMul", "x w", "y")], {"x": [1, 2]}, "y", {"w": floats(1e5, bad)[:, None]})
    assert not _products(_scan(model, tmp_path, {"x": floats(1e5, 1)[None]}), "MatMul_y") > 65504


def test_weights_that_a_batch_feeds_are_not_those_of_the_model(
    asked: list[tuple[str, int]], tmp_path: Path
) -> None:
    model = make_model(
        [node("MatMul", "x w", "y")], {"x": [1, 2], "w": [2, 1]}, "y", {"w": floats(1, 1)[:, None]}
    )
    x, w = floats(100, 100)[None], floats(400, -400)[:, None]
    ranges = _scan(model, tmp_path, {"x": x}, {"x": x, "w": w}, {"x": x})
    assert asked == [("batch_1", 1)]
    assert _products(ranges, "MatMul_y") == pytest.approx(80000, rel=1e-5)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 2)), ((2, 0), (0, 2)), ((2, 3), (3, 0))])
def test_empty_products_are_nothing(
    shapes: tuple[tuple[int, int], tuple[int, int]], asked: list[tuple[str, int]], tmp_path: Path
) -> None:
    model = make_model([node("MatMul", "a b", "y")], {"a": ["m", "k"], "b": ["k", "n"]}, "y")
    ranges = _scan(
        model, tmp_path, {name: np.full(s, 1e5, np.float32) for name, s in zip("ab", shapes, strict=True)}
    )
    assert asked == []
    assert math.isnan(_products(ranges, "MatMul_y"))


def test_what_is_remembered_does_not_grow_with_the_batches(tmp_path: Path) -> None:
    model = make_model([node("MatMul", "a b", "y")], {"a": ["m", "k"], "b": ["k", "n"]}, "y")
    graph = save(model, tmp_path)
    watched = accumulation.Accumulation(graph, ("a", "b"), find_products(graph))
    for length in range(1, 9):
        feeds = {"a": np.ones((1, length), np.float32), "b": np.ones((length, 1), np.float32)}
        watched.find_suspects(Batch(f"batch{length}", feeds), np.ones(2), np.full(2, length))
    assert len(watched._shapes) == 2
