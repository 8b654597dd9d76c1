"""Findings about values inside nodes: what is over a limit, what is protected, and what tells nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_tensorrt import Script, fake_tensorrt
from in_memory_calibration import InMemoryCalibration, ask, floats, ints, make_model, node, save, scan

from overflow_fixer.backends.tensorrt.capabilities import probe
from overflow_fixer.backends.tensorrt.protection import protected_by
from overflow_fixer.graph.model import Graph
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Array, Finding, PlanPolicy, PrecisionPlan, RangeTable
from overflow_fixer.rules.inner_value import find_large_inner_values

ONES, ZEROS = np.ones(8, np.float32), np.zeros(8, np.float32)
FOUR = {"s": np.ones(4, np.float32), "b": np.zeros(4, np.float32)}
PROTECTED = protected_by(probe(fake_tensorrt("8.6", Script())), "weak")
NORM = (node("LayerNormalization", "x g h", "y"), {"g": ONES, "h": ZEROS})


def _plan(
    folder: Path, at: Any, constants: Mapping[str, Array], *batches: Array, opset: int = 17, **policy: Any
) -> PrecisionPlan:
    graph = save(make_model([at], {"x": [None] * batches[0].ndim}, "y", constants, opset), folder)
    ranges = collect_ranges(graph, InMemoryCalibration(tuple({"x": x} for x in batches)))
    return plan_precision(graph, ranges, PlanPolicy(**policy))


def _spread(largest: float) -> Array:
    """A row of mean 0 with deviations of 0 and +-`largest`."""
    row = np.zeros((1, 8), np.float32)
    row[0, 0], row[0, 1] = largest, -largest
    return row


def test_the_squares_of_a_norm_that_no_tensor_shows(tmp_path: Path) -> None:
    plan = _plan(tmp_path, *NORM, _spread(1), _spread(1881))
    findings = {f.value: f for f in plan.pins[0].findings}
    assert {f.rule for f in findings.values()} == {"inner_value"}
    assert 1881.0**2 in findings
    assert 2 * 1881.0**2 in findings
    assert all(f.batch == "batch_1" and f.severity == "high" for f in findings.values())


@pytest.mark.parametrize(("largest", "pinned"), [(100, False), (np.nextafter(np.float32(100), 200), True)])
def test_the_threshold_itself_is_within(tmp_path: Path, largest: float, pinned: bool) -> None:
    at = node("ReduceL2", "x", "y", axes=[1])
    row = np.zeros((1, 8), np.float32)
    row[0, 0] = largest
    assert bool(_plan(tmp_path, at, {}, row, threshold=10000).pins) is pinned


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_left_to_its_own_rule(tmp_path: Path, value: float) -> None:
    row = _spread(1881)
    row[0, 5] = value
    plan = _plan(tmp_path, *NORM, row)
    assert {f.rule for pin in plan.pins for f in pin.findings} == {"non_finite"}


def test_an_empty_batch_tells_nothing(tmp_path: Path) -> None:
    assert not _plan(tmp_path, *NORM, np.zeros((0, 8), np.float32)).pins


def test_what_is_protected_is_told_and_not_pinned(tmp_path: Path) -> None:
    plan = _plan(tmp_path, *NORM, _spread(1881), protected=PROTECTED)
    assert not plan.pins
    assert {f.action for f in plan.considered} == {"protected"}
    assert all("INormalizationLayer" in f.reason for f in plan.considered)


def test_a_large_tensor_pins_even_what_is_protected(tmp_path: Path) -> None:
    plan = _plan(tmp_path, *NORM, _spread(30000), protected=PROTECTED)
    assert {f.rule for pin in plan.pins for f in pin.findings} == {"threshold"}


def test_a_row_that_is_masked_as_a_whole(tmp_path: Path) -> None:
    at = node("Softmax", "x", "y", axis=-1)
    masked = np.full((2, 4), -65520, np.float32)
    plan = _plan(tmp_path, at, {}, np.zeros((2, 4), np.float32), masked, threshold=65504)
    (finding,) = [f for pin in plan.pins for f in pin.findings if f.rule == "inner_value"]
    assert (finding.value, finding.batch) == (-65520, "batch_1")
    partly = masked.copy()
    partly[:, 0] = 1
    plan = _plan(tmp_path, at, {}, partly, threshold=65504)
    assert not [f for pin in plan.pins for f in pin.findings if f.rule == "inner_value"]


@pytest.mark.parametrize(
    ("at", "opset", "row", "value"),
    [
        (node("Softplus", "x", "y"), 13, [12.0, 1.0], math.exp(12)),
        (node("Mish", "x", "y"), 18, [-50.0, 12.0], math.exp(12)),
        (node("Gelu", "x", "y", approximate="tanh"), 20, [-41.0, 3.0], 41.0**3),
        (node("ReduceLogSumExp", "x", "y", axes=[1]), 13, [11.0, 10.0], math.exp(11) + math.exp(10)),
        (node("ReduceMean", "x", "y", axes=[1]), 13, [9000.0, 3000.0], 12000.0),
        (node("Mean", "x x x", "y"), 13, [4000.5, 1.0], 12001.5),
    ],
)
def test_values_that_grow_inside(tmp_path: Path, at: Any, opset: int, row: list[float], value: float) -> None:
    plan = _plan(tmp_path, at, {}, np.array([row], np.float32), opset=opset)
    (pin,) = plan.pins
    assert [f.value for f in pin.findings] == pytest.approx([value], rel=1e-5)
    assert [f.rule for f in pin.findings] == ["inner_value"]


def _scan(op: str, folder: Path, *batches: Array, **attributes: Any) -> tuple[Graph, RangeTable]:
    inputs, constants, opset = {
        "InstanceNormalization": ("x s b", FOUR, 17),
        "LayerNormalization": ("x s", {"s": FOUR["s"]}, 17),
        "GroupNormalization": ("x s b", FOUR, 21),
        "RMSNormalization": ("x s", {"s": FOUR["s"]}, 23),
        "CumSum": ("x axis", {"axis": np.asarray(1, np.int64)}, 14),
    }.get(op, ("x", {}, 13))
    model = make_model(
        [node(op, inputs, "y", **attributes)], {"x": [None] * batches[0].ndim}, "y", constants, opset
    )
    return scan(model, folder, *({"x": x} for x in batches))


def _find(
    op: str, folder: Path, *batches: Array, threshold: float = 10000.0, **attributes: Any
) -> list[Finding]:
    graph, ranges = _scan(op, folder, *batches, **attributes)
    return ask(find_large_inner_values, graph, ranges, PlanPolicy(threshold=threshold))


@pytest.mark.parametrize(
    ("op", "attributes", "x", "value", "text"),
    [
        (
            "LayerNormalization",
            {},
            floats(-50, -50, 50, 50)[None],
            2500,
            "the square of x - mean reaches 2500",
        ),
        ("LayerNormalization", {}, floats(-50, -50, 50, 50)[None], 10000, "the sum of squares reaches 10000"),
        ("LayerNormalization", {}, floats(9, 9, 9, 9)[None], 36, "the sum before it is divided reaches 36"),
        ("InstanceNormalization", {}, np.full((1, 4, 8), -9, np.float32), 72, "the sum before it is divided"),
        ("GroupNormalization", {"num_groups": 2}, np.full((1, 4, 8), 2, np.float32), 32, "the sum before"),
        ("MeanVarianceNormalization", {}, np.full((2, 1, 2, 2), 5, np.float32), 40, "the sum before"),
        ("RMSNormalization", {}, floats(1, 2, 3, 4)[None], 30, "the sum of squares reaches 30"),
        ("LpNormalization", {}, floats(1, 2, 3, -4)[None], 30, "the sum of squares reaches 30"),
        ("LpNormalization", {"p": 1}, floats(1, 2, 3, -4)[None], 10, "the sum of magnitudes reaches 10"),
        (
            "ReduceMean",
            {"axes": [1]},
            floats(8, 8, -4, 4)[None],
            16,
            "the sum before it is divided reaches 16",
        ),
        ("GlobalAveragePool", {}, np.full((1, 2, 3, 3), 4, np.float32), 36, "the sum before it is divided"),
        (
            "CumSum",
            {"exclusive": 1},
            floats(1, 2, 3, 4)[None],
            10,
            "the last sum, which is left out of the output,",
        ),
    ],
)
def test_a_measured_value_is_over_the_threshold_only_beyond_it(
    op: str, attributes: dict[str, Any], x: Array, value: float, text: str, tmp_path: Path
) -> None:
    below = float(np.nextafter(value, 0))
    (found,) = (
        one
        for one in _find(op, tmp_path, x, threshold=below, **attributes)
        if one.reason.startswith(f"inside, {text}")
    )
    assert (found.value, found.limit, found.severity) == (value, below, "high")
    assert found.reason.endswith(f", over the threshold of {below:g}")
    assert not any(text in one.reason for one in _find(op, tmp_path, x, threshold=value, **attributes))


@pytest.mark.parametrize(
    ("op", "attributes", "shape"),
    [
        ("ReduceMean", {"axes": [1]}, (1, 4)),
        ("ReduceSum", {}, (1, 4)),
        ("GlobalAveragePool", {}, (1, 1, 2, 2)),
    ],
)
def test_a_bound_is_held_against_fp16_itself(
    op: str, attributes: dict[str, Any], shape: tuple[int, ...], tmp_path: Path
) -> None:
    x = floats(16376, 16376, -16376, -16376).reshape(shape)
    assert not _find(op, tmp_path, x, threshold=1, **attributes)
    (found,) = _find(op, tmp_path, x * np.float32(1.001), threshold=1, **attributes)
    assert found.value == pytest.approx(65504 * 1.001, rel=1e-6)
    assert (found.limit, found.severity, found.action) == (65504, "low", "pin")
    assert found.reason == (
        "inside, the sum of magnitudes, which no partial sum exceeds, reaches 65569.5, over FP16's limit of 65504"
    )


def test_a_bound_says_nothing_beside_what_is_sure(tmp_path: Path) -> None:
    found = _find("ReduceMean", tmp_path, np.full((1, 10), 9000, np.float32), axes=[1])
    assert [(one.value, one.severity) for one in found] == [(90000, "high")]


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(
    ("most", "is_lost"), [(-65519.99, False), (-65520, True), (-1e9, True), (-np.finfo(np.float32).max, True)]
)
def test_the_limit_of_a_masked_row(op: str, most: float, is_lost: bool, tmp_path: Path) -> None:
    x = floats(1, 2, 3, most, most, most).reshape(2, 3)
    found = [one for one in _find(op, tmp_path, x) if "masked" in one.reason]
    assert [(one.value, one.limit) for one in found] == ([(x[1, 0], -65520)] if is_lost else [])
    assert all(one.reason.startswith("a row is masked as a whole: its largest element is -") for one in found)


def test_a_row_with_one_place_left_is_not_masked(tmp_path: Path) -> None:
    assert not _find("Softmax", tmp_path, floats(-1e9, 0, -65519, -1e9).reshape(2, 2))


def test_where_a_softmax_below_opset_13_reads_more_axes_they_are_one_row(tmp_path: Path) -> None:
    x = floats(-1e9, -1e9, 0, 0).reshape(1, 2, 2)
    for opset, count in ((11, 0), (13, 1)):
        model = make_model(
            [node("Softmax", "x", "y", axis=1 if opset == 11 else 2)], {"x": [1, 2, 2]}, "y", opset=opset
        )
        graph, ranges = scan(model, tmp_path, {"x": x})
        assert len(ask(find_large_inner_values, graph, ranges)) == count


def test_an_empty_row_is_not_masked(tmp_path: Path) -> None:
    empty, x = np.zeros((2, 0), np.float32), floats(-1, -2, -3, -4).reshape(2, 2)
    assert not _find("Softmax", tmp_path, x, empty, axis=1)


@pytest.mark.parametrize("op", ["LayerNormalization", "ReduceMean", "Softmax", "RMSNormalization"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_another_rules(op: str, bad: float, tmp_path: Path) -> None:
    good = floats(-90000, -90000, -90000, -89000)[None]
    assert _find(op, tmp_path, good)
    is_mask = op == "Softmax" and bad == -np.inf
    assert bool(_find(op, tmp_path, good, floats(-90000, -90000, bad, -89000)[None])) == is_mask


@pytest.mark.parametrize("masked", [0, 5, 40_000])
def test_a_sum_of_exponentials_is_told_beside_a_mask(masked: int, tmp_path: Path) -> None:
    scores = np.random.default_rng(4).normal(0, 0.01, (2, 70_000)).astype(np.float32)
    scores[:, :masked] = -np.inf
    (found,) = _find("Softmax", tmp_path, scores, axis=1)
    exact = np.exp(scores.astype(np.float64) - scores.max(1, keepdims=True)).sum(1).max()
    assert found.value == pytest.approx(exact, rel=1e-5)


def test_a_row_of_minus_infinity_alone_is_another_rules(tmp_path: Path) -> None:
    """FP32 has NaN of it too."""
    assert not _find("Softmax", tmp_path, floats(-np.inf, -np.inf, 1, 2).reshape(2, 2), axis=1)


def test_where_fp32_itself_overflows_the_input_tells_it(tmp_path: Path) -> None:
    """Squares of 1e30 are infinite in FP32."""
    found = _find("LpNormalization", tmp_path, floats(1e30, 1, 1, 1)[None])
    assert found == []
    graph, ranges = _scan("LpNormalization", tmp_path, floats(1e30, 1, 1, 1)[None])
    assert plan_precision(graph, ranges, PlanPolicy()).pinned == {"LpNormalization_y"}


def test_a_table_without_what_is_inside_has_no_finding(tmp_path: Path) -> None:
    graph, ranges = _scan("LayerNormalization", tmp_path, floats(1881, -1850, 3, -5)[None])
    assert not ask(find_large_inner_values, graph, replace(ranges, inner=()))


def test_an_excluded_node_is_left_and_told(tmp_path: Path) -> None:
    graph, ranges = _scan("LayerNormalization", tmp_path, floats(1881, -1850, 3, -5)[None])
    plan = plan_precision(graph, ranges, PlanPolicy(exclude_ops=("LayerNormalization",)))
    assert plan.pins == ()
    assert all(one.reason.endswith("; left in FP16 because you excluded it") for one in plan.considered)
    assert len(plan.considered) == 2


def test_the_reason_of_each_quantity_is_one_line(tmp_path: Path) -> None:
    nodes = [
        node("ReduceMean", "x", "a"),
        node("CumSum", "x axis", "b", exclusive=1),
        node("LpNormalization", "x", "c"),
    ]
    model = make_model(nodes, {"x": [1, 4]}, "a b c", {"axis": ints(1)})
    graph, ranges = scan(model, tmp_path, {"x": floats(9000, 9000, 9000, 9000)[None]})
    found = ask(find_large_inner_values, graph, ranges)
    assert [one.node for one in found] == ["ReduceMean_a", "CumSum_b", "LpNormalization_c"]
    for one in found:
        assert f"reaches {one.value:.6g}, over the threshold of 10000" in one.reason
        assert "\n" not in one.reason


@pytest.mark.parametrize(("value", "is_over"), [(5000, False), (5000.5, True)])
def test_an_output_of_one_number(value: float, is_over: bool, tmp_path: Path) -> None:
    """A mean over everything is 0-d; the threshold itself is within."""
    model = make_model([node("ReduceMean", "x", "y", keepdims=0)], {"x": [2]}, "y")
    graph, ranges = scan(model, tmp_path, {"x": floats(value, value)})
    found = ask(find_large_inner_values, graph, ranges)
    assert [(f.node, f.value) for f in found] == ([("ReduceMean_y", 2 * value)] if is_over else [])


@pytest.mark.parametrize(("value", "is_over"), [(10000, False), (10001, True)])
def test_an_input_of_one_number(value: float, is_over: bool, tmp_path: Path) -> None:
    """Its mean is itself, and so is the sum before it is divided."""
    model = make_model([node("ReduceMean", "x", "y")], {"x": []}, "y")
    graph, ranges = scan(model, tmp_path, {"x": np.asarray(value, np.float32)})
    found = ask(find_large_inner_values, graph, ranges)
    assert [(f.node, f.value) for f in found] == ([("ReduceMean_y", value)] if is_over else [])
