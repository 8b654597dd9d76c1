"""Growth of maxima against every half of the batches, and what is said to be at risk."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from in_memory_calibration import InMemoryCalibration, floats, make_model, node, save, scan

from overflow_fixer.errors import PlanError
from overflow_fixer.graph.model import Graph, load_graph
from overflow_fixer.planning.confidence import grow, judge_confidence
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Confidence, PlanPolicy
from overflow_fixer.reports import say_confidence
from overflow_fixer.reports.confidence_wording import bound_failures, say_passes


def _verified(synthetic: bool = False, **fixed: Any) -> dict[str, Any]:
    """Of a report.json, what tells of the verification."""
    outputs = fixed.pop("outputs", [])
    return {
        "verification": {"fixed": {"outputs": outputs, **fixed}, "synthetic": synthetic},
        "tolerance": {"min_agreement": 0.99},
    }


MAGNITUDES = st.floats(2.0**-20, 2.0**20, width=32)


@given(st.lists(MAGNITUDES, min_size=2, max_size=8))
def test_growth_is_the_mean_over_all_halves_by_a_doubling(maxima: list[float]) -> None:
    halves = list(combinations(maxima, len(maxima) // 2))
    expected = math.log2(max(maxima)) - sum(math.log2(max(half)) for half in halves) / len(halves)
    expected /= math.log2(len(maxima) / (len(maxima) // 2))
    found = grow(np.array([maxima], np.float32))
    np.testing.assert_allclose(found, [expected], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("maxima", "expected"),
    [
        ([5.0], math.nan),
        ([5.0, 5.0, 5.0], 0.0),
        ([0.0, 0.0], math.nan),
        ([math.nan, math.nan], math.nan),
        ([8.0, math.nan], math.nan),
        ([8.0, 0.0], math.nan),
        ([8.0, 2.0], 1.0),
        ([math.nan, 225.0, 0.0, 225.0, math.nan, math.nan], 0.0),
        ([math.nan, 8.0, math.nan, 0.0, 2.0], 1.0),
        ([8.0, 2.0**-60], 20.0),
    ],
)
def test_growth_of_odd_maxima(maxima: list[float], expected: float) -> None:
    """Batches that show nothing count for nothing; what is further below counts as 40 bits."""
    assert grow(np.array([maxima], np.float32)) == pytest.approx([expected], nan_ok=True)


def test_rows_that_different_batches_show_are_told_each_by_its_own() -> None:
    maxima = [[1, 2, 4, 8], [0, 2, 0, 8], [math.nan, math.nan, 4, math.nan], [8, 4, 2, 1]]
    each = [float(grow(np.array([row]))[0]) for row in maxima]
    assert grow(np.array(maxima)) == pytest.approx(each, nan_ok=True)
    assert each[0] == each[3]
    assert math.isnan(each[2])


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


def test_ranges_and_plans_of_another_model_are_refused(tmp_path: Path) -> None:
    model = make_model([node("Relu", "x", "y")], {"x": ["n"]}, "y", {})
    graph, ranges = scan(model, tmp_path, {"x": floats(1, 2)})
    plan = plan_precision(graph, ranges, PlanPolicy())
    with pytest.raises(PlanError, match="The ranges were recorded for another model"):
        judge_confidence(graph, replace(ranges, model_sha256="f" * 64, model_stamp=""), plan)
    with pytest.raises(PlanError, match="The plan was made for another model"):
        judge_confidence(graph, ranges, replace(plan, model_sha256="f" * 64))


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
    assert say_confidence(found) == (
        "One batch cannot tell whether more data would change the plan. Nearest to its limit: x (max |x| 80, 0.32 bits left)."
    )


def test_nor_does_what_a_single_batch_shows(tmp_path: Path) -> None:
    """As of a branch that ran once: it is not taken to have grown from nothing."""
    _, found = _judge(tmp_path, [0, 80, 0, 0], 100)
    assert not found.at_risk
    assert say_confidence(found).endswith(
        " How what a single batch shows would grow, nobody can tell: x (max |x| 80, 0.32 bits left, in one of 4 batches), "
        "a (max |x| 80, 0.32 bits left, in one of 4 batches)."
    )
    _, found = _judge(tmp_path, [0, 80, 80, 0], 100)
    assert "nobody can tell" not in say_confidence(found)
    assert [growth.growth_bits for growth in found.nearest] == [0, 0]


def test_a_tensor_whose_nodes_are_pinned_cannot_change_the_plan(tmp_path: Path) -> None:
    _, found = _judge(tmp_path, [80, 160], 100)
    assert [growth.tensor for growth in found.nearest] == []
    assert "No value is left" in say_confidence(found)


@pytest.mark.parametrize(("scales", "at_risk"), [([100, 100], []), ([99, 100], ["x", "a"])])
def test_a_maximum_at_the_threshold_is_at_risk_if_it_grew(
    scales: list[float], at_risk: list[str], tmp_path: Path
) -> None:
    """At its rate, which is 0, what stands still is at its limit for ever, and not over it."""
    _, found = _judge(tmp_path, scales, 100)
    assert found.nearest[0].margin_bits == 0
    assert [growth.tensor for growth in found.at_risk] == at_risk


@pytest.mark.parametrize(("threshold", "at_risk"), [(195, ["x", "a"]), (205, [])])
def test_what_four_times_the_data_would_bring_over_the_threshold_is_at_risk(
    threshold: float, at_risk: list[str], tmp_path: Path
) -> None:
    """From 50 to 100 in two batches, it grows by the root of 2 with each doubling, on average."""
    _, found = _judge(tmp_path, [50, 100], threshold)
    assert [growth.tensor for growth in found.at_risk] == at_risk


@pytest.mark.parametrize(("limit", "asked"), [(100, ["x"]), (200, ["c", "x"])])
def test_what_a_clip_holds_within_the_threshold_cannot_change_the_plan(
    limit: float, asked: list[str], tmp_path: Path
) -> None:
    """Measured at 99 and 100, it grew, and comes no further."""
    constants = {"low": np.float32(-limit), "high": np.float32(limit)}
    nodes = [node("Clip", "x low high", "c"), node("Sigmoid", "c", "y")]
    graph = save(make_model(nodes, {"x": [2]}, "y", constants), tmp_path)
    feeds = tuple({"x": np.array([scale, 0], np.float32)} for scale in (90.0, 100.0))
    ranges = collect_ranges(graph, InMemoryCalibration(feeds))
    plan = plan_precision(graph, ranges, PlanPolicy(threshold=100))
    found = judge_confidence(graph, ranges, plan)
    assert sorted(growth.tensor for growth in found.at_risk) == asked


def test_what_holds_nan_asks_for_a_pin_already_and_is_not_asked_about(tmp_path: Path) -> None:
    """Its nodes are not pinned where the user excludes them; more data would say nothing new of it."""
    nodes = [node("Sqrt", "x", "a"), node("Sigmoid", "a", "y")]
    graph = save(make_model(nodes, {"x": [2]}, "y"), tmp_path)
    ranges = collect_ranges(graph, InMemoryCalibration(({"x": floats(90, -1)}, {"x": floats(95, -1)})))
    plan = plan_precision(graph, ranges, PlanPolicy(threshold=100, exclude_nodes=("Sqrt_a", "Sigmoid_y")))
    found = judge_confidence(graph, ranges, plan)
    assert [growth.tensor for growth in found.nearest] == ["x"]


def test_what_is_made_of_constants_alone_is_not_asked_about(tmp_path: Path) -> None:
    """The squares of a codebook and their sums, as where nearest entries are looked for; in a body too."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x, bool c) => (float[N] y, float[M] z) <float[2,2] book = {90, 80, 70, 60}> {
        two = Constant <value_float = 2.0> ()
        squares = Pow (book, two)
        [norms] sums = ReduceMean <axes = [1], keepdims = 0> (squares)
        z = Softplus (sums)
        [branch] y = If (c) <
            then_branch = t () => (float[N] o) {
                inner = Mul (book, book)
                [mean] m = ReduceMean (inner)
                o = Add (m, x)
            },
            else_branch = e () => (float[N] o) { o = Identity (x) }
        >
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    feeds = tuple({"x": np.full(4, x, np.float32), "c": np.array(True)} for x in (1.0, 2.0, 3.0))
    ranges = collect_ranges(graph, InMemoryCalibration(feeds))
    found = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy(threshold=60000)))
    inside = {"branch/then_branch/x", "branch/then_branch/o"}
    assert {growth.tensor for growth in found.nearest} == {"x", "y"} | inside


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


def _inner_model(folder: Path, *nodes: onnx.NodeProto, **constants: np.ndarray) -> Graph:
    return save(make_model(list(nodes), {"x": ["n", 1000]}, "y", constants, 13), folder)


def _rows(*values: float) -> InMemoryCalibration:
    return InMemoryCalibration(tuple({"x": np.full((1, 1000), value, np.float32)} for value in values))


SUMS = (7.0, 9.1, 8.0, 9.4, 6.5, 9.6, 8.8, 9.9)


def test_a_sum_inside_a_mean_that_nears_the_threshold_is_at_risk(tmp_path: Path) -> None:
    """No tensor is over 9.9; the sum reaches 9900."""
    graph = _inner_model(tmp_path, node("ReduceMean", "x", "y", axes=[1]))
    ranges = collect_ranges(graph, _rows(*SUMS))
    plan = plan_precision(graph, ranges, PlanPolicy())
    found = judge_confidence(graph, ranges, plan)
    first = found.nearest[0]
    assert (first.tensor, first.max_abs) == ("ReduceMean_y: sum", pytest.approx(9900, rel=1e-5))
    assert first.margin_bits == pytest.approx(math.log2(10000 / 9900), abs=1e-4)
    assert first.growth_bits == pytest.approx(float(grow(1000 * np.array([SUMS]))[0]), abs=1e-4)
    assert first in found.at_risk
    assert "ReduceMean_y: sum" in say_confidence(found)
    bound = next(one for one in found.nearest if one.tensor == "ReduceMean_y: sum of magnitudes")
    assert bound.margin_bits == pytest.approx(math.log2(65504 / 9900), abs=1e-4)


def test_a_share_of_what_is_decided_otherwise_is_no_magnitude(tmp_path: Path) -> None:
    nodes = [node("ReduceMean", "x", "m", axes=[1]), node("Sub", "x m", "d"), node("Less", "d c", "b")]
    cast = node("Cast", "b", "y", to=onnx.TensorProto.FLOAT)
    graph = _inner_model(tmp_path, *nodes, cast, c=np.array(0.05, np.float32))
    feeds = tuple({"x": np.linspace(0, most, 1000, dtype=np.float32)[None]} for most in (80, 90, 95, 99))
    ranges = collect_ranges(graph, InMemoryCalibration(feeds))
    assert any(one.quantity == "decided otherwise" and one.seen.max_abs > 0 for one in ranges.inner)
    nearest = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy())).nearest
    assert not [one.tensor for one in nearest if "decided otherwise" in one.tensor]


def test_a_share_of_an_order_that_is_made_equal_is_no_magnitude(tmp_path: Path) -> None:
    nodes = [node("TopK", "x k", "v i"), node("Cast", "i", "y", to=onnx.TensorProto.FLOAT)]
    model = make_model(nodes, {"x": ["n", 1501]}, "y", {"k": np.array([1501])}, 13)
    graph = save(model, tmp_path)
    near = np.append(np.arange(1500), 1499.1).astype(np.float32)
    ranges = collect_ranges(graph, InMemoryCalibration(({"x": near[None]}, {"x": near[None]})))
    assert any(one.quantity == "made equal" and one.seen.max_abs > 0 for one in ranges.inner)
    plan = plan_precision(graph, ranges, PlanPolicy())
    assert not plan.pinned
    nearest = judge_confidence(graph, ranges, plan).nearest
    assert not [one.tensor for one in nearest if "made equal" in one.tensor]


@pytest.mark.parametrize("at", ["Gelu", "Softplus"])
def test_a_value_that_follows_from_a_tensor_counts(tmp_path: Path, at: str) -> None:
    attributes = {"approximate": "tanh"} if at == "Gelu" else {}
    graph = save(make_model([node(at, "x", "y", **attributes)], {"x": ["n", 1000]}, "y", {}, 20), tmp_path)
    ranges = collect_ranges(graph, _rows(*(x / 1.5 for x in SUMS)))
    found = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy()))
    names = {one.tensor: one.max_abs for one in found.nearest}
    inner = next(name for name in names if name.startswith(f"{at}_y: "))
    expected = (9.9 / 1.5) ** 3 if at == "Gelu" else math.exp(9.9 / 1.5)
    assert names[inner] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("lowest", [0, -1.5])
def test_the_largest_element_is_taken_to_grow_as_the_largest_magnitude_does(
    lowest: float, tmp_path: Path
) -> None:
    """Of each batch the latter alone is known: here it is an element that is half as far again below 0."""
    graph = save(make_model([node("Softplus", "x", "y")], {"x": ["n", 2]}, "y", {}), tmp_path)
    feeds = tuple({"x": np.array([[x, lowest * x]], np.float32)} for x in SUMS)
    ranges = collect_ranges(graph, InMemoryCalibration(feeds))
    found = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy(threshold=20000)))
    (inner,) = (one for one in found.nearest if one.tensor.startswith("Softplus_y: "))
    assert inner.growth_bits == pytest.approx(float(grow(np.exp(np.array([SUMS])))[0]), rel=1e-5)
    assert inner in found.at_risk


def test_a_batch_without_elements_leaves_values_inside_nodes_in(tmp_path: Path) -> None:
    graph = _inner_model(tmp_path, node("ReduceMean", "x", "y", axes=[1]))
    empty = {"x": np.empty((0, 1000), np.float32)}
    ranges = collect_ranges(graph, InMemoryCalibration((*(batch.feeds for batch in _rows(*SUMS)), empty)))
    found = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy()))
    assert "ReduceMean_y: sum" in {one.tensor for one in found.at_risk}


@pytest.mark.parametrize(("scales", "asked"), [((200, 190), True), ((200, 50), False), ((50, 50), False)])
def test_sums_of_products_are_asked_about_where_every_batch_measured_them(
    scales: tuple[float, float], asked: bool, tmp_path: Path
) -> None:
    """Where a bound is within FP16's limit, as it is of 50, they are not: nothing tells how they grow."""
    weights = np.array([[1], [500]], np.float32)
    graph = save(make_model([node("MatMul", "x w", "y")], {"x": [1, 2]}, "y", {"w": weights}), tmp_path)
    feeds = tuple({"x": np.array([[scale, 0.01]], np.float32)} for scale in scales)
    ranges = collect_ranges(graph, InMemoryCalibration(feeds))
    found = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy()))
    assert ("MatMul_y: products" in {growth.tensor for growth in found.nearest}) == asked


def test_what_the_backend_protects_and_what_does_not_count_is_left_out(tmp_path: Path) -> None:
    ones = np.ones(1000, np.float32)
    graph = save(
        make_model([node("LayerNormalization", "x s", "y")], {"x": ["n", 1000]}, "y", {"s": ones}), tmp_path
    )
    x = np.random.default_rng(0).normal(size=(4, 1, 1000)).astype(np.float32)
    ranges = collect_ranges(graph, InMemoryCalibration(tuple({"x": one} for one in x)))
    plan = plan_precision(graph, ranges, PlanPolicy())
    asked = {one.tensor for one in judge_confidence(graph, ranges, plan).nearest}
    assert "LayerNormalization_y: sum of squares" in asked
    policy = PlanPolicy(protected={"LayerNormalization": "it does that itself"})
    assert {one.tensor for one in judge_confidence(graph, ranges, plan, policy).nearest} == {"x", "y"}


def test_a_square_grows_twice_as_fast(tmp_path: Path) -> None:
    ones = np.ones(2, np.float32)
    graph = save(
        make_model([node("LayerNormalization", "x s", "y")], {"x": ["n", 2]}, "y", {"s": ones}), tmp_path
    )
    feeds = tuple({"x": np.array([[x, -x]], np.float32)} for x in (10, 20, 40, 80))
    ranges = collect_ranges(graph, InMemoryCalibration(feeds))
    found = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy(threshold=60000)))
    by_name = {one.tensor: one for one in found.nearest}
    square = by_name["LayerNormalization_y: deviation"]
    assert square.max_abs == pytest.approx(6400)
    assert square.growth_bits == pytest.approx(2 * by_name["x"].growth_bits)


def test_values_of_a_body_that_some_batches_took_count(tmp_path: Path) -> None:
    """A measured one, and one that follows from a tensor."""
    text = """<ir_version: 8, opset_import: ["" : 13]>
    g (float[4] x, bool c) => (float[N] y) {
        [branch] y = If (c) <
            then_branch = t () => (float[N] o) { [mean] m = ReduceMean <axes = [0]> (x) [soft] o = Softplus (m) },
            else_branch = e () => (float[N] o) { o = Identity (x) }
        >
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    feeds = tuple({"x": np.full(4, x, np.float32), "c": np.array(i % 2 == 0)} for i, x in enumerate(SUMS))
    ranges = collect_ranges(graph, InMemoryCalibration(feeds))
    found = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy(threshold=10000)))
    names = {one.tensor: one.max_abs for one in found.nearest}
    assert names["branch/then_branch/mean: sum"] == pytest.approx(4 * 8.8)
    assert names["branch/then_branch/soft: e^x"] == pytest.approx(math.exp(8.8), rel=1e-5)


def test_a_value_inside_a_body_counts(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x, int64 trips) => (float[N] y) <float[4] w = {1, 1, 1, 1}> {
        [repeat] y = Loop (trips, , x) <
            body = b (int64 i, bool c, float[N] s) => (bool c, float[N] t) { [norm] t = LayerNormalization (s, w) }
        >
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx")
    feeds = tuple(
        {"x": np.array([x, -x, x, -x], np.float32), "trips": np.array(1)} for x in (20.0, 30.0, 40.0)
    )
    ranges = collect_ranges(graph, InMemoryCalibration(feeds))
    found = judge_confidence(graph, ranges, plan_precision(graph, ranges, PlanPolicy()))
    assert "repeat/body/norm: sum of squares" in {one.tensor for one in found.nearest}


@pytest.mark.parametrize(
    ("batches", "share"), [(1, 0.95), (2, 0.77639), (3, 0.63160), (59, 0.049508), (299, 0.0099689)]
)
def test_what_passing_batches_leave_room_for_is_the_exact_binomial_limit(batches: int, share: float) -> None:
    """So that a share of failures as large gives `batches` passes in a row with a chance of 5 %."""
    assert bound_failures(batches) == pytest.approx(share, rel=1e-4)
    assert (1 - bound_failures(batches)) ** batches == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("batches", "words", "more"),
    [
        (1, "on 1 batch leaves room for up to 95.0 % of such batches to fail", True),
        (3, "on 3 batches leaves room for up to 63.2 % of such batches to fail", True),
        (58, "up to 5.0 % of such batches to fail", False),
        (59, "up to 5.0 % of such batches to fail", False),
        (299, "up to 1.0 % of such batches to fail", False),
    ],
)
def test_what_passing_batches_prove_is_said(batches: int, words: str, more: bool) -> None:
    said = str(say_passes(_verified(passed=True, batch_count=batches)))
    assert words in said
    assert ("; 59 would leave 5.0 %" in said) == more


@pytest.mark.parametrize(
    "document",
    [
        _verified(passed=False, batch_count=3),
        _verified(passed=True, batch_count=120, outputs=[{"error": {"worst_batch_agreement": 0.98}}]),
        _verified(passed=True, batch_count=0),
        _verified(passed=True, batch_count=3, synthetic=True),
    ],
)
def test_nothing_is_said_to_be_proved_where_a_batch_fails_none_was_run_or_data_are_random(
    document: dict[str, Any],
) -> None:
    assert say_passes(document) is None
