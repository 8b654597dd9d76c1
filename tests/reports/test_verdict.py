from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from report_factories import (
    LONG,
    make_engine_report,
    make_error,
    make_failed,
    make_failing,
    make_hostile,
    make_passing,
    make_pin,
    make_plan,
    make_preferred,
    make_range,
    make_report,
    make_table,
    make_uncompared,
    make_untouched,
)

from overflow_fixer.records import Clamp, FixReport, OutputVerdict, PrecisionPlan, TensorError, Verification
from overflow_fixer.reports.verdict import judge, select_over_threshold, warn_of_random


def test_fixed(tmp_path: Path) -> None:
    verdict = judge(make_report(tmp_path))
    assert (verdict.status, verdict.passed) == ("fixed", True)
    assert verdict.sentence == (
        "FIXED and verified: 2 outputs within tolerance of FP32 on 3 batches. "
        "3 nodes pinned to FP32, 1 constant clamped; plain FP16 fails."
    )


def test_no_fix_needed(tmp_path: Path) -> None:
    verdict = judge(make_untouched(tmp_path))
    assert (verdict.status, verdict.passed) == ("no_fix_needed", True)
    assert verdict.sentence.startswith("FP16 needs no fix: 1 output within tolerance of FP32 on 3 batches.")
    assert "0 nodes pinned to FP32" in verdict.sentence


def test_fp16_is_not_said_to_be_fine_where_a_tensor_is_over_the_threshold(tmp_path: Path) -> None:
    report = make_untouched(tmp_path, ranges=make_table(make_range("big", 20000.0)))
    verdict = judge(report)
    assert verdict.status == "nothing_pinned"
    assert "needs no fix" not in verdict.sentence
    assert verdict.sentence.endswith("though 1 tensor went over the threshold.")


def test_of_a_tensor_that_holds_nan_alone_it_is_not_said_that_it_went_over_the_threshold(
    tmp_path: Path,
) -> None:
    none = make_range("none", math.nan, nan_count=1)
    sentence = judge(make_untouched(tmp_path, ranges=make_table(none))).sentence
    assert sentence.endswith("though 1 tensor held NaN.")
    both = make_table(none, make_range("big", 20000.0))
    sentence = judge(make_untouched(tmp_path, ranges=both)).sentence
    assert sentence.endswith("though 1 tensor went over the threshold and 1 tensor held NaN.")


def test_where_tensors_were_looked_at_is_said_where_that_is_not_what_was_verified_on(tmp_path: Path) -> None:
    untouched = make_untouched(tmp_path)
    for found, end in (
        (20000.0, "though 1 tensor went over the threshold"),
        (2.0, "no tensor went over the threshold"),
    ):
        report = replace(untouched, ranges=make_table(make_range("t", found)))
        assert end in judge(report).sentence
        assert "scanned" not in judge(report).sentence
        elsewhere = judge(replace(report, calibration="other")).sentence
        assert f"{end} in the data that were scanned" in elsewhere


@pytest.mark.parametrize(
    "plan", [make_plan(make_pin("/a")), make_plan(clamps=(Clamp("mask", 65504.0, "why"),))]
)
def test_a_plan_that_plain_fp16_did_not_need_is_said_to_be_so(tmp_path: Path, plan: PrecisionPlan) -> None:
    verdict = judge(make_untouched(tmp_path, plan=plan))
    assert verdict.status == "fixed"
    assert "plain FP16 passes too on this data" in verdict.sentence


def test_what_the_backend_kept_is_named_where_nothing_is_pinned(tmp_path: Path) -> None:
    verdict = judge(make_untouched(tmp_path, naive=make_failing("logits")))
    assert verdict.status == "fixed"
    assert "0 nodes pinned to FP32, 1 kept in FP32 by the backend; plain FP16 fails" in verdict.sentence


@pytest.mark.parametrize(("fp16", "is_said"), [((), True), (("/a",), False)])
def test_what_is_simply_fp32_is_said_to_be_so(tmp_path: Path, fp16: tuple[str, ...], is_said: bool) -> None:
    report = make_report(tmp_path)
    report = replace(report, artifact=replace(report.artifact, fp16_nodes=fp16, fp32_nodes=("/b",)))
    assert ("none runs in FP16" in judge(report).sentence) == is_said


def test_not_verified_says_which_output_and_why(tmp_path: Path) -> None:
    verdict = judge(make_failed(tmp_path))
    assert (verdict.status, verdict.passed) == ("not_verified", False)
    assert verdict.sentence == (
        "NOT verified: 1 of 2 outputs wrong: logits: 3000 of 3000 elements are NaN or Inf where FP32 is finite."
    )


def test_a_plan_that_makes_it_worse_is_said_to(tmp_path: Path) -> None:
    verdict = judge(make_failed(tmp_path, naive=make_passing("logits")))
    assert "plain FP16 passes, so this plan makes it worse" in verdict.sentence


@pytest.mark.parametrize("empty", [Verification((), 3), replace(make_passing("logits"), batch_count=0)])
def test_nothing_compared_is_nothing_proved(tmp_path: Path, empty: Verification) -> None:
    verdict = judge(make_report(tmp_path, fixed=empty))
    assert (verdict.status, verdict.passed) == ("not_verified", False)
    assert "nothing is proved" in verdict.sentence


def test_random_data_stands_in_the_verdict(tmp_path: Path) -> None:
    sentence = judge(make_report(tmp_path, synthetic=True)).sentence
    assert sentence.startswith("FIXED and verified, but on random data only: ")


@pytest.mark.parametrize(
    ("verified", "scanned", "told"),
    [
        (False, False, None),
        (True, True, "made up at random, not taken from real inputs"),
        (True, False, "made from ranges of other data, and verified on random data"),
        (False, True, "made from ranges of random data, and verified on other data"),
    ],
)
def test_random_data_are_warned_of_by_what_was_done_with_them(
    verified: bool, scanned: bool, told: str | None, tmp_path: Path
) -> None:
    report = make_report(tmp_path, synthetic=verified)
    warning = warn_of_random(replace(report, ranges=replace(report.ranges, synthetic=scanned)))
    assert (warning is None) == (told is None)
    assert (told or "") in (warning or "")


def test_tensors_over_the_threshold_stand_in_order_of_headroom_nan_alone_first(tmp_path: Path) -> None:
    nothing = make_range("nothing", math.nan, nan_count=4096)
    rows = [
        make_range("b", 20000.0),
        make_range("a", 20000.0),
        make_range("small"),
        make_range("most", 1e6),
        nothing,
    ]
    report = make_report(tmp_path, ranges=make_table(*rows))
    assert [found.tensor for found in select_over_threshold(report)] == ["nothing", "most", "a", "b"]


def test_outputs_without_an_element_prove_nothing(tmp_path: Path) -> None:
    outputs = (OutputVerdict(make_error("logits", element_count=0), True, ""),)
    verdict = judge(make_report(tmp_path, fixed=Verification(outputs, 3)))
    assert (verdict.status, verdict.passed) == ("not_verified", False)
    assert "every output was empty in every batch" in verdict.sentence


def test_outputs_without_an_element_are_not_counted_as_within_tolerance(tmp_path: Path) -> None:
    empty = [make_error(name, element_count=0) for name in ("y", "eq")]
    parts = [make_error("boxes", part="[:, 4:]", element_count=count) for count in (0, 9)]

    def say(*errors: TensorError) -> str:
        outputs = tuple(OutputVerdict(error, True, "") for error in (make_error("so"), *errors))
        return judge(make_report(tmp_path, fixed=Verification(outputs, 3))).sentence.split(". ")[0]

    start, end = "FIXED and verified: 1 output", "within tolerance of FP32 on 3 batches"
    assert say(*empty) == f"{start} {end}, 2 outputs had nothing to compare"
    assert say(*parts) == f"{start} and 1 part {end}, 1 part had nothing to compare"


@pytest.mark.parametrize("make", [make_report, make_untouched, make_failed])
def test_nothing_is_claimed_of_plain_fp16_where_it_was_not_compared(
    tmp_path: Path, make: Callable[..., FixReport]
) -> None:
    sentence = judge(make(tmp_path, naive=None)).sentence
    for claim in ("plain FP16 passes", "plain FP16 fails", "FIXED", "needs no fix", "worse"):
        assert claim not in sentence


def test_a_plan_that_was_not_held_against_plain_fp16_is_verified_and_no_more(tmp_path: Path) -> None:
    verdict = judge(make_report(tmp_path, naive=None))
    assert (verdict.status, verdict.passed) == ("fixed", True)
    assert verdict.sentence == (
        "VERIFIED: 2 outputs within tolerance of FP32 on 3 batches. "
        "3 nodes pinned to FP32, 1 constant clamped; plain FP16 was not compared."
    )
    verdict = judge(make_untouched(tmp_path, naive=None))
    assert (verdict.status, verdict.passed) == ("nothing_pinned", True)
    assert verdict.sentence.endswith("plain FP16 was not compared.")


def test_a_pin_of_an_engine_counts_by_what_became_of_it(tmp_path: Path) -> None:
    sentence = judge(make_engine_report(tmp_path)).sentence
    assert (
        "5 nodes pinned to FP32 (2 honoured, 1 not visible, 1 without a layer, 1 dropped), 1 constant"
        in sentence
    )
    assert "2 nodes pinned to FP32 (all honoured)" in judge(make_uncompared(tmp_path)).sentence


def test_pins_that_were_only_preferred_are_said_to_be_so(tmp_path: Path) -> None:
    sentence = judge(make_preferred(tmp_path, fixed=make_passing("logits"))).sentence
    assert "2 NOT honoured" in sentence
    assert "which TensorRT was only asked to prefer" in sentence


def test_a_fault_of_tensorrt_stands_in_the_verdict(tmp_path: Path) -> None:
    assert "TensorRT's own FP32 engine is wrong too" in judge(make_preferred(tmp_path)).sentence
    without = judge(make_preferred(tmp_path, fp32_engine=make_passing("logits"))).sentence
    assert "FP32 engine" not in without


def test_a_long_name_does_not_swallow_the_verdict(tmp_path: Path) -> None:
    sentence = judge(make_hostile(tmp_path, LONG)).sentence
    assert LONG not in sentence
    assert len(sentence) < 200
