from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import InMemoryCalibration, floats, make_model, node, save

from overflow_fixer import (
    collect_ranges,
    emit,
    load_plan,
    load_ranges,
    merge_ranges,
    open_reference,
    plan_precision,
    save_plan,
    verify,
)
from overflow_fixer.config import FixConfig
from overflow_fixer.errors import CalibrationError, ConfigError
from overflow_fixer.graph.model import Graph
from overflow_fixer.records import PlanPolicy, PrecisionPlan, Tolerance

NOTHING = math.nan, math.inf, -math.inf, "1", None


@pytest.mark.parametrize("value", [*NOTHING, -1, 0, 65505, 1e9, True, 10**400])
def test_a_threshold_that_the_config_refuses_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^PlanPolicy\.threshold is .* above 0 and at most 65504\. Give"):
        PlanPolicy(threshold=value)
    with pytest.raises(ValueError, match="threshold"):
        FixConfig(model="m", calib="random", plan={"threshold": value})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("masks", "never", "'never'. Expected one of 'auto', 'pin', 'clamp'."),
        ("accumulators", None, "None. Expected one of 'pin', 'report', 'off'."),
        ("include_ops", "Mul", "the text 'Mul'. Expected a tuple of texts. Give ('Mul',)."),
        ("exclude_nodes", "", "the text ''. Expected"),
    ],
)
def test_another_word_or_a_text_for_several_is_refused(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PlanPolicy(**{name: value})
    assert f"PlanPolicy.{name} is {expected}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("min_snr_db", NOTHING),
        ("min_agreement", (*NOTHING, -0.1, 1.1)),
        ("max_abs_error", (*NOTHING, -1e-9)),
        ("parts", ("y[0]",)),
    ],
)
def test_a_tolerance_that_the_config_refuses_is_refused(name: str, values: tuple[Any, ...]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=rf"^Tolerance\.{name} is "):
            Tolerance(**{name: value})
        with pytest.raises(ValueError, match=name):
            FixConfig(model="m", calib="random", verify={name: value})


def test_the_output_whose_tolerance_is_no_number_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"Tolerance\.per_output\['z'\] is nan\. Expected a finite number\. Give"
    ):
        Tolerance(per_output={"y": 40, "z": math.nan})


def test_numpys_numbers_and_all_that_the_config_takes_are_taken() -> None:
    assert PlanPolicy(threshold=np.float32(65504)).threshold == PlanPolicy(threshold=65504).threshold
    Tolerance(min_snr_db=-5, min_agreement=np.float64(1), max_abs_error=0, per_output={"y": -99.5})


@pytest.fixture
def graph(tmp_path: Path) -> Graph:
    return save(make_model([node("Mul", "x x", "y")], {"x": [2]}, "y"), tmp_path)


def test_a_stage_takes_text_for_a_path(graph: Graph, tmp_path: Path) -> None:
    stores = [tmp_path / f"{name}.h5" for name in "ab"]
    for name, store in zip("ab", stores, strict=True):
        batches = InMemoryCalibration(({"x": floats(1, ord(name))},), name, fingerprint=name)
        ranges = collect_ranges(graph, batches, store=str(store))
    merged = merge_ranges([str(store) for store in stores], str(tmp_path / "merged.h5"))
    assert load_ranges(str(tmp_path / "merged.h5")).batch_names == merged.batch_names
    plan = plan_precision(graph, ranges, PlanPolicy())
    save_plan(plan, str(tmp_path / "plan.json"))
    assert load_plan(str(tmp_path / "plan.json")) == plan
    artifact = emit(graph, plan, str(tmp_path / "m.fp16.onnx"))
    assert artifact.files == (tmp_path / "m.fp16.onnx",)


@pytest.mark.parametrize("name", ["observe", "provider", "small_values", "existing"])
def test_a_scan_refuses_another_word(name: str, graph: Graph) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is 'bogus'\. Expected one of '"):
        collect_ranges(graph, InMemoryCalibration(()), **{name: "bogus"})


def test_other_stages_refuse_another_word(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"existing is 'bogus'\. Expected one of 'keep', 'renew', 'replace', 'overwrite'"
    ):
        merge_ranges([], existing="bogus")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="io_types is 'bogus'"):
        emit(graph, PrecisionPlan(graph.sha256, 1.0, ()), tmp_path / "m", io_types="bogus")  # type: ignore[arg-type]


def test_stages_refuse_batches_that_are_none(graph: Graph) -> None:
    feeds = {"x": floats(1, 2)}
    with pytest.raises(CalibrationError, match="are a list, without source"):
        collect_ranges(graph, [feeds])  # type: ignore[arg-type]
    runner = open_reference(graph)
    with pytest.raises(CalibrationError, match="gave a dict as a batch"):
        verify(runner, runner, [feeds], Tolerance())  # type: ignore[list-item]
