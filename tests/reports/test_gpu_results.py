"""The page of GPU results, from reports made by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gpu_results import Surroundings, format_results, format_table
from report_factories import ENGINE_FACTORIES, make_engine_report, make_preferred, make_uncompared

from overflow_fixer.records import FixReport

SURROUNDINGS = Surroundings(
    date="2025-01-31",
    engines="TensorRT 8.6.0 on NVIDIA H200",
    driver="580.65.06",
    cuda="13.0",
    python="3.10.14",
    packages={"overflow-fixer": "0.1.0", "numpy": "1.26.4"},
)


def _rows(report: FixReport) -> dict[str, str]:
    lines = format_table(report).splitlines()
    assert lines[:2] == ["| what | result |", "|---|---|"]
    cells = (line.removeprefix("| ").removesuffix(" |").partition(" | ")[::2] for line in lines[2:])
    return dict(cells)


def test_a_table_has_every_figure(tmp_path: Path) -> None:
    assert _rows(make_engine_report(tmp_path)) == {
        "nodes that compute floats": "6: 2 in FP16, 4 in FP32",
        "pins": "5: 2 honoured, 1 not visible, 1 no layer",
        "clamped masks": "1",
        "plain FP16": "**wrong**, 6000 of 6000 values do not match",
        "fixed": "right, SNR 55.5 dB",
        "FP32 engine, TF32 off": "right, SNR 55.5 dB",
        "naive FP16, p50 / p95": "0.812 / 0.901 ms",
        "fixed, p50 / p95": "1.015 / 1.120 ms",
        "FP32 (TF32), p50 / p95": "1.624 / 1.800 ms",
        "FP32 (no TF32), p50 / p95": "2.436 / 2.500 ms",
        "fixed, in FP32": "41 of 215 layers, 36% of the time",
        "fixed, in regions that show only their borders": "3 layers, 22% of the time",
        "fixed, layers that only convert": "19",
        "builds of the plan": "6 in 182.3 s, 1 rounds of repair",
        "the whole job": "2 s",
    }


def test_pins_that_do_not_hold_are_told(tmp_path: Path) -> None:
    rows = _rows(make_preferred(tmp_path))
    assert "2 not honoured" in rows["pins"]
    assert rows["fixed"].startswith("**wrong**")


def test_what_was_not_compared_is_not_measured(tmp_path: Path) -> None:
    rows = _rows(make_uncompared(tmp_path))
    assert {what for what, found in rows.items() if found == "not measured"} == {
        "plain FP16",
        "FP32 engine, TF32 off",
        *(f"{name}, p50 / p95" for name in ("naive FP16", "fixed", "FP32 (TF32)", "FP32 (no TF32)")),
    }
    assert rows["fixed, in FP32"].endswith("share of time not measured")


def test_the_page_names_its_machine_and_every_network(tmp_path: Path) -> None:
    reports = {make.__name__: make(tmp_path) for make in ENGINE_FACTORIES}
    page = format_results(SURROUNDINGS, reports)
    assert (
        "2025-01-31: TensorRT 8.6.0 on NVIDIA H200, driver 580.65.06 (CUDA 13.0), Python 3.10.14, "
        "overflow-fixer 0.1.0, numpy 1.26.4." in page
    )
    assert [line[3:] for line in page.splitlines() if line.startswith("## ")] == list(reports)
    assert page.count("|---|---|") == len(reports)
    assert page.endswith("|\n")


def test_a_report_without_an_engine_is_refused(tmp_path: Path) -> None:
    report = make_engine_report(tmp_path)
    with pytest.raises(AssertionError):
        format_table(replace(report, artifact=replace(report.artifact, engine=None)))
