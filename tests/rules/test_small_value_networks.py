"""The rules about small values and integers, each held against FP16 as hardware stores it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import ask, scan
from small_value_networks import NETWORKS, Network, healthy_networks, relative_positions, rotary_positions

from overflow_fixer import FixConfig, fix
from overflow_fixer.planning.plan import plan_precision
from overflow_fixer.records import FixReport, PlanPolicy, Verification
from overflow_fixer.rules import DEFAULT_RULES

RULES = """vanishing_constant vanishing_divisor vanishing_output small_value lost_integer lost_box
lost_difference lost_phase""".split()
OTHERS = {name: rule for name, rule in DEFAULT_RULES.items() if name not in RULES}
HEALTHY = list(healthy_networks())


@pytest.mark.parametrize("name", NETWORKS)
def test_plain_fp16_is_wrong_and_the_plan_right(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]()
    report = _fix(network.model, network.feeds, tmp_path)
    assert report.naive is not None
    assert not report.naive.passed
    assert _is_broken(report.naive)
    assert report.fixed.passed
    assert _snr_db(report.fixed) > 60
    assert tuple(pin.node for pin in report.plan.pins) == network.pins
    rules = [{finding.rule for finding in pin.findings} for pin in report.plan.pins]
    assert all(network.rule in each and each <= set(RULES) for each in rules)


@pytest.mark.parametrize("name", NETWORKS)
def test_no_other_rule_sees_it(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]()
    graph, ranges = scan(network.model, tmp_path, *network.feeds)
    assert plan_precision(graph, ranges, PlanPolicy(), OTHERS).pins == ()


@pytest.mark.parametrize(("name", "model", "feeds"), HEALTHY, ids=[name for name, *_ in HEALTHY])
def test_nothing_is_found_where_fp16_does_well(
    name: str, model: onnx.ModelProto, feeds: Mapping[str, Any], tmp_path: Path
) -> None:
    graph, ranges = scan(model, tmp_path, feeds)
    assert [found for rule in RULES for found in ask(DEFAULT_RULES[rule], graph, ranges)] == []
    report = _fix(model, (feeds,), tmp_path)
    assert report.naive is not None
    assert _snr_db(report.naive) > 30


@pytest.mark.parametrize("network", [rotary_positions(101), relative_positions(2048 - 255)])
def test_the_same_networks_with_smaller_numbers_are_healthy(network: Network, tmp_path: Path) -> None:
    report = _fix(network.model, network.feeds, tmp_path)
    assert report.plan.pins == ()
    assert report.fixed.passed


def _fix(model: onnx.ModelProto, feeds: tuple[Mapping[str, Any], ...], folder: Path) -> FixReport:
    """The main job without repair, so that what passes is what the rules planned."""
    data = folder / "data"
    data.mkdir()
    onnx.save(model, folder / "model.onnx")
    for index, batch in enumerate(feeds):
        np.savez(data / f"{index}.npz", **batch)
    out = folder / "out"
    options = {"build": {"backend": "onnx"}, "repair": {"max_rounds": 0}}
    return fix(
        FixConfig.model_validate({"model": folder / "model.onnx", "calib": data, "out": out, **options})
    )


def _snr_db(verification: Verification) -> float:
    return min(verdict.error.snr_db for verdict in verification.outputs)


def _is_broken(verification: Verification) -> bool:
    """Whether values are not finite any more, or noise takes a tenth of the signal and more."""
    return any(v.error.mismatched or v.error.snr_db < 20 for v in verification.outputs)
