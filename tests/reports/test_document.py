from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from pathlib import Path

import pytest
from report_factories import (
    BATCHES,
    make_engine_report,
    make_error,
    make_fused,
    make_lost,
    make_passing,
    make_range,
    make_report,
    make_table,
)

from overflow_fixer import records
from overflow_fixer.reports.document import build_document

LEFT_OUT = {
    records.Range: {"min_nonzero_abs", "worst_batch"},
    records.TensorError: {"log_energy", "other_shape"},
    records.Verification: {"trace"},
    records.PrecisionPlan: {"model_sha256", "threshold"},
    records.Engine: {"movement_is_free"},
}


@pytest.mark.parametrize(
    ("record", "place"),
    [
        (records.Range, ("ranges", "over_threshold", 0)),
        (records.Finding, ("plan", "pins", 0, "findings", 0)),
        (records.Pin, ("plan", "pins", 0)),
        (records.Clamp, ("plan", "clamps", 0)),
        (records.PrecisionPlan, ("plan",)),
        (records.Kept, ("kept_in_fp32", 0)),
        (records.Tolerance, ("tolerance",)),
        (records.TensorError, ("verification", "naive", "first_wrong")),
        (records.OutputVerdict, ("verification", "fixed", "outputs", 0)),
        (records.Verification, ("verification", "fixed")),
        (records.RepairRound, ("repair_rounds", 0)),
        (records.Share, ("share",)),
        (records.Engine, ("engine",)),
        (records.PinOutcome, ("engine", "pins", 0)),
        (records.Price, ("price",)),
        (records.Latency, ("price", "latencies", 0)),
    ],
)
def test_no_field_of_a_record_is_lost(tmp_path: Path, record: type, place: tuple[str | int, ...]) -> None:
    entry = build_document(make_engine_report(tmp_path))
    for step in place:
        entry = entry[step]
    names = {field.name for field in dataclasses.fields(record)} - LEFT_OUT.get(record, set())
    assert names <= set(entry)


def test_tensors_over_the_threshold_name_the_batch_and_come_lowest_headroom_first(tmp_path: Path) -> None:
    ranges = build_document(make_report(tmp_path))["ranges"]
    assert [(r["tensor"], r["batch"]) for r in ranges["over_threshold"]] == [
        ("mask", BATCHES[0]),
        ("/conv3/out", BATCHES[1]),
        ("/relu3/out", BATCHES[1]),
    ]
    assert ranges["tensor_count"] == 4
    assert ranges["file"] == str(tmp_path / "ranges.h5")


def test_a_tensor_of_nan_alone_comes_first_and_claims_no_headroom(tmp_path: Path) -> None:
    first, second = build_document(make_lost(tmp_path))["ranges"]["over_threshold"]
    assert (first["tensor"], first["headroom_bits"], first["batch"]) == ("all_nan", "NaN", None)
    assert (second["tensor"], second["headroom_bits"]) == ("inf", "-Infinity")


def test_a_nan_beside_small_values_is_listed(tmp_path: Path) -> None:
    table = make_table(make_range("small", 1.0, nan_count=1), make_range("fine", 1.0))
    over = build_document(make_report(tmp_path, ranges=table))["ranges"]["over_threshold"]
    assert [r["tensor"] for r in over] == ["small"]


def test_the_threshold_itself_is_not_over_it(tmp_path: Path) -> None:
    table = make_table(make_range("at", 10000.0), make_range("over", math.nextafter(10000.0, math.inf)))
    over = build_document(make_report(tmp_path, ranges=table))["ranges"]["over_threshold"]
    assert [r["tensor"] for r in over] == ["over"]


def test_sizes_are_those_on_disk(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"12345")
    sizes = {Path(f["path"]).name: f["size_bytes"] for f in build_document(make_report(tmp_path))["files"]}
    assert sizes == {"ranges.h5": None, "plan.json": 5, "model.fp16.onnx": None}


def test_shares_are_ratios(tmp_path: Path) -> None:
    share = build_document(make_report(tmp_path))["share"]
    assert share["fp16_node_share"] == 0.96
    assert share["fp16_flops_share"] == 3.21 / 3.3
    assert build_document(make_lost(tmp_path))["share"]["fp16_flops_share"] == "NaN"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("report", "was made from ranges of other data, and verified on random data"),
        ("ranges", "plan was made from ranges of random data"),
        ("report ranges", "the calibration data was made up at random"),
    ],
)
def test_random_data_is_told_whichever_stage_saw_it(tmp_path: Path, where: str, words: str) -> None:
    report = make_report(tmp_path)
    ranges = replace(report.ranges, synthetic="ranges" in where)
    document = build_document(replace(report, synthetic="report" in where, ranges=ranges))
    assert list(document)[:2] == ["schema_version", "synthetic_data_warning"]
    assert words in document["synthetic_data_warning"]
    assert document["calibration"]["synthetic"] == ("ranges" in where)
    assert document["verification"]["synthetic"] == ("report" in where)


def test_real_data_bears_no_warning(tmp_path: Path) -> None:
    document = build_document(make_report(tmp_path))
    assert document["synthetic_data_warning"] is None
    assert document["calibration"]["synthetic"] is False


def test_an_empty_verification_has_not_passed(tmp_path: Path) -> None:
    document = build_document(make_report(tmp_path, naive=records.Verification((), 3)))
    assert document["verification"]["naive"]["passed"] is False


def test_the_first_wrong_tensor_is_described_in_full(tmp_path: Path) -> None:
    fixed = replace(make_passing("logits"), first_wrong=make_error("/a", 12.0))
    first = build_document(make_report(tmp_path, fixed=fixed))["verification"]["fixed"]["first_wrong"]
    assert (first["tensor"], first["snr_db"], first["worst_batch"]) == ("/a", 12.0, BATCHES[2])


def test_where_nan_and_infinities_begin_is_described_in_full(tmp_path: Path) -> None:
    traced = (
        make_error("/a", 12.0),
        make_error("/b", 2.0, candidate_nan=1),
        make_error("/c", candidate_inf=1),
    )
    naive = replace(make_passing("logits"), trace=traced[:1])
    fixed = replace(make_passing("logits"), trace=traced)
    found = build_document(make_report(tmp_path, naive=naive, fixed=fixed))
    first = found["verification"]["fixed"]["first_not_finite"]
    assert (first["tensor"], first["snr_db"], first["candidate_nan"]) == ("/b", 2.0, 1)
    assert found["verification"]["naive"]["first_not_finite"] is None


def test_nan_and_infinities_begin_in_an_input_that_fp16_does_not_hold(tmp_path: Path) -> None:
    """It is not of the trace, which has what nodes compute."""
    traced = (make_error("/a", candidate_inf=1), make_error("/b", candidate_nan=1))
    for lost, tensor in ((3, "x"), (0, "/a")):
        wrong = make_error("x", 12.0, candidate_inf=lost)
        fixed = replace(make_passing("logits"), first_wrong=wrong, trace=traced)
        found = build_document(make_report(tmp_path, fixed=fixed))["verification"]["fixed"]
        assert found["first_wrong"]["tensor"] == "x"
        assert found["first_not_finite"]["tensor"] == tensor


def test_a_model_that_was_made_of_another_names_it(tmp_path: Path) -> None:
    assert build_document(make_report(tmp_path))["fused"] is None
    assert build_document(make_report(tmp_path, fused=make_fused()))["fused"] == {
        "source": "chain.onnx",
        "source_sha256": "ab" * 32,
        "outputs": ["/ln_1/Add_1"],
        "left": [{"output": "/ln_2/Add_1", "reason": "its axes are not the last ones, or not known"}],
        "max_relative_error": 2.5e-7,
    }


def test_the_files_of_ranges_and_plan_are_known_by_their_place_whatever_their_names(tmp_path: Path) -> None:
    fused = make_fused(files=(tmp_path / "fused" / "m.onnx",))
    read = (tmp_path / "merge.hdf5", tmp_path / "mine")
    report = make_report(tmp_path, files=(*fused.files, *read, tmp_path / "m.fp16.onnx"), fused=fused)
    document = build_document(report)
    assert (document["ranges"]["file"], document["plan"]["file"]) == tuple(map(str, read))
    bare = build_document(make_report(tmp_path, files=()))
    assert (bare["ranges"]["file"], bare["plan"]["file"]) == (None, None)
