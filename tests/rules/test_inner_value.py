"""Findings about values inside nodes: what is over a limit, what is protected, and what tells nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, make_model, node, save

from overflow_fixer.backends.tensorrt.protection import protected_by
from overflow_fixer.planning import plan_precision
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import Array, PlanPolicy, PrecisionPlan

ONES, ZEROS = np.ones(8, np.float32), np.zeros(8, np.float32)
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


@pytest.mark.parametrize(
    ("version", "typing", "operators"),
    [
        ("8.5.3", "weak", set()),
        ("8.6.0", "weak", {"LayerNormalization", "GroupNormalization"}),
        ("10.0.1", "weak", {"LayerNormalization", "GroupNormalization", "InstanceNormalization"}),
        ("10.12.0", "strong", set()),
    ],
)
def test_what_tensorrt_protects(version: str, typing: Any, operators: set[str]) -> None:
    assert set(protected_by(version, typing)) == operators


def test_what_is_protected_is_told_and_not_pinned(tmp_path: Path) -> None:
    plan = _plan(tmp_path, *NORM, _spread(1881), protected=protected_by("8.6.0", "weak"))
    assert not plan.pins
    assert {f.action for f in plan.considered} == {"protected"}
    assert all("INormalizationLayer" in f.reason for f in plan.considered)


def test_a_large_tensor_pins_even_what_is_protected(tmp_path: Path) -> None:
    plan = _plan(tmp_path, *NORM, _spread(30000), protected=protected_by("8.6.0", "weak"))
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
        (node("Mean", "x x x", "y"), 13, [4000.0, 1.0], 12000.0),
    ],
)
def test_values_that_grow_inside(tmp_path: Path, at: Any, opset: int, row: list[float], value: float) -> None:
    plan = _plan(tmp_path, at, {}, np.array([row], np.float32), opset=opset)
    (pin,) = plan.pins
    assert [f.value for f in pin.findings] == pytest.approx([value], rel=1e-5)
    assert [f.rule for f in pin.findings] == ["inner_value"]
