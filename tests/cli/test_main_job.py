"""The main job and the stages on every sample that ships, as a user runs them."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import onnx
import pytest
from edited_ranges import edit_ranges
from fp16_emulation import run_fp32, run_typed

from overflow_fixer.cli import main
from overflow_fixer.ranges.recording import FORMAT_VERSION

SAMPLES = Path(__file__).parents[2] / "calib_data"
NAMES = sorted(path.parent.name for path in SAMPLES.glob("*/model.onnx"))


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def _snr_db(reference: np.ndarray, candidate: np.ndarray) -> float:
    error = np.asarray(candidate, np.float64) - np.asarray(reference, np.float64)
    return 10 * np.log10(np.square(np.asarray(reference, np.float64)).sum() / np.square(error).sum())


@pytest.mark.parametrize("name", NAMES)
def test_every_sample_is_fixed_and_an_independent_emulation_agrees(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample, out = SAMPLES / name, tmp_path / "out"
    assert _run(sample / "model.onnx", "--calib", sample / "data", "--out", out) == 0
    said = capsys.readouterr().out
    assert "FIXED and verified" in said
    assert sorted(path.name for path in out.iterdir()) == [
        "model.fp16.onnx",
        "plan.json",
        "ranges.h5",
        "report.html",
        "report.json",
    ]
    report = json.loads((out / "report.json").read_text())
    assert not report["verification"]["naive"]["passed"]
    assert report["plan"]["pins"]
    onnx.checker.check_model(str(out / "model.fp16.onnx"), full_check=True)
    for batch in sorted((sample / "data").glob("*.npz")):
        feeds = dict(np.load(batch))
        expected = run_fp32(sample / "model.onnx", feeds)
        found = run_typed(out / "model.fp16.onnx", feeds)
        for output in onnx.load(sample / "model.onnx").graph.output:
            assert _snr_db(expected[output.name], found[output.name]) > 40


@pytest.mark.parametrize("name", NAMES)
def test_the_stages_give_what_the_main_job_gives(name: str, tmp_path: Path) -> None:
    sample, whole, staged = SAMPLES / name, tmp_path / "whole", tmp_path / "staged"
    model, data = sample / "model.onnx", sample / "data"
    assert _run(model, "--calib", data, "--out", whole, "-q") == 0
    assert _run("scan", model, "--calib", data, "--out", staged, "-q") == 0
    assert _run("plan", model, "--out", staged, "-q") == 0
    assert _run("build", model, "--out", staged, "-q") == 0
    assert _run("verify", model, "--calib", data, "--out", staged, "-q") == 0
    assert [_run("report", folder, "-q") for folder in (whole, staged)] == [0, 0]
    for file in ("plan.json", "model.fp16.onnx"):
        assert (whole / file).read_bytes() == (staged / file).read_bytes()
    with h5py.File(whole / "ranges.h5") as one, h5py.File(staged / "ranges.h5") as other:
        assert np.array_equal(one["max_abs"][()], other["max_abs"][()])
    reports = [json.loads((folder / "report.json").read_text()) for folder in (whole, staged)]
    assert reports[0]["plan"]["pins"] == reports[1]["plan"]["pins"]
    for part in ("verdict", "verification", "share", "kept_in_fp32"):
        assert reports[0][part] == reports[1][part]


def test_ranges_that_lie_elsewhere_serve_every_later_stage_and_a_report_is_told_by_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample, elsewhere, out = SAMPLES / "conv_chain", tmp_path / "scan" / "ranges.h5", tmp_path / "out"
    model, data = sample / "model.onnx", sample / "data"
    assert _run("scan", model, "--calib", data, "--out", elsewhere.parent, "-q") == 0
    assert _run("plan", model, "--ranges", elsewhere, "--out", out, "-q") == 0
    assert _run("build", model, "--out", out, "-q") == 0
    assert _run("verify", model, "--calib", data, "--ranges", elsewhere, "--out", out, "-q") == 0
    (out / "report.html").unlink()
    assert _run("report", out / "report.json") == 0
    assert "FIXED and verified" in capsys.readouterr().out
    assert (out / "report.html").is_file()


def test_a_plan_that_lies_elsewhere_is_named_to_build_and_to_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample, made, out = SAMPLES / "conv_chain", tmp_path / "made", tmp_path / "out"
    model, data, plan = sample / "model.onnx", sample / "data", tmp_path / "mine.json"
    assert _run("scan", model, "--calib", data, "--out", made, "-q") == 0
    assert _run("plan", model, "--out", made, "-q") == 0
    (made / "plan.json").rename(plan)
    verify = "verify", model, "--calib", data, "--ranges", made / "ranges.h5", "--out", out, "-q"
    assert _run("build", model, "--plan", plan, "--out", out, "-q") == 0
    assert _run(*verify) == 5
    assert (
        f"{out / 'plan.json'} is not there. Expected the plan that fix-fp16 plan" in capsys.readouterr().err
    )
    assert _run(*verify, "--plan", plan) == 0
    report = json.loads((out / "report.json").read_text())
    assert report["plan"]["file"] == str(plan)
    assert report["ranges"]["file"] == str(made / "ranges.h5")
    assert all(file["size_bytes"] for file in report["files"])
    assert _run("report", out, "-q") == 0
    assert _run("plan", model, "--ranges", made / "ranges.h5", "--threshold", 100, "--out", out, "-q") == 0
    assert _run(*verify) == 6
    assert "name the plan that it was built from with --plan" in capsys.readouterr().err


def test_a_config_file_may_name_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample, config = SAMPLES / "conv_chain", tmp_path / "fix.toml"
    paths = {"model": sample / "model.onnx", "calib": sample / "data", "out": tmp_path / "out"}
    config.write_text("".join(f"{key} = '{path}'\n" for key, path in paths.items()))
    assert _run("scan", "--config", config, "-q") == 0
    assert _run("--config", config, "-q") == 0
    assert (tmp_path / "out" / "model.fp16.onnx").is_file()
    config.write_text("")
    assert _run("--config", config) == 2
    assert "No model was named. Expected MODEL" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["fix", "scan"])
@pytest.mark.parametrize("place", ["", "out"])
def test_results_among_the_data_are_refused(
    verb: str, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(SAMPLES / "conv_chain" / "data", data)
    before = sorted(data.iterdir())
    model = SAMPLES / "conv_chain" / "model.onnx"
    assert _run(verb, model, "--calib", data, "--out", data / place) == 2
    assert "lies in the folder of the calibration data" in capsys.readouterr().err
    assert sorted(data.iterdir()) == before


def test_an_artifact_of_another_model_is_told_by_its_inputs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = SAMPLES / "conv_chain"
    model = onnx.load(sample / "model.onnx")
    verify = (
        "verify",
        sample / "model.onnx",
        "--calib",
        sample / "data",
        "--artifact",
        tmp_path / "other.onnx",
    )
    given, taken = model.graph.input[0].name, "renamed"
    model.graph.input[0].name = taken
    for node in model.graph.node:
        node.input[:] = [taken if name == given else name for name in node.input]
    onnx.save(model, tmp_path / "other.onnx")
    assert _run(*verify) == 6
    assert (
        f"has the inputs renamed. Expected those of {sample / 'model.onnx'}: {given}."
        in capsys.readouterr().err
    )


def test_verify_fails_a_model_of_another_tool_that_overflows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = SAMPLES / "conv_chain"
    arguments = (sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path)
    assert _run(*arguments, "-q", "--threshold", "65504", "--exclude-ops", "Conv", "--max-rounds", "0") == 1
    typed = tmp_path / "model.fp16.onnx"
    assert _run("verify", *arguments, "--artifact", typed) == 1
    assert "WRONG logits" in capsys.readouterr().out


def test_an_artifact_without_fp16_is_told_to_prove_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = SAMPLES / "conv_chain"
    model, arguments = sample / "model.onnx", ("--calib", sample / "data", "--out", tmp_path)
    assert _run("verify", model, *arguments, "--seed", "3", "--artifact", model) == 0
    told = capsys.readouterr().out
    assert f"Warning: Nothing in {model} is FP16: FP32 was compared" in told
    assert "Warning: calibration.seed has no effect on --calib " in told
    assert _run(model, *arguments, "-q") == 0
    assert _run("verify", model, *arguments, "--artifact", tmp_path / "model.fp16.onnx") == 0
    assert "Nothing in" not in capsys.readouterr().out


def test_data_without_an_element_leave_nothing_to_call_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = (onnx.helper.make_tensor_value_info(name, 1, ["n", 4]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model, data, out = tmp_path / "m.onnx", tmp_path / "data", tmp_path / "out"
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), model
    )
    data.mkdir()
    np.savez(data / "b.npz", x=np.zeros((0, 4), np.float32))
    assert _run(model, "--calib", data, "--out", out) == 1
    told = capsys.readouterr().out
    assert told.count("nothing compared") == 2
    assert " ok" not in told
    assert _run("verify", model, "--calib", data, "--artifact", out / "m.fp16.onnx") == 1
    assert capsys.readouterr().out.startswith("EMPTY y: it had no element")


def test_what_the_user_excludes_stays_excluded_even_where_it_fails(tmp_path: Path) -> None:
    sample = SAMPLES / "needs_constraints"
    arguments = (sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path)
    assert _run(*arguments, "-q", "--exclude-ops", "Add") == 1
    report = json.loads((tmp_path / "report.json").read_text())
    assert "Add" not in {pin["op_type"] for pin in report["plan"]["pins"]}
    assert any("excluded" in finding["reason"] for finding in report["plan"]["considered"])


def test_json_goes_to_stdout_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = SAMPLES / "needs_constraints"
    assert _run(sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path, "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["verdict"]["passed"]
    assert said.err == ""


def test_quiet_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = SAMPLES / "needs_constraints"
    assert _run(sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path, "-q") == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "")


def test_random_data_is_told_in_the_first_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(SAMPLES / "conv_chain" / "model.onnx", "--calib", "random", "--out", tmp_path)
    assert "random" in "".join(capsys.readouterr().out.splitlines()[:3]).lower()
    assert json.loads((tmp_path / "report.json").read_text())["calibration"]["synthetic"]


def test_a_plan_or_ranges_of_another_model_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample, other = SAMPLES / "needs_constraints", SAMPLES / "conv_chain" / "model.onnx"
    assert _run(sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path, "-q") == 0
    assert _run("plan", other, "--out", tmp_path) == 5
    assert _run("build", other, "--out", tmp_path) == 5
    assert capsys.readouterr().err.count("another model") == 2


def test_a_report_of_what_is_no_longer_there_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample, out = SAMPLES / "conv_chain", tmp_path / "out"
    model, data = sample / "model.onnx", sample / "data"
    assert _run(model, "--calib", data, "--out", out, "-q") == 0
    capsys.readouterr()
    shutil.copytree(out, tmp_path / "moved")
    assert _run("report", tmp_path / "moved") == 0
    assert "no longer fits" not in capsys.readouterr().out
    assert _run("plan", model, "--out", out, "--threshold", "100", "-q") == 0
    assert _run("report", out) == 5
    told = " ".join(capsys.readouterr().out.split())
    assert "Warning: The report of " in told
    assert "plan.json is another plan than the one that was verified. Expected" in told
    assert "no longer fits what is there" in (out / "report.html").read_text()
    assert _run("build", model, "--out", out, "-q") == 0
    assert _run("report", out, "-q") == 6
    told = capsys.readouterr().err
    assert "model.fp16.onnx was not built from the plan that was verified; plan.json is another plan" in told
    assert told.count("\n") == 1
    (out / "model.fp16.onnx").unlink()
    assert _run("report", out, "-q") == 6
    assert "model.fp16.onnx is not there; plan.json" in capsys.readouterr().err
    assert _run("report", out / "report.json", "-q") == 6
    assert "model.fp16.onnx is not there; plan.json" in capsys.readouterr().err


def test_a_report_is_told_by_its_file_as_by_its_folder_unless_it_lies_elsewhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample, out = SAMPLES / "conv_chain", tmp_path / "out"
    assert _run(sample / "model.onnx", "--calib", sample / "data", "--out", out, "-q") == 0
    shutil.copytree(out, tmp_path / "moved")
    (tmp_path / "sent").mkdir()
    for copy in (tmp_path / "sent" / "report.json", out / "other.json"):
        shutil.copy(out / "report.json", copy)
    (out / "model.fp16.onnx").unlink()
    (tmp_path / "moved" / "model.fp16.onnx").unlink()
    capsys.readouterr()
    assert [_run("report", folder / "report.json", "-q") for folder in (out, tmp_path / "moved")] == [6, 6]
    assert capsys.readouterr().err.count("model.fp16.onnx is not there") == 2
    (out / "plan.json").unlink()
    assert _run("report", out / "report.json", "-q") == 6
    capsys.readouterr()
    told_as_they_stand = (tmp_path / "sent" / "report.json", out / "other.json")
    assert [_run("report", file, "-q") for file in told_as_they_stand] == [0, 0]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("place", "value", "told"),
    [
        (("verdict", "passed"), False, "and does not by verdict.passed. Expected"),
        (("verdict", "status"), "not_verified", "and does not by verdict.status"),
        (("verdict", "sentence"), "NOT verified: no.", "and does not by verdict.sentence"),
        (("verification", "fixed", "passed"), False, "and does not by verification.fixed.passed"),
        (("verification", "fixed", "batch_count"), 0, "and does not by its outputs"),
        (("verification", "fixed", "outputs", 0, "passed"), False, "and does not by its outputs"),
    ],
)
def test_a_report_that_contradicts_itself_is_refused(
    place: tuple[str | int, ...],
    value: object,
    told: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sample, report = SAMPLES / "needs_constraints", tmp_path / "report.json"
    assert _run(sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path, "-q") == 0
    document = json.loads(report.read_text())
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    report.write_text(json.dumps(document))
    assert _run("report", tmp_path) == 5
    said = capsys.readouterr()
    assert said.out == ""
    assert f"{report} contradicts itself, and was edited or damaged: it passes by " in said.err
    assert told in said.err


def test_ranges_that_were_changed_since_do_not_fit_their_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample, other, out = SAMPLES / "conv_chain", SAMPLES / "needs_constraints", tmp_path / "out"
    arguments = (sample / "model.onnx", "--calib", sample / "data", "--out", out, "-q")
    assert _run(*arguments) == 0
    assert _run("report", out, "-q") == 0
    ranges = out / "ranges.h5"
    kept = ranges.read_bytes()

    def tell() -> str:
        assert _run("report", out, "-q") == 5
        return capsys.readouterr().err

    assert _run("scan", other / "model.onnx", "--calib", other / "data", "--out", out, "--fresh", "-q") == 0
    assert "no longer fits what is there: ranges.h5 is of another model. Expected" in tell()
    data = tmp_path / "data"
    shutil.copytree(sample / "data", data)
    for file in data.glob("*.npz"):
        np.savez(file, **{name: array * np.float32(1.25) for name, array in np.load(file).items()})
    assert _run("scan", sample / "model.onnx", "--calib", data, "--out", out, "--fresh", "-q") == 0
    assert "ranges.h5 is of another scan than the one that is reported" in tell()
    ranges.write_bytes(kept[: len(kept) // 2])
    assert "ranges.h5 is not that of a finished scan any more" in tell()
    ranges.write_bytes(kept)
    with edit_ranges(ranges) as file:
        file.attrs["format_version"] = FORMAT_VERSION - 1
    assert _run("report", out, "-q") == 0  # of an earlier version's ranges nobody knows
    ranges.unlink()
    assert _run("report", out, "-q") == 0


def test_ranges_of_elsewhere_are_not_looked_for_beside_their_report(tmp_path: Path) -> None:
    sample, out, elsewhere = SAMPLES / "conv_chain", tmp_path / "out", tmp_path / "scan.h5"
    arguments = (sample / "model.onnx", "--calib", sample / "data", "--out", out, "-q")
    assert _run(*arguments) == 0
    shutil.copy(out / "ranges.h5", elsewhere)
    (out / "ranges.h5").write_bytes(b"another's")
    assert _run("verify", *arguments, "--ranges", elsewhere) == 0
    assert json.loads((out / "report.json").read_text())["ranges"]["file"] == str(elsewhere)
    assert _run("report", out, "-q") == 0


def test_an_artifact_that_was_cut_off_does_not_fit_its_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = SAMPLES / "conv_chain"
    assert _run(sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path, "-q") == 0
    typed = tmp_path / "model.fp16.onnx"
    typed.write_bytes(typed.read_bytes()[:-100])
    (tmp_path / "plan.json").unlink()
    assert _run("report", tmp_path, "-q") == 6
    told = capsys.readouterr().err
    assert "model.fp16.onnx has another size; model.fp16.onnx was not built from" in told
    assert "plan.json" not in told


def test_the_stages_name_the_model_that_was_fused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample, out = SAMPLES / "layernorm_transformer", tmp_path / "out"
    model, data, fused = sample / "model.onnx", ("--calib", sample / "data"), out / "fused" / "model.onnx"
    assert _run(model, *data, "--out", out, "--refuse-layernorm", "-q") == 0
    config = tmp_path / "fix.toml"
    config.write_text("refuse_layernorm = true\n")
    for verb in (["scan", model, *data], ["plan", model], ["build", model], ["verify", model, *data]):
        assert _run(*verb, "--out", out, "-q") == 5
        said = capsys.readouterr().err
        assert f"The files in {out} are of {fused}, which --refuse-layernorm made" in said
        assert said.count("\n") == 1
    assert _run("plan", model, "--out", out, "--config", config) == 5
    assert f"{model} is taken as it is. What it became is {fused}: name that" in capsys.readouterr().err
    assert _run("plan", fused, "--out", out, "--config", config) == 0
    assert capsys.readouterr().err == ""
    assert _run("scan", model, *data, "--out", tmp_path / "new", "--config", config) == 0
    assert f"of the main job alone: {model} is taken as it is.\n" in capsys.readouterr().err
    (out / "fused" / "model.onnx").unlink()
    assert _run("plan", model, "--out", out, "-q") == 5
    assert "--refuse-layernorm" not in capsys.readouterr().err


def test_doctor_says_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("doctor") == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("onnxruntime", "CPUExecutionProvider", "GPU", "TensorRT"))


def test_a_model_that_another_plan_built_is_not_verified_as_this_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = SAMPLES / "conv_chain"
    arguments = (sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path)
    assert _run(*arguments, "-q") == 0
    assert _run("verify", *arguments, "-q") == 0
    assert _run("verify", *arguments, "-q", "--io-types", "fp16") == 6
    plan = json.loads((tmp_path / "plan.json").read_text())
    plan["pins"] = []
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert _run("verify", *arguments, "-q") == 6
    told = capsys.readouterr().err
    assert (
        "was built from this plan with io_types 'keep'. Expected 'fp16', as the settings say. Add --io-types keep"
        in told
    )
    assert told.count("was not built from this plan. Expected the model that this plan gives") == 1


def test_an_artifact_that_was_cut_short_is_told_in_one_paragraph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = SAMPLES / "conv_chain"
    arguments = (sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path)
    assert _run(*arguments, "-q") == 0
    typed = tmp_path / "model.fp16.onnx"
    typed.write_bytes(typed.read_bytes()[: typed.stat().st_size // 2])
    for more in ((), ("--artifact", typed)):
        assert _run("verify", *arguments, "-q", *more) == 6
        said = capsys.readouterr().err
        assert "model.fp16.onnx" in said
        assert "is not a whole ONNX model" in said
        assert said.count("\n") == 1


def test_ranges_of_another_model_are_not_reported_with_this_one(tmp_path: Path) -> None:
    sample, other = SAMPLES / "conv_chain", SAMPLES / "needs_constraints"
    arguments = (sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path)
    assert _run(*arguments, "-q") == 0
    scan = ("scan", other / "model.onnx", "--calib", other / "data", "--out", tmp_path, "-q")
    assert _run(*scan) == 5
    assert _run(*scan, "--fresh") == 0
    assert _run("verify", *arguments, "-q") == 5


@pytest.mark.parametrize(
    ("before", "branch"),
    [
        ("", "{ h = Cast <to: int = 10> (x) s = Mul(h, h) r = Sqrt(s) y%d = Cast <to: int = 1> (r) }"),
        ("h = Cast <to: int = 10> (x)", "{ s = Mul(h, h) r = Sqrt(s) y%d = Cast <to: int = 1> (r) }"),
    ],
    ids=["cast", "captured"],
)
def test_fp16_inside_control_flow_is_refused_where_it_cannot_be_simulated(
    before: str, branch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, first, body in (("fp32", "", "{ s = Mul(x, x) y%d = Sqrt(s) }"), ("fp16", before, branch)):
        branches = ", ".join(
            f"{side}: graph = b{i} () => (float[4] y{i}) {body % i}"
            for i, side in enumerate(("then_branch", "else_branch"))
        )
        head = '<ir_version: 8, opset_import: ["" : 17]> g (float[4] x, bool c) => (float[4] y)'
        model = onnx.parser.parse_model(f"{head} {{ {first} y = If <{branches}> (c) }}")
        onnx.save(model, tmp_path / f"{name}.onnx")
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "b.npz", x=np.float32([300, 500, 800, 1000]), c=np.array(True))
    arguments = (tmp_path / "fp32.onnx", "--calib", tmp_path / "data", "--artifact", tmp_path / "fp16.onnx")
    assert _run("verify", *arguments) == 6
    assert "cannot be simulated" in capsys.readouterr().err


@pytest.mark.parametrize(("jitter", "code"), [(0, 0), (3, 1)])
def test_an_artifact_that_passes_by_luck_fails_on_changed_copies(
    jitter: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """x - 0.5 of an x near 0.5: exact where FP16 holds x."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { %s }"""
    half = "h = Cast <to: int = 10> (x) w = Cast <to: int = 1> (h)"
    difference = "c = Constant <value_float: float = 0.5> () y = Sub (%s, c)"
    for name, body in (("fp32", difference % "x"), ("fp16", f"{half} {difference % 'w'}")):
        onnx.save(onnx.parser.parse_model(text % body), tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "b.npz", x=0.5 + np.float32([1, 2, 3, 4]) / 2048)
    arguments = (tmp_path / "fp32.onnx", "--calib", tmp_path / "b.npz", "--artifact", tmp_path / "fp16.onnx")
    assert _run("verify", *arguments, "--jitter", str(jitter), "--json") == code
    found = json.loads(capsys.readouterr().out)
    assert (found["passed"], found["batches"], found["changed"]) == (code == 0, 1, jitter)
    assert _run("verify", *arguments, "--jitter", str(jitter)) == code
    counts = "1 batch" if code == 0 else "1 batch and 3 changed copies"
    assert capsys.readouterr().out.endswith(f"Compared with FP32 on {counts}.\n")


def test_a_part_of_an_artifacts_output_is_judged_by_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) { %s }"""
    half = "h = Cast <to: int = 10> (x) y = Cast <to: int = 1> (h)"
    for name, body in (("fp32", "y = Identity (x)"), ("fp16", half)):
        onnx.save(onnx.parser.parse_model(text % body), tmp_path / f"{name}.onnx")
    np.savez(tmp_path / "b.npz", x=np.float32([[1000, 20, 1e-9], [3000, 10, 2e-9]]))
    arguments = (tmp_path / "fp32.onnx", "--calib", tmp_path / "b.npz", "--artifact", tmp_path / "fp16.onnx")
    assert _run("verify", *arguments, "--part", "y[:, :2]") == 0
    assert _run("verify", *arguments, "--part", "y[:, :2]", "--part", "y[:, 2]") == 1
    *_, last, _ = capsys.readouterr().out.splitlines()
    assert last == "WRONG y[:, 2]: SNR 0.0 dB is under 30 dB (max error 2e-09)"
    assert _run("verify", *arguments, "--part", "y[:, 2]", "--json") == 1
    found = json.loads(capsys.readouterr().out)["outputs"]
    assert [(one["tensor"], one["part"], one["passed"]) for one in found] == [
        ("y", "", True),
        ("y", "[:, 2]", False),
    ]
    assert _run("verify", *arguments, "--part", "y[:, 3]") == 2
    assert "y is of shape [2, 3]" in capsys.readouterr().err


def test_copies_that_are_left_out_are_told_of_an_artifact_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = SAMPLES / "masked_attention"
    arguments = (sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path, "--jitter", "3")
    assert _run(*arguments, "-q") == 0
    capsys.readouterr()
    assert _run("verify", *arguments, "--artifact", tmp_path / "model.fp16.onnx") == 0
    *_, compared, warning = capsys.readouterr().out.splitlines()
    assert compared == "Compared with FP32 on 4 batches."
    assert warning.startswith("Warning: 12 of 12 changed copies (jitter) were left out")
    assert _run("verify", *arguments, "--artifact", tmp_path / "model.fp16.onnx", "--json") == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == [warning.removeprefix("Warning: ")]


def test_an_output_of_an_artifact_that_is_zero_in_every_batch_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Relu(x) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    np.savez(tmp_path / "b.npz", x=np.float32([-1, -2]))
    arguments = (tmp_path / "model.onnx", "--calib", tmp_path / "b.npz")
    assert _run("verify", *arguments, "--artifact", tmp_path / "model.onnx") == 0
    assert "Warning: Output y: zero in every batch, in FP32 and in what was built" in capsys.readouterr().out


def test_an_artifact_that_cannot_be_run_is_wrong_and_the_model_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the index is made in FP16, 70000 is infinite."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1] x, float[9] t) => (float[1] y)
        { %s r = Cast <to: int = 7> (b) y = Gather (t, r) }"""
    big = "c = Constant <value_float: float = 70000.0> () d = Constant <value_float: float = 69998.0> ()"
    right = "a = Mul (x, c) b = Sub (a, d)"
    half = "h = Mul (x, c) a = Cast <to: int = 10> (h) w = Cast <to: int = 1> (a) b = Sub (w, d)"
    for name, body in (("fp32", right), ("fp16", half)):
        onnx.save(onnx.parser.parse_model(text % f"{big} {body}"), tmp_path / f"{name}.onnx")
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "b.npz", x=np.float32([1]), t=np.arange(9, dtype=np.float32))
    arguments = (tmp_path / "fp32.onnx", "--calib", tmp_path / "data", "--artifact", tmp_path / "fp16.onnx")
    assert _run("verify", *arguments) == 1
    said = capsys.readouterr()
    assert said.out.startswith("WRONG y: it cannot be computed on b.npz: ")
    assert said.err == ""


def test_nothing_compared_is_nothing_proved(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[N] y)
        { b = Greater(x, x) a = Abs(x) y = Compress(a, b) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "b.npz", x=np.float32([1, 2, 3, 4]))
    out = tmp_path / "out"
    assert _run(tmp_path / "m.onnx", "--calib", tmp_path / "data", "--out", out, "-q") == 1
    assert "empty in every batch" in (out / "report.json").read_text()


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (RuntimeError("odd"), 70)])
def test_an_interrupt_and_a_fault_have_their_own_exit_codes(
    error: BaseException,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("overflow_fixer.cli.fix.fix", fail)
    sample = SAMPLES / "conv_chain"
    assert _run(sample / "model.onnx", "--calib", sample / "data", "--out", tmp_path) == code
    assert capsys.readouterr().err.lstrip().startswith("fix-fp16: ")
