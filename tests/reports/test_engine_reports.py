"""The contract of every renderer over every kind of engine report."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from report_factories import (
    BATCHES,
    ENGINE_FACTORIES,
    make_engine,
    make_engine_report,
    make_error,
    make_failing,
    make_passing,
    make_preferred,
    make_price,
    make_report,
    make_uncompared,
)

from overflow_fixer.records import (
    Engine,
    FixReport,
    Kept,
    Latency,
    OutputVerdict,
    PinOutcome,
    Verification,
)
from overflow_fixer.reports import RENDERERS, render_html, render_text
from overflow_fixer.reports.document import build_document
from overflow_fixer.reports.engine_wording import OPAQUE_NOTE, TRACE_NOTES
from overflow_fixer.reports.schemas import read_schema
from overflow_fixer.reports.terminal import print_document

TOLD_OF_EVERY_ENGINE = ("8.6.0", "NVIDIA H200", "9.0", "weak", "215", "41", "150", "19", "182.3")


def _words(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def _say(kind: str, report: FixReport) -> str:
    return _words(RENDERERS[kind](report))


def _change_engine(report: FixReport, **changes: Any) -> FixReport:
    return replace(report, artifact=replace(report.artifact, engine=make_engine(**changes)))


@pytest.mark.parametrize("kind", ["text", "html"])
def test_a_pin_that_is_not_visible_need_not_be_in_a_region(tmp_path: Path, kind: str) -> None:
    """By strong typing it may be in a layer that a cast was fused into, and there may be no region at all."""
    pins = (PinOutcome("/conv3/Conv", "not visible", ("conv3 + Cast",)),)
    report = _change_engine(make_engine_report(tmp_path), typing="strong", opaque_layers=0, pins=pins)
    assert "only its borders, or fused with a cast of the typed model" in _say(kind, report)


@pytest.mark.parametrize("make", ENGINE_FACTORIES)
@pytest.mark.parametrize("kind", RENDERERS)
def test_every_renderer_tells_of_every_engine(
    tmp_path: Path, kind: str, make: Callable[[Path], FixReport]
) -> None:
    report, text = make(tmp_path), _say(kind, make(tmp_path))
    engine = report.artifact.engine
    assert isinstance(engine, Engine)
    for word in (*TOLD_OF_EVERY_ENGINE, engine.constraints.upper() if kind == "text" else engine.constraints):
        assert word in text
    for kept in (*engine.skipped, *engine.dropped):
        assert kept.node in text
        assert kept.reason in text
    for pin in engine.pins:
        assert pin.state == "honoured" or pin.node in text
    for latency in report.price.latencies if report.price else ():
        assert latency.name in text
    for remark in report.price.remarks if report.price else ():
        assert remark in text


@pytest.mark.parametrize("make", ENGINE_FACTORIES)
def test_every_engine_report_obeys_the_schema(tmp_path: Path, make: Callable[[Path], FixReport]) -> None:
    validator = jsonschema.Draft202012Validator(read_schema("report.schema.json"))
    validator.validate(json.loads(RENDERERS["json"](make(tmp_path))))


@pytest.mark.parametrize("make", ENGINE_FACTORIES)
def test_every_engine_report_fits_80_columns(tmp_path: Path, make: Callable[[Path], FixReport]) -> None:
    assert max(map(len, print_document(build_document(make(tmp_path)), 80).splitlines())) <= 80


def test_all_warnings_are_in_json_and_three_on_the_terminal(tmp_path: Path) -> None:
    long = "x" * 5000
    report = _change_engine(make_engine_report(tmp_path), warnings=(long, *make_engine().warnings))
    assert json.loads(RENDERERS["json"](report))["engine"]["warnings"][0] == long
    assert len(json.loads(RENDERERS["json"](report))["engine"]["warnings"]) == 8
    text = render_text(report)
    assert text.count("have been clamped") == 2
    assert "8 warnings of the build:" in text
    assert "8 warnings of the build" in RENDERERS["html"](report)
    assert "and 5 more warnings: see report.json" in text
    assert text.count("x") < 400


@pytest.mark.parametrize("kind", ["text", "html"])
def test_pins_that_may_have_been_ignored_are_told_at_the_top(tmp_path: Path, kind: str) -> None:
    preferred, obeyed = _say(kind, make_preferred(tmp_path)), _say(kind, make_engine_report(tmp_path))
    assert "LAST RESORT: " in preferred
    assert preferred.index("LAST RESORT: ") < preferred.index("Pinned to FP32")
    assert "a LAST RESORT: the builder may have ignored pins" in preferred
    assert "LAST RESORT" not in obeyed


@pytest.mark.parametrize("kind", ["text", "html"])
def test_pins_that_do_not_hold_are_counted_and_named(tmp_path: Path, kind: str) -> None:
    text = _say(kind, make_preferred(tmp_path))
    assert "1 honoured, 2 NOT honoured, 1 dropped, 1 not reported" in text
    named = {
        "text": (
            "NOT honoured: /conv3, in /conv3 + /relu3",
            "NOT honoured: /relu3, in",
            "by the engine: /scale",
        ),
        "html": ("not honoured: /conv3 , /relu3", "dropped: /transpose", "not reported: /scale"),
    }
    assert all(said in text for said in named[kind])
    everything = _say(kind, make_engine_report(tmp_path))
    assert "2 honoured, 1 not visible, 1 without a layer, 1 dropped" in everything
    assert "all honoured" in _say(kind, make_uncompared(tmp_path))


def test_more_broken_pins_than_fit_are_counted(tmp_path: Path) -> None:
    pins = tuple(PinOutcome(f"/n{i}", "not honoured", ("a", "b", "c", "d")) for i in range(14))
    text = render_text(_change_engine(make_engine_report(tmp_path), pins=pins))
    assert text.count("NOT honoured: /n") == 10
    assert "and 4 more pins: see report.json" in text
    assert "NOT honoured: /n0, in a, b, c and 1 more" in text


def test_the_types_of_a_strongly_typed_engine_come_from_the_model(tmp_path: Path) -> None:
    for kind in ("text", "html"):
        text = _say(kind, _change_engine(make_engine_report(tmp_path), typing="strong", constraints="none"))
        assert "by the model's own types (strong typing)" in text
    untouched = _change_engine(make_engine_report(tmp_path), constraints="none")
    assert "nothing to enforce" in render_text(untouched)


@pytest.mark.parametrize("kind", ["text", "html"])
def test_what_was_asked_is_not_told_as_seen(tmp_path: Path, kind: str) -> None:
    assert OPAQUE_NOTE in _say(kind, make_engine_report(tmp_path))
    assert OPAQUE_NOTE not in _say(kind, _change_engine(make_engine_report(tmp_path), opaque_layers=0))
    assert OPAQUE_NOTE not in _say(kind, make_report(tmp_path))


@pytest.mark.parametrize("kind", ["text", "html"])
def test_a_trace_of_an_engine_says_that_it_comes_from_another(tmp_path: Path, kind: str) -> None:
    report = make_engine_report(tmp_path)
    assert report.naive is not None
    for source in ("simulation", "marked engine"):
        traced = replace(report, naive=replace(report.naive, traced_in=source))
        assert TRACE_NOTES[source] in _say(kind, traced)
    said = _say(kind, make_uncompared(tmp_path)) + _say(kind, make_report(tmp_path))
    assert not any(text in said for text in TRACE_NOTES.values() if text)


@pytest.mark.parametrize("kind", ["text", "html"])
def test_nothing_is_told_of_plain_fp16_that_was_not_compared(tmp_path: Path, kind: str) -> None:
    for make in (make_uncompared, lambda folder: make_report(folder, naive=None)):
        text = _say(kind, make(tmp_path))
        assert "WRONG" not in text
        assert "plain FP16 was not compared" in text
        assert "not compared" in text[text.index("First tensor to go wrong") :]
    assert "FIXED" not in text


def test_before_is_not_compared_on_the_terminal(tmp_path: Path) -> None:
    lines = [line.split() for line in render_text(make_uncompared(tmp_path)).splitlines()]
    assert ["before:", "not", "compared"] in lines
    assert ["logits", "0", "0", "0.0123", "55.5", "ok"] in lines


def test_ratios_are_against_the_fixed_engine(tmp_path: Path) -> None:
    price = build_document(make_engine_report(tmp_path))["price"]
    assert [found["p50_ratio"] for found in price["latencies"]] == pytest.approx([0.8, 1.0, 1.6, 2.4])
    assert price["batch"] == BATCHES[0]


@pytest.mark.parametrize("fixed_ms", [None, math.nan, 0.0])
def test_a_ratio_against_nothing_is_not_a_number(tmp_path: Path, fixed_ms: float | None) -> None:
    fixed = () if fixed_ms is None else (Latency("fixed", fixed_ms, 1.0, 5),)
    price = make_price(latencies=(*fixed, Latency("naive FP16", 1.0, 2.0, 5)))
    report = make_engine_report(tmp_path, price=price)
    assert build_document(report)["price"]["latencies"][-1]["p50_ratio"] == "NaN"
    assert "n/a" in render_text(report)


def test_the_price_is_a_table_on_the_terminal(tmp_path: Path) -> None:
    lines = [" ".join(line.split()) for line in render_text(make_engine_report(tmp_path)).splitlines()]
    assert "naive FP16 0.812 0.901 0.80x 200" in lines
    assert "FP32 (no TF32) 2.436 2.500 2.40x 200" in lines
    assert "fixed, in FP32: 41 of 215 layers (19.1 %), 35.7 % of the time" in lines
    assert "fixed, in opaque regions: 21.5 % of the time" in lines


@pytest.mark.parametrize("kind", ["text", "html"])
def test_a_price_that_was_not_measured_is_not_told(tmp_path: Path, kind: str) -> None:
    assert "not measured" in _say(kind, make_uncompared(tmp_path)).lower()
    half = make_engine_report(tmp_path, price=make_price(fp32_time_share=math.nan))
    assert "share of time not measured" in _say(kind, half)
    assert "Price" not in _say(kind, make_report(tmp_path))


@pytest.mark.parametrize("kind", ["text", "html"])
def test_tensorrt_wrong_in_fp32_is_told_loudly(tmp_path: Path, kind: str) -> None:
    wrong = _say(kind, make_preferred(tmp_path))
    assert "TENSORRT FAULT: TensorRT's own FP32 engine (TF32 off) is wrong on this model: boxes: " in wrong
    assert "So the error is a TensorRT fault, and not (only) an overflow." in wrong
    right = _say(kind, make_engine_report(tmp_path))
    assert "TensorRT's own FP32 engine agrees: 55.5 dB" in right
    assert "FAULT" not in right
    assert "FP32 engine" not in _say(kind, make_uncompared(tmp_path))


def test_a_wrong_fp32_engine_is_told_even_where_the_fix_passes(tmp_path: Path) -> None:
    text = render_text(make_engine_report(tmp_path, fp32_engine=make_failing("boxes")))
    assert text.startswith("FIXED and verified")
    assert "TENSORRT FAULT" in text


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        (Verification((), 0), "TensorRT's own FP32 engine: nothing was compared"),
        (replace(make_passing("y"), batch_count=0), "TensorRT's own FP32 engine: nothing was compared"),
        (
            Verification(
                (OutputVerdict(make_error("y", math.inf, worst_batch_snr_db=math.inf), True, ""),), 1
            ),
            "TensorRT's own FP32 engine agrees: inf dB",
        ),
        (
            Verification((OutputVerdict(make_error("y", 62.5, worst_batch_snr_db=31.5), True, ""),), 2),
            "TensorRT's own FP32 engine agrees: 31.5 dB",
        ),
        (
            Verification((OutputVerdict(make_error("y", math.nan, is_float=False), True, ""),), 1),
            "TensorRT's own FP32 engine agrees: 99.8 % equal",
        ),
    ],
)
def test_what_an_fp32_engine_says_for_itself(tmp_path: Path, reference: Verification, said: str) -> None:
    text = render_text(make_engine_report(tmp_path, fp32_engine=reference))
    assert said in text
    assert "FAULT" not in text


def test_no_engine_is_no_section(tmp_path: Path) -> None:
    document = build_document(make_report(tmp_path))
    assert document["engine"] is None
    assert document["price"] is None
    assert "TensorRT" not in render_text(make_report(tmp_path))
    assert "TensorRT" not in render_html(make_report(tmp_path))


def test_an_engine_without_pins_proves_none(tmp_path: Path) -> None:
    bare = make_engine(pins=(), skipped=(), dropped=(), warnings=(), constraints="none")
    report = make_report(tmp_path)
    report = replace(
        report,
        plan=replace(report.plan, pins=()),
        artifact=replace(report.artifact, engine=bare),
    )
    text = render_text(report)
    assert "Pinned to FP32: 0 nodes\n" in text
    assert "Proof" not in text + render_html(report)
    assert "honoured" not in text


def test_layers_of_no_float_type_are_counted_as_others(tmp_path: Path) -> None:
    report = make_engine_report(tmp_path)
    assert "215 layers: 41 FP32, 150 FP16, 19 reformat, 3 opaque, 2 other" in render_text(report)
    assert "19 reformat, 3 opaque\n" in render_text(_change_engine(report, layers=213))


@pytest.mark.parametrize("kind", ["text", "html"])
def test_layers_in_tf32_are_told(kind: str, tmp_path: Path) -> None:
    report = make_engine_report(tmp_path)
    assert "41 FP32 (7 of all in TF32), 150 FP16" in _say(kind, _change_engine(report, tf32_layers=7))
    assert "41 FP32, 150 FP16" in _say(kind, report)


@pytest.mark.parametrize("tf32", [True, False])
def test_whether_layers_may_run_in_tf32_is_told(tf32: bool, tmp_path: Path) -> None:
    report = _change_engine(make_engine_report(tmp_path), tf32=tf32)
    assert build_document(report)["engine"]["tf32"] is tf32


def test_the_share_of_an_engine_without_layers_is_not_a_number(tmp_path: Path) -> None:
    report = _change_engine(make_engine_report(tmp_path), layers=0, fp32_layers=0)
    assert build_document(report)["engine"]["fp32_layer_share"] == "NaN"


def test_a_skipped_layer_is_not_lost_among_many(tmp_path: Path) -> None:
    skipped = tuple(Kept(f"/s{i}", "Shape", "integers") for i in range(12))
    text = render_text(_change_engine(make_engine_report(tmp_path), skipped=skipped))
    assert "12 layers skipped" in text
    assert "and 9 more layers: see report.json" in text
