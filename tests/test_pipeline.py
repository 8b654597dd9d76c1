"""The main job's order of things, where one of its comparisons fails or is not wanted."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import ints, make_model, node, save, scalar
from onnx import TensorProto
from sparse_tensors import make_sparse

from overflow_fixer.config import BuildOptions, FixConfig, PlanOptions, RepairOptions, VerifyOptions
from overflow_fixer.errors import BackendError, ConfigError, FixError, ModelError, OutputError, PlanError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.pipeline import fix, verify_built
from overflow_fixer.reports import load_plan, render_text, save_plan
from overflow_fixer.reports.document import build_document
from overflow_fixer.reports.terminal import print_document
from overflow_fixer.reports.wording import shorten_middle
from overflow_fixer.trials import bench as bench_module
from overflow_fixer.trials.bench import Bench

SAMPLE = Path(__file__).parents[1] / "calib_data" / "conv_chain"


def _config(folder: Path, **build: object) -> FixConfig:
    options = BuildOptions.model_validate({"backend": "onnx", **build})
    return FixConfig(model=SAMPLE / "model.onnx", calib=SAMPLE / "data", out=folder / "out", build=options)


def test_plain_fp16_that_cannot_be_built_is_a_warning_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(bench: Bench) -> None:
        raise BackendError("No kernel. Expected one. Do without.")

    monkeypatch.setattr(Bench, "try_naive", refuse)
    report = fix(_config(tmp_path))
    assert report.passed
    assert report.naive is None
    assert report.warnings == ("Plain FP16 was not compared: No kernel. Expected one. Do without.",)
    assert "Warning: Plain FP16 was not compared: No kernel." in render_text(report)


def test_an_output_folder_that_is_removed_on_the_way_is_what_is_told(tmp_path: Path) -> None:
    """And not the model that cannot be read from it."""

    def remove(stage: str, done: int, total: int) -> None:
        if stage != "scan":
            shutil.rmtree(tmp_path / "out", ignore_errors=True)

    with pytest.raises(OutputError, match="out was removed while it was in use"):
        fix(_config(tmp_path), remove)


def test_an_output_that_a_model_lists_twice_is_compared_once_and_written_twice(tmp_path: Path) -> None:
    """As exports of some converters do."""
    model = make_model([node("Mul", "x x", "h"), node("Relu", "h", "y")], {"x": [1, 4]}, "y y")
    save(model, tmp_path)
    np.savez(tmp_path / "0.npz", x=np.linspace(0, 300, 4, dtype=np.float32)[None])
    config = FixConfig(
        model=tmp_path / "model.onnx", calib=tmp_path / "0.npz", build=BuildOptions(backend="onnx")
    )
    report = fix(config.model_copy(update={"out": tmp_path / "out"}))
    assert report.passed
    assert [verdict.error.tensor for verdict in report.fixed.outputs] == ["y"]
    written = onnx.load(tmp_path / "out" / "model.fp16.onnx")
    assert [info.name for info in written.graph.output] == ["y", "y"]


def test_other_data_are_told_as_what_was_verified_on_and_not_as_what_was_scanned(tmp_path: Path) -> None:
    config = _config(tmp_path, compare=False)
    fix(config)
    batch = dict(np.load(SAMPLE / "data" / "batch_0.npz"))
    np.savez(tmp_path / "other.npz", **batch)
    document = build_document(verify_built(config.model_copy(update={"calib": tmp_path / "other.npz"})))
    assert document["calibration"]["source"] == str(SAMPLE / "data")
    assert document["calibration"]["batch_names"] == ["batch_0.npz", "batch_1.npz", "batch_2.npz"]
    assert document["verification"]["source"] == str(tmp_path / "other.npz")
    fixed = document["verification"]["fixed"]
    assert (fixed["batch_count"], fixed["outputs"][0]["error"]["worst_batch"]) == (2, "other.npz[1]")
    said = " ".join(print_document(document).split())
    assert (
        f"(plain FP16 was not compared), on 2 batches of {shorten_middle(str(tmp_path / 'other.npz'), 40)}"
        in said
    )
    assert document["warnings"] == []


@pytest.mark.parametrize("jitter", [0, 1])
def test_data_that_changed_since_the_scan_are_told(jitter: int, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE / "data", tmp_path / "data")
    options = VerifyOptions(jitter=jitter)
    config = _config(tmp_path, compare=False).model_copy(
        update={"calib": tmp_path / "data", "verify": options}
    )
    fix(config)
    assert not any("not what was scanned" in warning for warning in verify_built(config).warnings)
    batch = dict(np.load(tmp_path / "data" / "batch_0.npz"))
    np.savez(tmp_path / "data" / "batch_0.npz", **{name: array * 3 for name, array in batch.items()})
    report = verify_built(config)
    assert report.warnings[0].startswith(f"The calibration data {tmp_path / 'data'} are not what was scanned")
    assert "are not what was scanned" in (config.folder / "report.html").read_text()
    assert "Warning: The calibration data" in render_text(report)
    assert not any("not what was scanned" in warning for warning in fix(config).warnings)


def test_plain_fp16_that_cannot_be_run_fails_and_the_plan_is_verified(tmp_path: Path) -> None:
    """70000 - 69998 is NaN in FP16, and so no row of the table."""
    nodes = [
        node("Mul", "x big", "a"),
        node("Sub", "a most", "b"),
        node("Cast", "b", "row", to=TensorProto.INT64),
        node("Gather", "table row", "y"),
    ]
    table = np.array([5, 6, 7], np.float32)
    constants = {"big": scalar(70000), "most": scalar(69998), "table": table}
    save(make_model(nodes, {"x": [1]}, "y", constants), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.array([1], np.float32))
    config = FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "data.npz", out=tmp_path / "out")
    report = fix(config.model_copy(update={"build": BuildOptions(backend="onnx")}))
    assert report.passed
    assert report.plan.pinned == {"Mul_a", "Sub_b"}
    assert report.naive is not None
    (verdict,) = report.naive.outputs
    assert verdict.reason.startswith("it cannot be computed on data.npz")
    assert "Gather_y" in verdict.reason
    assert "plain FP16 fails." in " ".join(render_text(report).split())


def test_what_is_exported_for_an_engine_has_the_shapes_of_the_data(tmp_path: Path) -> None:
    config = _config(tmp_path, compare=False, exports=("polygraphy-npps",))
    (script,) = (path for path in fix(config).files if path.suffix == ".py")
    assert "--trt-opt-shapes 'image:[2,3,64,64]'" in script.read_text()


def test_a_profile_that_does_not_fit_is_refused_for_exports_too(tmp_path: Path) -> None:
    profile = {"image": ((1, 3), (1, 3), (1, 3))}
    with pytest.raises(ConfigError, match="does not fit the model"):
        fix(_config(tmp_path, exports=("polygraphy-npps",), profile=profile))


def test_without_comparison_plain_fp16_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "try_naive", lambda bench: pytest.fail("it was built"))
    report = fix(_config(tmp_path, compare=False))
    assert report.passed
    assert report.naive is None
    assert report.warnings == ()


def test_a_tolerance_for_an_output_that_is_none_is_refused_before_the_scan(tmp_path: Path) -> None:
    config = _config(tmp_path).model_copy(update={"verify": VerifyOptions(per_output={"lgits": 90.0})})
    with pytest.raises(ConfigError, match="names 'lgits'"):
        fix(config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("part", ["lgits[0]", "y[0, 0, 0, 0, 0, 0]", "y[x]"])
def test_a_part_that_is_none_is_refused_before_the_scan(part: str, tmp_path: Path) -> None:
    config = _config(tmp_path)
    name = load_graph(config.model).outputs[0]
    parts = (part.replace("y[", f"{name}["),)
    with pytest.raises(ConfigError, match="part"):
        fix(config.model_copy(update={"verify": VerifyOptions(parts=parts)}))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "options",
    [{"include_nodes": ("(",)}, {"exclude_nodes": ("nothing",)}, {"exclude_ops": ("Convv",)}],
    ids=str,
)
def test_a_choice_of_nodes_that_cannot_be_is_refused_before_the_scan(
    options: dict[str, tuple[str, ...]], tmp_path: Path
) -> None:
    config = _config(tmp_path).model_copy(update={"plan": PlanOptions.model_validate(options)})
    with pytest.raises(PlanError):
        fix(config)
    assert not (tmp_path / "out").exists()


def test_a_first_batch_that_cannot_be_run_leaves_no_folder(tmp_path: Path) -> None:
    """And one in which something lies stays."""
    data = tmp_path / "data"
    data.mkdir()
    np.savez(data / "a.npz", nothing=np.zeros(1, np.float32))
    config = _config(tmp_path).model_copy(update={"calib": data, "out": tmp_path / "deep" / "out"})
    with pytest.raises(FixError):
        fix(config)
    assert not (tmp_path / "deep").exists()
    config.folder.mkdir(parents=True)
    (config.folder / "mine").touch()
    with pytest.raises(FixError):
        fix(config)
    assert [path.name for path in config.folder.iterdir()] == ["mine"]


def test_where_nothing_was_compared_nothing_is_traced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detector that finds nothing: to look for the first tensor that is wrong took minutes."""
    monkeypatch.setattr(bench_module, "trace", lambda *_: pytest.fail("traced"))
    nodes = [node("Mul", "x x", "a"), node("Slice", "a zero zero", "y")]
    model = make_model(nodes, {"x": [4]}, "y", {"zero": ints(0)})
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "data.npz", x=np.full(4, 300, np.float32))
    options = {"model": tmp_path / "model.onnx", "calib": tmp_path / "data.npz", "out": tmp_path / "out"}
    report = fix(FixConfig(**options, build=BuildOptions(backend="onnx")))
    assert not report.passed
    assert report.fixed.first_wrong is None
    assert "nothing was compared" in render_text(report)


def test_the_plan_itself_that_cannot_be_built_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(bench: Bench, *_: object) -> None:
        raise BackendError("No kernel. Expected one. Do without.")

    monkeypatch.setattr(Bench, "try_plan", refuse)
    with pytest.raises(BackendError, match="No kernel"):
        fix(_config(tmp_path))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["ranges.h5"]


def test_layer_norms_that_are_written_out_are_fused_first_and_the_report_names_both_models(
    tmp_path: Path,
) -> None:
    sample = SAMPLE.parent / "layernorm_transformer"
    config = FixConfig(
        model=sample / "model.onnx",
        calib=sample / "data",
        out=tmp_path / "out",
        refuse_layernorm=True,
        build=BuildOptions(backend="onnx"),
    )
    told: list[tuple[str, int, int]] = []
    report = fix(config, lambda *step: told.append(step))
    model = tmp_path / "out" / "fused" / "model.onnx"
    assert report.passed
    assert report.fused is not None
    assert (report.model, report.artifact.path) == (model, tmp_path / "out" / "model.fp16.onnx")
    assert (report.model_sha256, report.fused.source_sha256) == tuple(
        load_graph(path).sha256 for path in (model, sample / "model.onnx")
    )
    assert [pin.op_type for pin in report.plan.pins] == ["LayerNormalization"] * 3
    assert report.files[0] == model
    assert told[:4] == [("fuse", done, 4) for done in (1, 2, 3, 4)]
    assert "3 LayerNorms of" in " ".join(render_text(report).split())


def test_nothing_to_fuse_ends_the_job_before_the_scan(tmp_path: Path) -> None:
    config = _config(tmp_path).model_copy(update={"refuse_layernorm": True})
    with pytest.raises(ModelError, match="no LayerNorm that is written out"):
        fix(config)
    assert not (tmp_path / "out").exists()


LESS_A_HALF = [
    node("Sqrt", "quarter", "half"),
    node("Sub", "x half", "d"),
    node("Unsqueeze", "d one_axis", "u"),
    node("ReduceLogSumExp", "u", "y", axes=[1], keepdims=0),
]
"""A difference that the plan does not follow to the output: of single elements the last node makes these."""
FAR_AND_BACK = [
    node("Add", "w far", "s"),
    node("Sub", "s far", "e"),
    node("Unsqueeze", "e one_axis", "v1"),
    node("ReduceLogSumExp", "v1", "z", axes=[1], keepdims=0),
]
ONE_AXIS = {"one_axis": ints(1)}


def _near_half(folder: Path, batches: Sequence[np.ndarray], jitter: int) -> FixConfig:
    """x - 0.5 of an x near 0.5: exact where FP16 holds x. The plan does not see what comes of it."""
    save(make_model(LESS_A_HALF, {"x": [4]}, "y", ONE_AXIS | {"quarter": scalar(0.25)}), folder)
    (folder / "data").mkdir()
    for index, batch in enumerate(batches):
        np.savez(folder / "data" / f"b{index}.npz", x=batch.astype(np.float32))
    return FixConfig(
        model=folder / "model.onnx",
        calib=folder / "data",
        out=folder / "out",
        build=BuildOptions(backend="onnx"),
        verify=VerifyOptions(jitter=jitter),
    )


def test_what_passes_by_the_luck_of_its_rounding_fails_on_changed_copies_and_is_repaired(
    tmp_path: Path,
) -> None:
    batches = [0.5 + np.array(steps) / 2048 for steps in ([1, 2, -1, 4], [3, 1, 2, 4])]
    (tmp_path / "plain").mkdir()
    plain = fix(_near_half(tmp_path / "plain", batches, jitter=0))
    assert (plain.passed, plain.plan.pinned) == (True, set())
    changed = fix(_near_half(tmp_path, batches, jitter=3))
    assert (changed.passed, changed.plan.pinned) == (True, {"Sub_d"})
    assert changed.naive is not None
    (lost,) = changed.naive.outputs
    assert not lost.passed
    assert "(changed " in lost.error.worst_batch
    assert (changed.fixed.batch_count, changed.fixed.changed_count) == (2, 6)
    assert changed.warnings == ()
    assert "on 2 batches and 6 changed copies" in " ".join(render_text(changed).split())


@pytest.mark.parametrize(("near", "is_told"), [(1 / 2048, True), (0.4, False)])
def test_a_repair_that_holds_for_the_very_batches_alone_is_told(
    near: float, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(w + 300) - 300 needs one; x - 0.5 passes since FP16 holds x, which it does not in copies."""
    monkeypatch.setattr("overflow_fixer.pipeline.caveats.say_thin", lambda *known: iter(["by little"]))
    nodes = [*LESS_A_HALF, *FAR_AND_BACK]
    constants = ONE_AXIS | {"quarter": scalar(0.25), "far": scalar(300)}
    save(make_model(nodes, {"x": [4], "w": [4]}, "y z", constants), tmp_path)
    steps, w = np.array([1, 2, -1, 4]), np.array([1.1, 1.3, -0.7, 0.6], np.float32)
    np.savez(tmp_path / "data.npz", x=(0.5 + near * steps).astype(np.float32), w=w)
    config = FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "data.npz", out=tmp_path / "out")
    report = fix(config.model_copy(update={"build": BuildOptions(backend="onnx")}))
    assert (report.passed, report.plan.pinned) == (True, {"Add_s", "Sub_e"})
    told = [
        warning for warning in report.warnings if warning.startswith("What was built is right on the batches")
    ]
    assert ("by little" in report.warnings) != is_told
    assert [": output y fails in data.npz[0:4] (changed " in warning for warning in told] == [True] * is_told


@pytest.mark.parametrize(("near", "is_told"), [(1 / 2048, True), (0.4, False)])
def test_what_passes_by_little_without_a_repair_is_tried_on_copies_too(
    near: float, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overflow_fixer.pipeline.caveats.say_thin", lambda *known: iter(["by little"]))
    save(make_model(LESS_A_HALF, {"x": [4]}, "y", ONE_AXIS | {"quarter": scalar(0.25)}), tmp_path)
    np.savez(tmp_path / "data.npz", x=(0.5 + near * np.array([1, 2, -1, 4])).astype(np.float32))
    config = FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "data.npz", out=tmp_path / "out")
    report = fix(config.model_copy(update={"build": BuildOptions(backend="onnx")}))
    assert (report.passed, report.rounds) == (True, ())
    assert ("by little" in report.warnings) != is_told
    assert (
        any(warning.startswith("What was built is right on the batches") for warning in report.warnings)
        == is_told
    )


def test_copies_of_a_batch_without_a_part_are_judged_by_the_rest(tmp_path: Path) -> None:
    """(w + 300) - 300 is worst in a batch of two elements, of which the part has none."""
    save(make_model(FAR_AND_BACK, {"w": ["n"]}, "z", ONE_AXIS | {"far": scalar(300)}), tmp_path)
    (tmp_path / "data").mkdir()
    for index, batch in enumerate(([0.3, -0.3], [1.1] * 8, [0.7, 0.6])):
        np.savez(tmp_path / "data" / f"{index}.npz", w=np.asarray(batch, np.float32))
    config = FixConfig(
        model=tmp_path / "model.onnx",
        calib=tmp_path / "data",
        out=tmp_path / "out",
        build=BuildOptions(backend="onnx"),
        verify=VerifyOptions(parts=("z[4:]",)),
    )
    report = fix(config)
    assert report.passed
    assert report.rounds


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_copies_of_every_batch_are_tried(order: tuple[int, int], tmp_path: Path) -> None:
    """One passes by its luck alone."""
    nodes = [
        *FAR_AND_BACK,
        *LESS_A_HALF,
        node("Mul", "y third", "v"),
    ]
    constants = ONE_AXIS | {"quarter": scalar(0.25), "far": scalar(300), "third": scalar(1 / 3)}
    save(make_model(nodes, {"x": [4], "w": [4]}, "z v", constants), tmp_path)
    (tmp_path / "data").mkdir()
    for place, index in enumerate(order):
        x = 0.5 + np.array([1, 2, -1, 4]) * (1 / 2048, 1 / 512)[index]
        feeds = {"x": x.astype(np.float32), "w": np.array([1.1, 1.3, -0.7, 0.6], np.float32)}
        np.savez(tmp_path / "data" / f"{place}.npz", **feeds)
    config = FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "data", out=tmp_path / "out")
    report = fix(config.model_copy(update={"build": BuildOptions(backend="onnx")}))
    assert report.passed
    told = [
        warning for warning in report.warnings if warning.startswith("What was built is right on the batches")
    ]
    assert len(told) == 1


def test_copies_in_which_nothing_can_change_are_none_and_a_warning_says_so(tmp_path: Path) -> None:
    report = fix(_near_half(tmp_path, [np.array([1, 2, 3, 4])], jitter=3))
    assert (report.passed, report.fixed.batch_count, report.fixed.changed_count) == (True, 1, 0)
    (warning,) = report.warnings
    assert warning.startswith("3 of 3 changed copies (jitter) were left out: those in which nothing changes")


def test_copies_that_fp32_cannot_run_are_left_out(tmp_path: Path) -> None:
    """1 / x of the second value is a row of the table in the batch, and behind its end in some copies."""
    nodes = [
        node("Split", "x", "a b c", axis=0),
        node("Div", "one b", "r"),
        node("Cast", "r", "row", to=TensorProto.INT64),
        node("Gather", "table row", "t"),
        node("Mul", "t a", "y"),
    ]
    constants = {"one": scalar(1), "table": np.arange(10, dtype=np.float32)}
    save(make_model(nodes, {"x": [3]}, "y", constants), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.array([0.05, 0.10001, 0.9], np.float32))
    config = FixConfig(
        model=tmp_path / "model.onnx",
        calib=tmp_path / "data.npz",
        out=tmp_path / "out",
        build=BuildOptions(backend="onnx"),
        verify=VerifyOptions(jitter=8),
    )
    report = fix(config)
    assert report.passed
    assert 0 < report.fixed.changed_count < 8
    (warning,) = report.warnings
    assert warning.startswith(f"{8 - report.fixed.changed_count} of 8 changed copies (jitter) were left out")


def _with_sparse(place: str) -> onnx.ModelProto:
    """x * s through a Softmax, and s added or taken away behind it."""
    sparse = make_sparse("s", [3, 9e4], [1, 2], [4])
    scale = [node("Mul", "x s", "a"), node("Softmax", "a", "b")]
    if place == "initializer":
        model = make_model([*scale, node("Add", "b s", "y")], {"x": [1, 4]}, "y")
        model.graph.sparse_initializer.append(sparse)
    elif place == "constant":
        held = node("Constant", "", "s", sparse_value=sparse)
        model = make_model([held, *scale, node("Sub", "b s", "y")], {"x": [1, 4]}, "y")
    else:
        written = [onnx.ValueInfoProto(name="b")]
        body = onnx.helper.make_graph(scale, "body", [], written, sparse_initializer=[sparse])
        branch = node("If", "c", "y", then_branch=body, else_branch=body)
        model = make_model([branch], {"x": [1, 4], "c": (TensorProto.BOOL, [])}, "y")
    return model


@pytest.mark.parametrize("place", ["initializer", "constant", "body"])
def test_a_sparse_constant_is_fixed_like_a_dense_one(place: str, tmp_path: Path) -> None:
    graph = save(_with_sparse(place), tmp_path)
    feeds = {"x": np.array([[1, -2, 1, 3]], np.float32), "c": np.array(True)}
    np.savez(tmp_path / "data.npz", **{spec.name: feeds[spec.name] for spec in graph.inputs})
    config = FixConfig(model=graph.path, calib=tmp_path / "data.npz", out=tmp_path / "out")
    report = fix(config.model_copy(update={"build": BuildOptions(backend="onnx")}))
    assert report.passed
    assert report.ranges.by_tensor["If_y/then_branch/s" if place == "body" else "s"].max == 9e4


def test_a_plan_that_was_edited_since_its_report_is_not_replaced_without_a_word(tmp_path: Path) -> None:
    config = _config(tmp_path, compare=False)
    plan, report = config.folder / "plan.json", config.folder / "report.json"
    made = fix(config).plan
    assert made.pins

    def rerun(*, has_report: bool) -> list[str]:
        save_plan(replace(made, pins=made.pins[1:]), plan)
        if not has_report:
            report.unlink()
        return [warning for warning in fix(config).warnings if "was replaced" in warning]

    (told,) = rerun(has_report=True)
    assert told.startswith(
        f"{plan} was replaced: it held another plan than the one that was last verified there"
    )
    assert load_plan(plan) == made
    other = config.model_copy(
        update={
            "plan": config.plan.model_copy(update={"exclude_nodes": (made.pins[0].node,)}),
            "repair": RepairOptions(max_rounds=0),
        }
    )
    for verified in (config, other):  # the plan that another setting replaces is that of the report
        assert not [warning for warning in fix(verified).warnings if "was replaced" in warning]
    assert load_plan(plan) != made
    assert rerun(has_report=False) == []


def test_a_plan_that_was_edited_to_pin_otherwise_is_refused_where_it_is_verified(tmp_path: Path) -> None:
    """The pin's operator decides nothing of what is built, which therefore is still the plan's."""
    config = _config(tmp_path, compare=False)
    made = fix(config).plan
    pins = (replace(made.pins[0], op_type="Tanh"), *made.pins[1:])
    save_plan(replace(made, pins=pins), config.folder / "plan.json")
    with pytest.raises(PlanError, match="is of a Tanh with the outputs"):
        verify_built(config)
