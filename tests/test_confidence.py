"""Growth of maxima against every half of the batches, and what is said to be at risk."""

from __future__ import annotations

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_memory_calibration import InMemoryCalibration, make_model, node, save

from overflow_fixer.confidence import grow, judge_confidence
from overflow_fixer.graph import Graph, load_graph
from overflow_fixer.planning import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Confidence, PlanPolicy
from overflow_fixer.reports import say_confidence

MAGNITUDES = st.floats(2.0**-20, 2.0**20, width=32)


@given(st.lists(MAGNITUDES, min_size=2, max_size=8))
def test_growth_is_the_mean_over_all_halves(maxima: list[float]) -> None:
    halves = list(combinations(maxima, len(maxima) // 2))
    expected = math.log2(max(maxima)) - sum(math.log2(max(half)) for half in halves) / len(halves)
    found = grow(np.array([maxima], np.float32))
    np.testing.assert_allclose(found, [expected], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("maxima", "expected"),
    [
        ([5.0], 0.0),
        ([5.0, 5.0, 5.0], 0.0),
        ([0.0, 0.0], 0.0),
        ([math.nan, math.nan], 0.0),
        ([8.0, math.nan], 20.0),
        ([8.0, 0.0], 20.0),
        ([8.0, 2.0], 1.0),
    ],
)
def test_growth_of_odd_maxima(maxima: list[float], expected: float) -> None:
    """A batch without a value counts as 40 bits below; half of the halves have it alone."""
    assert grow(np.array([maxima], np.float32)) == pytest.approx([expected])


def test_a_thousand_batches() -> None:
    """Of an exponential tail, the maximum grows by ln 2 with each doubling."""
    maxima = np.random.default_rng(0).exponential(size=(400, 1000)).astype(np.float32)
    most = maxima.max(axis=1).mean()
    assert 2 ** grow(maxima).mean() - 1 == pytest.approx(math.log(2) / most, rel=0.15)


def _judge(folder: Path, scales: list[float], threshold: float) -> tuple[Graph, Confidence]:
    graph = save(
        make_model([node("Relu", "x", "a"), node("Sigmoid", "a", "y")], {"x": ["n"]}, "y", {}), folder
    )
    feeds = tuple({"x": np.array([scale, -scale], np.float32)} for scale in scales)
    ranges = collect_ranges(graph, InMemoryCalibration(feeds))
    plan = plan_precision(graph, ranges, PlanPolicy(threshold=threshold))
    return graph, judge_confidence(graph, ranges, plan)


def test_what_grows_towards_the_threshold_is_at_risk(tmp_path: Path) -> None:
    _, found = _judge(tmp_path, [10, 20, 40, 80], 100)
    assert [growth.tensor for growth in found.at_risk] == ["x", "a"]
    x = found.at_risk[0]
    assert (x.max_abs, x.worst_batch) == (80, 3)
    assert x.margin_bits == pytest.approx(math.log2(100 / 80))
    assert "More data may change the plan" in say_confidence(found)
    assert "x (max |x| 80, 0.32 bits left" in say_confidence(found)


def test_what_stands_still_is_not(tmp_path: Path) -> None:
    _, found = _judge(tmp_path, [80, 80, 80, 80], 100)
    assert not found.at_risk
    assert found.nearest[0].tensor == "x"
    assert "hardly change the plan" in say_confidence(found)


def test_one_batch_tells_nothing(tmp_path: Path) -> None:
    _, found = _judge(tmp_path, [80], 100)
    assert "One batch cannot tell" in say_confidence(found)


def test_a_tensor_whose_nodes_are_pinned_cannot_change_the_plan(tmp_path: Path) -> None:
    _, found = _judge(tmp_path, [80, 160], 100)
    assert [growth.tensor for growth in found.nearest] == []
    assert "No tensor is left" in say_confidence(found)


def test_a_maximum_at_the_threshold_is_within_it(tmp_path: Path) -> None:
    _, found = _judge(tmp_path, [100, 100], 100)
    assert found.nearest[0].margin_bits == 0
    assert found.at_risk  # whatever it grows by


def test_what_grows_in_a_body_is_at_risk_until_its_node_is_pinned(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x, int64 trips) => (float[N] y) <float[4] w = {2, 2, 2, 2}> {
        [repeat] y = Loop (trips, , x) <
            body = b (int64 i, bool c, float[N] s) => (bool c, float[N] t) {
                ten = Constant <value_float = 90.0> ()
                h = Mul (s, w)
                small = Where (c, h, ten)
                t = Tanh (small)
            }
        >
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    feeds = tuple({"x": np.full(4, x, np.float32), "trips": np.array(2)} for x in (5.0, 10.0, 20.0, 45.0))
    ranges = collect_ranges(graph, InMemoryCalibration(feeds))
    plan = plan_precision(graph, ranges, PlanPolicy(threshold=100))
    found = judge_confidence(graph, ranges, plan)
    nearest = {growth.tensor: growth.max_abs for growth in found.nearest}
    assert nearest["repeat/body/h"] == 90
    assert not {"repeat/body/ten", "repeat/body/w", "w"} & nearest.keys()
    assert "repeat/body/h" in {growth.tensor for growth in found.at_risk}
    pinned = plan_precision(graph, ranges, PlanPolicy(threshold=100, include_nodes=("repeat",)))
    assert judge_confidence(graph, ranges, pinned).nearest == ()
