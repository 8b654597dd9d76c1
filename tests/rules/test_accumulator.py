"""Sums of products that may overflow on the way, measured where a bound asks for it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from in_memory_calibration import InMemoryCalibration, ask, floats, make_model, node, save, scan

from overflow_fixer.graph.model import Graph
from overflow_fixer.inner.accumulators import bound_by_norm, bound_by_ranges
from overflow_fixer.inner.channel_norms import find_channel_norm
from overflow_fixer.inner.products import find_products
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Array, PlanPolicy, RangeTable
from overflow_fixer.rules.accumulator import find_large_accumulators


def _scan(folder: Path, at: Any, weights: Array, *batches: Array) -> tuple[Graph, RangeTable]:
    graph = save(make_model([at], {"x": [None] * batches[0].ndim}, "y", {"w": weights}, 17), folder)
    return graph, collect_ranges(graph, InMemoryCalibration(tuple({"x": x} for x in batches)))


def _products(ranges: RangeTable) -> Any:
    (found,) = [inner for inner in ranges.inner if inner.quantity == "products"]
    return found


MATMUL = node("MatMul", "x w", "y")


@pytest.mark.parametrize(("scale", "is_over"), [(32752, False), (32753, True)])
def test_over_the_limit_of_fp16_alone(tmp_path: Path, scale: float, is_over: bool) -> None:
    """Of two products of +-`scale`, whose sum is 0; 65504 itself is within."""
    x, w = np.array([[scale, scale]], np.float32), np.array([[1], [-1]], np.float32)
    graph, ranges = _scan(tmp_path, MATMUL, w, x)
    plan = plan_precision(graph, ranges, PlanPolicy(threshold=65504))
    findings = [f for pin in plan.pins for f in pin.findings]
    assert [(f.rule, f.value, f.severity) for f in findings] == (
        [("accumulator", 2.0 * scale, "low")] if is_over else []
    )
    assert _products(ranges).is_bound


@pytest.mark.parametrize(("setting", "actions"), [("pin", ["pin"]), ("report", ["none"]), ("off", [])])
def test_the_switch(tmp_path: Path, setting: Any, actions: list[str]) -> None:
    x, w = np.array([[40000, 40000]], np.float32), np.array([[1], [-1]], np.float32)
    graph, ranges = _scan(tmp_path, MATMUL, w, x)
    plan = plan_precision(graph, ranges, PlanPolicy(threshold=65504, accumulators=setting))
    findings = [*(f for pin in plan.pins for f in pin.findings), *plan.considered]
    assert [f.action for f in findings if f.rule == "accumulator"] == actions


def test_measured_in_the_batches_that_may_be_over(tmp_path: Path) -> None:
    w = np.array([[1], [-1]], np.float32)
    small, large = np.array([[1, 1]], np.float32), np.array([[40000, 30000]], np.float32)
    _, ranges = _scan(tmp_path, MATMUL, w, small, large, small)
    found = _products(ranges).seen
    assert (found.max_abs, found.worst_batch, found.element_count) == (70000, 1, 1)


@pytest.mark.parametrize(
    ("x", "w"),
    [([[65505, 65505]], [[1], [-1]]), ([[300, 300]], [[300], [300]]), ([[1, 1]], [[65505], [-65505]])],
)
def test_what_is_not_looked_into_is_pinned_for_what_shows(tmp_path: Path, x: Any, w: Any) -> None:
    """An input, the output or a constant that FP16 cannot hold, whatever the threshold."""
    graph, ranges = _scan(tmp_path, MATMUL, np.array(w, np.float32), np.array(x, np.float32))
    assert np.isnan(_products(ranges).seen.max_abs)
    plan = plan_precision(graph, ranges, PlanPolicy(threshold=65504))
    assert plan.pinned == {"MatMul_y"}
    assert {f.rule for pin in plan.pins for f in pin.findings} <= {"threshold", "constant_range"}


def test_never_measured_where_no_bound_is_over(tmp_path: Path) -> None:
    w = np.array([[1], [-1]], np.float32)
    _, ranges = _scan(tmp_path, MATMUL, w, np.array([[1, 1]], np.float32))
    assert _products(ranges).seen.element_count == 0
    assert np.isnan(_products(ranges).seen.max_abs)


def test_a_convolution_with_groups_and_bias(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1300, (1, 4, 6, 6)).astype(np.float32)
    w = rng.normal(0, 3, (6, 2, 3, 3)).astype(np.float32)
    at = node("Conv", "x w", "y", group=2, pads=[1, 1, 1, 1])
    _, ranges = _scan(tmp_path, at, w, x)
    assert ranges.by_tensor["y"].max_abs <= 65504
    padded = np.pad(np.abs(x.astype(np.float64)), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    expected = max(
        np.einsum(
            "chwij,cij->hw", windows[0, 2 * (m // 3) : 2 * (m // 3) + 2], np.abs(w[m], dtype=np.float64)
        ).max()
        for m in range(6)
    )
    assert expected > 65504
    assert _products(ranges).seen.max_abs == pytest.approx(expected, rel=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), terms=st.integers(1, 6), columns=st.integers(1, 4)
)
def test_no_bound_is_under_the_truth(seed: int, rows: int, terms: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, terms)).astype(np.float32)
    w = rng.normal(size=(terms, columns)).astype(np.float32)
    truth = (np.abs(x, dtype=np.float64) @ np.abs(w, dtype=np.float64)).max()
    for name, inputs, attributes in (("MatMul", (x, w), {}), ("Gemm", (x, w.T.copy()), {"transB": 1})):
        model = make_model(
            [node(name, "x w", "y", **attributes)], {"x": list(x.shape)}, "y", {"w": inputs[1]}, 17
        )
        with tempfile.TemporaryDirectory() as folder:
            graph = save(model, Path(folder))
            (product,) = find_products(graph)
            largest = {"x": float(np.abs(x).max()), "w": float(np.abs(w).max())}
            norm = find_channel_norm(graph, product)
            assert norm is not None
            shapes = {"x": x.shape, "w": inputs[1].shape}
            assert bound_by_ranges(product, shapes).at(largest.__getitem__) >= truth * (1 - 1e-6)
            assert bound_by_norm(product, norm, largest.__getitem__) >= truth * (1 - 1e-6)


def _multiply(*batches: tuple[Array, Array], folder: Path) -> tuple[Graph, RangeTable]:
    model = make_model([node("MatMul", "a b", "y")], {"a": ["m", "k"], "b": ["k", "n"]}, "y")
    return scan(model, folder, *({"a": a, "b": b} for a, b in batches))


OVER = (floats(300, 300)[None], floats(200, -200)[:, None])
"""Output 0, sum of magnitudes 120000."""


def test_a_sum_that_cancels_is_found(tmp_path: Path) -> None:
    graph, ranges = _multiply((OVER[0] / 100, OVER[1]), OVER, folder=tmp_path)
    (found,) = ask(find_large_accumulators, graph, ranges)
    assert ranges.by_tensor["y"].max_abs == 0
    assert (found.node, found.tensor, found.value, found.limit) == ("MatMul_y", "y", 120000, 65504)
    assert (found.batch, found.action, found.severity) == ("batch_1", "pin", "low")
    assert found.reason == (
        "inside, sum |a| |b| reaches 120000, over FP16's limit of 65504: a kernel that accumulates in FP16 may overflow "
        "on the way to an output that does not"
    )


def test_the_threshold_does_not_matter(tmp_path: Path) -> None:
    graph, ranges = _multiply(OVER, folder=tmp_path)
    for threshold in (1, 65504):
        assert len(ask(find_large_accumulators, graph, ranges, PlanPolicy(threshold=threshold))) == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_nothing_is_said_of_what_is_not_finite(bad: float, side: int, tmp_path: Path) -> None:
    broken = [part.copy() for part in OVER]
    broken[side].flat[1] = bad
    graph, ranges = _multiply(OVER, (broken[0], broken[1]), folder=tmp_path)
    assert not ask(find_large_accumulators, graph, ranges)


def test_where_fp32_itself_overflows_nothing_is_said(tmp_path: Path) -> None:
    graph, ranges = _multiply((floats(1e30)[None], floats(1e30)[None]), folder=tmp_path)
    assert not ask(find_large_accumulators, graph, ranges)


def test_empty_products_are_no_reason(tmp_path: Path) -> None:
    empty = np.zeros((2, 0), np.float32)
    graph, ranges = _multiply((empty, empty.T), folder=tmp_path)
    assert not ask(find_large_accumulators, graph, ranges)


def test_a_product_of_two_vectors_is_a_number(tmp_path: Path) -> None:
    model = make_model([node("MatMul", "a b", "y")], {"a": [2], "b": [2]}, "y")
    graph, ranges = scan(model, tmp_path, {"a": floats(300, 300), "b": floats(200, -200)})
    assert [one.value for one in ask(find_large_accumulators, graph, ranges)] == [120000]


def test_no_backend_protects_it(tmp_path: Path) -> None:
    graph, ranges = _multiply(OVER, folder=tmp_path)
    plan = plan_precision(graph, ranges, PlanPolicy(protected={"LayerNormalization": "protected"}))
    assert plan.pinned == {"MatMul_y"}


@pytest.mark.parametrize(("scale", "is_over"), [(32752, False), (32753, True)])
def test_an_output_of_one_number(tmp_path: Path, scale: float, is_over: bool) -> None:
    """The product of two vectors is 0-d."""
    graph, ranges = _scan(tmp_path, MATMUL, floats(1, -1), floats(scale, scale))
    found = ask(find_large_accumulators, graph, ranges)
    assert ranges.by_tensor["y"].element_count == 1
    assert [(f.node, f.value) for f in found] == ([("MatMul_y", 2.0 * scale)] if is_over else [])
