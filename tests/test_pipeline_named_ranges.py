"""The main job from ranges that are there: of parts that were scanned on several machines, or of a scan made elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from in_memory_calibration import ints, make_model, node, save, scalar

from overflow_fixer.calibration import open_calibration
from overflow_fixer.config import BuildOptions, FixConfig, VerifyOptions
from overflow_fixer.errors import OutputError, PlanError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.pipeline import fix, verify_built
from overflow_fixer.ranges import collect_ranges, merge_ranges
from overflow_fixer.reports import load_plan
from overflow_fixer.reports.document import build_document
from overflow_fixer.reports.staleness import find_stale

NODES = [
    node("Mul", "x x", "square"),
    node("Add", "w far", "s"),
    node("Sub", "s far", "e"),
    node("Unsqueeze", "e one_axis", "u"),
    node("ReduceLogSumExp", "u", "z", axes=[1], keepdims=0),
    node("Sqrt", "square", "y"),
]
"""x of 300 overflows squared, of which one part of the data has no trace; (w + 300) - 300 needs a repair."""
HIGH, LOW = np.full(4, 300, np.float32), np.linspace(1, 2, 4, dtype=np.float32)
W = np.array([1.1, 1.3, -0.7, 0.6], np.float32)


@pytest.fixture
def merge(tmp_path: Path) -> Path:
    constants = {"one_axis": ints(1), "far": scalar(300)}
    save(make_model(NODES, {"x": [4], "w": [4]}, "y z", constants), tmp_path)
    graph, stores = load_graph(tmp_path / "model.onnx"), []
    for part, x in (("high", HIGH), ("low", LOW)):
        (tmp_path / part).mkdir()
        np.savez(tmp_path / part / f"{part}.npz", x=x, w=W)
        stores.append(tmp_path / f"{part}.h5")
        collect_ranges(graph, open_calibration(tmp_path / part, graph.inputs), store=stores[-1])
    merge_ranges(stores, tmp_path / "merge.h5")
    return tmp_path / "merge.h5"


def _config(folder: Path, calib: str) -> FixConfig:
    build = BuildOptions(backend="onnx")
    return FixConfig(model=folder / "model.onnx", calib=folder / calib, out=folder / "out", build=build)


def test_a_merge_is_planned_from_and_what_fails_on_the_data_that_are_named_is_repaired(
    merge: Path, tmp_path: Path
) -> None:
    before, stages = merge.read_bytes(), set()
    report = fix(_config(tmp_path, "low"), lambda stage, done, total: stages.add(stage), ranges_path=merge)
    assert report.passed
    assert "scan" not in stages
    assert report.plan.pinned == {"Mul_square", "Sqrt_y", "Add_s", "Sub_e"}
    assert (report.initial_pins, len(report.rounds)) == (2, 1)
    assert report.rounds[0].action == "pinned where Sub_e loses"
    assert load_plan(tmp_path / "out" / "plan.json") == report.plan
    assert report.files[:2] == (merge, tmp_path / "out" / "plan.json")
    assert (merge.read_bytes(), (tmp_path / "out" / "ranges.h5").exists()) == (before, False)
    document = build_document(report)
    assert document["calibration"]["batch_names"] == ["high.npz", "low.npz"]
    assert document["verification"]["source"] == str(tmp_path / "low")
    assert report.fixed.batch_count == 1
    assert report.warnings == ()


def test_what_the_folder_holds_of_another_scan_is_neither_read_nor_replaced(
    merge: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "ranges.h5").write_bytes((tmp_path / "low.h5").read_bytes())
    report = fix(_config(tmp_path, "low"), ranges_path=tmp_path / "high.h5")
    assert report.files[0] == tmp_path / "high.h5"
    assert (report.ranges.batch_names, report.initial_pins) == (("high.npz",), 2)
    assert (tmp_path / "out" / "ranges.h5").read_bytes() == (tmp_path / "low.h5").read_bytes()


def test_ranges_of_another_model_are_refused(merge: Path, tmp_path: Path) -> None:
    constants = {"one_axis": ints(1), "far": scalar(200)}
    save(make_model(NODES, {"x": [4], "w": [4]}, "y z", constants), tmp_path)
    with pytest.raises(PlanError, match="The ranges were recorded for another model"):
        fix(_config(tmp_path, "low"), ranges_path=merge)
    assert not (tmp_path / "out").exists()


def test_data_that_changed_since_they_were_scanned_are_told(merge: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "low" / "low.npz", x=LOW / 2, w=W)
    report = fix(_config(tmp_path, "low"), ranges_path=merge)
    (told,) = report.warnings
    assert told.startswith(f"The calibration data {tmp_path / 'low'} are not what was scanned")
    assert "fix-fp16 MODEL without --ranges" in told


def test_a_report_is_held_against_the_ranges_that_it_names_and_no_others_that_lie_there(
    merge: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    named = merge.rename(out / "merge.h5")
    (out / "ranges.h5").write_bytes((tmp_path / "low.h5").read_bytes())
    document = build_document(fix(_config(tmp_path, "low"), ranges_path=named))
    assert find_stale(document, out) is None
    named.write_bytes((tmp_path / "low.h5").read_bytes())
    stale = find_stale(document, out)
    assert isinstance(stale, PlanError)
    assert "merge.h5 is of another scan than the one that is reported" in str(stale)


def test_ranges_that_are_named_from_where_one_stands_are_beside_the_artifact_too(
    merge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    named = merge.rename(out / "merge.h5")
    monkeypatch.chdir(tmp_path)
    document = build_document(fix(_config(tmp_path, "low"), ranges_path="out/merge.h5"))
    assert document["ranges"]["file"] == "out/merge.h5"
    named.write_bytes((tmp_path / "low.h5").read_bytes())
    assert isinstance(find_stale(document, out), PlanError)


def test_kernel_timings_do_not_take_the_place_of_the_ranges_or_the_plan_that_are_named(
    merge: Path, tmp_path: Path
) -> None:
    """Whatever the file holds is taken for timings that are torn, and replaced."""
    kept = _config(tmp_path, "low")
    fix(kept, ranges_path=merge)
    plan = (tmp_path / "out" / "plan.json").rename(tmp_path / "mine.json")
    for named in (merge, plan):
        build = BuildOptions(backend="onnx", timing_cache=named)
        config = kept.model_copy(update={"build": build})
        with pytest.raises(
            OutputError, match=f"The kernel timings would be written to {named}, which is read here"
        ):
            verify_built(config, ranges_path=merge, plan_path=plan)
    config = kept.model_copy(update={"build": BuildOptions(backend="onnx", timing_cache=merge)})
    with pytest.raises(
        OutputError, match=f"The kernel timings would be written to {merge}, which is read here"
    ):
        fix(config, ranges_path=merge)


@pytest.mark.parametrize(
    ("made_from", "held_against", "told"),
    [
        ("merge", "low", "it tells of max |x| 90000 in square, and they of 4"),
        ("high", "merge", None),  # the merge has that very maximum
        ("low", "merge", None),  # a plan without a finding shows nothing
    ],
)
def test_a_plan_that_is_verified_beside_other_ranges_than_it_was_made_from_is_told(
    made_from: str, held_against: str, told: str | None, merge: Path, tmp_path: Path
) -> None:
    config = _config(tmp_path, "low")
    plain = config.model_copy(update={"verify": VerifyOptions(min_snr_db=-99)})
    assert fix(plain, ranges_path=tmp_path / f"{made_from}.h5").warnings == ()
    assert verify_built(plain, ranges_path=tmp_path / f"{made_from}.h5").warnings == ()
    warnings = verify_built(plain, ranges_path=tmp_path / f"{held_against}.h5").warnings
    if told is None:
        assert warnings == ()
    else:
        (warning,) = warnings
        files = f"{tmp_path / 'out' / 'plan.json'} was made from other ranges than {tmp_path / 'low.h5'}"
        assert warning.startswith(f"{files}: {told}. What is told here of the data that were scanned")


def test_ranges_of_a_model_whose_layer_norms_are_to_be_fused_are_refused_before_it_is(tmp_path: Path) -> None:
    sample = Path(__file__).parents[1] / "calib_data" / "layernorm_transformer"
    config = FixConfig(
        model=sample / "model.onnx",
        calib=sample / "data",
        out=tmp_path / "out",
        build=BuildOptions(backend="onnx", compare=False),
        refuse_layernorm=True,
    )
    graph, stages = load_graph(config.model), set()
    collect_ranges(graph, open_calibration(config.calib, graph.inputs), store=tmp_path / "ranges.h5")
    with pytest.raises(
        PlanError, match=r"as it stands, and --refuse-layernorm makes another model of it, .*fused"
    ):
        fix(config, lambda stage, done, total: stages.add(stage), ranges_path=tmp_path / "ranges.h5")
    assert (stages, (tmp_path / "out").exists()) == (set(), False)
    first = fix(config)
    again = config.model_copy(update={"out": tmp_path / "again"})
    assert fix(again, ranges_path=tmp_path / "out" / "ranges.h5").plan == first.plan
