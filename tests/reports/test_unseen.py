"""What the numbers that outputs pass by do not show, and is told."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_memory_calibration import make_model, node, save, scalar
from onnx import TensorProto
from report_factories import make_error

from overflow_fixer.config import BuildOptions, FixConfig, PlanOptions, VerifyOptions
from overflow_fixer.graph.model import load_graph
from overflow_fixer.pipeline import fix
from overflow_fixer.records import (
    FixReport,
    OutputVerdict,
    SignChange,
    Tolerance,
    Verification,
)
from overflow_fixer.reports import render_text
from overflow_fixer.reports.unseen import (
    _ask,
    _warn_of_quiet,
    say_far_off,
    say_hidden,
    say_sign_changes,
    say_varying,
    say_zero,
)


@pytest.mark.parametrize("max_abs_error", [0.0, 1.0])
def test_a_batch_that_passes_for_being_quiet_is_told_as_it_is(tmp_path: Path, max_abs_error: float) -> None:
    """x / 10000 is 0 in FP16 where x is about 1e-4."""
    nodes = [node("Mul", "x down", "a"), node("Relu", "a", "b"), node("Mul", "b up", "y")]
    save(make_model(nodes, {"x": ["N", 4]}, "y", {"down": scalar(1e-4), "up": scalar(1e4)}), tmp_path)
    loud = np.array([[1, 2, 3, 4]], np.float32)
    np.savez(tmp_path / "data.npz", x=np.concatenate([loud, loud, loud * np.float32(1e-5)]))
    config = FixConfig(
        model=tmp_path / "model.onnx",
        calib=tmp_path / "data.npz",
        out=tmp_path / "out",
        build=BuildOptions.model_validate({"backend": "onnx"}),
        plan=PlanOptions.model_validate({"exclude_nodes": [".*"]}),
        verify=VerifyOptions.model_validate({"max_abs_error": max_abs_error}),
    )
    report = fix(config)
    assert report.passed
    (verdict,) = report.fixed.outputs
    assert verdict.error.quiet_batch_snr_db == 0.0  # nothing is left
    told = [warning for warning in report.warnings if "under 1 % of its mean energy" in warning]
    assert bool(told) == (max_abs_error == 0.0)
    failing = replace(verdict, passed=False)
    of_integers = replace(verdict, error=replace(verdict.error, is_float=False))
    for other in (failing, of_integers):
        assert not list(_warn_of_quiet(other, config.verify.tolerance()))
    for warning in told:
        assert f"Output y has under 1 % of its mean energy in {verdict.error.quiet_batch}" in warning
        assert "where its SNR is 0.0 dB: it passes there" in warning
    two = replace(verdict, error=replace(verdict.error, quiet_count=2))
    for warning in _warn_of_quiet(two, config.verify.tolerance()):
        assert "where its SNR is 0.0 dB (2 batches have as little, this is the worst): it" in warning


def _fix_in_fp16(folder: Path) -> FixReport:
    """Of the model and the data there, with every node in FP16."""
    plan = PlanOptions.model_validate({"exclude_nodes": [".*"]})
    return fix(FixConfig(model=folder / "model.onnx", calib=folder / "a.npz", out=folder / "out", plan=plan))


def test_a_mask_in_an_output_is_no_signal(tmp_path: Path) -> None:
    """x / 10000 is 0 in FP16 where x is about 1e-5, which beside -10000 is nothing."""
    nodes = [
        node("Mul", "x down", "a"),
        node("Relu", "a", "b"),
        node("Mul", "b up", "c"),
        node("Where", "m low c", "y"),
    ]
    constants = {"down": scalar(1e-4), "up": scalar(1e4), "low": scalar(-1e4)}
    model = make_model(nodes, {"x": ["N", 4], "m": (TensorProto.BOOL, ["N", 4])}, "y", constants)
    save(model, tmp_path)
    x = np.array([[1, 2, 3, 4]], np.float32) * np.float32(1e-5)
    np.savez(tmp_path / "data.npz", x=x, m=np.array([[True, False, False, True]]))
    report = fix(FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "data.npz", out=tmp_path / "out"))
    assert report.naive is not None
    assert not report.naive.passed
    assert report.passed
    assert report.plan.pinned >= {"Mul_a"}
    assert report.fixed.outputs[0].error.max_abs_reference < 1
    assert report.tolerance.fills == {"y": (-1e4,)}


@pytest.mark.parametrize("fills", [(-8.0,), (5000.0, -5000.0)])
def test_constants_that_are_most_of_an_output_hide_nothing(fills: tuple[float, ...], tmp_path: Path) -> None:
    """x + 700 - 700, of which FP16 keeps halves, in one of five places."""
    nodes = [
        node("Add", "x k", "a"),
        node("Sub", "a k", "z"),
        node("Where", "n first last", "f"),
        node("Where", "m z f", "y"),
    ]
    constants = {"k": scalar(700), "first": scalar(fills[0]), "last": scalar(fills[-1])}
    masks = dict.fromkeys("mn", (TensorProto.BOOL, [4, 100]))
    save(make_model(nodes, {"x": [4, 100], **masks}, "y", constants), tmp_path)
    rng = np.random.default_rng(2)
    m, n = (rng.random((4, 100)) < share for share in (0.2, 0.5))
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(4, 100)).astype(np.float32), m=m, n=n)
    report = fix(FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "data.npz", out=tmp_path / "out"))
    assert report.tolerance.fills == {"y": tuple(sorted(set(fills)))}
    assert report.naive is not None
    assert not report.naive.passed
    assert report.passed
    assert {"Add_a", "Sub_z"} <= set(report.plan.pinned)


def test_a_mask_that_is_added_to_an_output_hides_nothing(tmp_path: Path) -> None:
    """x + 700 - 700, of which FP16 keeps halves, less 10000 in four of five places."""
    nodes = [
        node("Add", "x k", "a"),
        node("Sub", "a k", "z"),
        node("Sub", "one m", "n"),
        node("Mul", "n low", "mask"),
        node("Add", "z mask", "y"),
    ]
    constants = {"k": scalar(700), "one": scalar(1), "low": scalar(-1e4)}
    save(make_model(nodes, {"x": [4, 100], "m": [4, 100]}, "y", constants), tmp_path)
    rng = np.random.default_rng(2)
    m = (rng.random((4, 100)) < 0.2).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=rng.normal(size=(4, 100)).astype(np.float32), m=m)
    report = fix(FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "data.npz", out=tmp_path / "out"))
    assert report.tolerance.fills == {"y": (-1e4,)}
    assert report.naive is not None
    assert (report.naive.passed, report.passed) == (False, True)
    assert report.fixed.outputs[0].error.max_abs_reference < 10


def _choose(folder: Path, flipped: list[int]) -> FixReport:
    """The index of the larger of x and 1 + 2^-11, which is 1 in FP16, in 120 batches: 1 as well in those that are flipped."""
    nodes = [node("Concat", "x above", "a", axis=0), node("ArgMax", "a", "y", axis=0, keepdims=0)]
    above = np.full((1, 10), 1 + 2**-11, np.float32)
    save(make_model(nodes, {"x": ["N", 10]}, "y", {"above": above}, output_types={"y": 7}), folder)
    (folder / "data").mkdir()
    for index in range(120):
        np.save(
            folder / "data" / f"b{index:03}.npy", np.full((1, 10), 1 if index in flipped else 0, np.float32)
        )
    options = {
        "build": BuildOptions.model_validate({"backend": "onnx"}),
        "plan": PlanOptions.model_validate({"exclude_nodes": [".*"]}),
    }
    return fix(FixConfig(model=folder / "model.onnx", calib=folder / "data", out=folder / "out", **options))


def test_a_batch_of_indices_that_are_all_others_is_told(tmp_path: Path) -> None:
    report = _choose(tmp_path, [77])
    assert report.passed
    told = [text for text in report.warnings if text.startswith("Output y passes with 99.17% of its values")]
    assert ["in b077.npy only 0.00% are, under 99%. One value" in text for text in told] == [True]
    assert "leaves room" not in render_text(report)


@pytest.mark.parametrize("elements", [10, 3])
def test_a_class_that_is_lost_beside_others_is_told(elements: int, tmp_path: Path) -> None:
    """The index of the larger of x and 1 + 2^-11, which is 1 in FP16, as x is at so many of 2,000 places."""
    nodes = [node("Concat", "x above", "a", axis=0), node("ArgMax", "a", "y", axis=0, keepdims=0)]
    x = np.full((2, 1, 2000), 2, np.float32)
    x[:, :, :elements] = 1
    above = np.full((1, 2000), 1 + 2**-11, np.float32)
    save(make_model(nodes, {"x": [1, 2000]}, "y", {"above": above}, output_types={"y": 7}), tmp_path)
    np.savez(tmp_path / "a.npz", x=x[0])
    report = _fix_in_fp16(tmp_path)
    assert report.passed
    told = f"of the {elements} elements that are 1 in FP32, over all batches, 0 are. If it holds classes"
    assert [text for text in report.warnings if told in text]
    written = json.loads((tmp_path / "out" / "report.json").read_text())["verification"]["fixed"]
    assert written["hidden_classes"] == [
        {"output": "y", "value": 1, "count": 1, "elements": elements, "equal": 0}
    ]


def test_alarms_that_fp32_does_not_raise_are_told(tmp_path: Path) -> None:
    """x is below 1, and 1 in FP16, at 12 of 2,000 places."""
    nodes = [node("Mul", "x one", "a"), node("Less", "a one", "calm"), node("Not", "calm", "y")]
    model = make_model(nodes, {"x": [1, 2000]}, "y", {"one": scalar(1)}, output_types={"y": TensorProto.BOOL})
    save(model, tmp_path)
    x = np.zeros((1, 2000), np.float32)
    x[:, :12] = 1 - 2**-13
    np.savez(tmp_path / "a.npz", x=x)
    report = _fix_in_fp16(tmp_path)
    assert report.passed
    told = "over all batches 12 elements are 1, against 0 in FP32. If it holds classes or alarms"
    assert [text for text in report.warnings if told in text]
    written = json.loads((tmp_path / "out" / "report.json").read_text())["verification"]["fixed"]
    assert written["gained_classes"] == [{"output": "y", "value": 1, "count": 1, "elements": 0, "found": 12}]


def test_indices_that_are_as_in_fp32_are_not(tmp_path: Path) -> None:
    report = _choose(tmp_path, [])
    assert not [text for text in report.warnings if "of its values" in text]
    assert "leaves room" in render_text(report)


def _two_scales(folder: Path, last: str) -> FixConfig:
    """One output of two channels, 1000 tanh(x) and 1e-9 tanh(x), of which FP16 makes zeros."""
    nodes = [node("Tanh", "x", "t"), node("Mul", "t scales", "y" if last == "Mul" else "m")]
    nodes += [] if last == "Mul" else [node(last, "m", "y", axis=1)]
    scales = np.array([[[1000.0], [1e-9]]], np.float32)
    save(make_model(nodes, {"x": [1, 2, 20]}, "y", {"scales": scales}), folder)
    x = np.linspace(-1, 1, 40, dtype=np.float32).reshape(1, 2, 20)
    np.savez(folder / "data.npz", x=x)
    build = BuildOptions(backend="onnx")
    return FixConfig(model=folder / "model.onnx", calib=folder / "data.npz", out=folder / "out", build=build)


def test_a_channel_that_is_lost_beside_a_larger_one_is_told(tmp_path: Path) -> None:
    report = fix(_two_scales(tmp_path, "Mul"))
    assert report.passed
    (warning,) = report.warnings
    x = np.load(tmp_path / "data.npz")["x"].astype(np.float64)
    there = np.sqrt(np.mean(np.tanh(x[0, 1]) ** 2)) * 1e-9
    assert warning.startswith(
        "Output y passes as a whole, but at index 1 of axis 1 (counted from 0) its SNR is 0.0 dB, under 30 dB. "
        f"What is there, {there:.3g} (root mean square), is hidden beside the "
    )
    written = json.loads((tmp_path / "out" / "report.json").read_text())["verification"]["fixed"]["hidden"]
    assert [(one["output"], one["axis"], one["index"], one["count"]) for one in written] == [("y", 1, 1, 1)]


def _fix_warming(folder: Path, base: np.ndarray, **verify: Any) -> FixReport:
    """288 K and a tenth of a degree of change, which FP16 has not got there."""
    folder.mkdir()
    nodes = [node("Mul", "x tenth", "a"), node("Add", "a k", "y")]
    save(make_model(nodes, {"x": [4, 64]}, "y", {"tenth": scalar(0.1), "k": base}), folder)
    np.savez(folder / "data.npz", x=np.random.default_rng(6).normal(size=(4, 64)).astype(np.float32))
    config = FixConfig(
        model=folder / "model.onnx",
        calib=folder / "data.npz",
        out=folder / "out",
        build=BuildOptions.model_validate({"backend": "onnx"}),
        verify=VerifyOptions.model_validate(verify),
    )
    return fix(config)


def test_of_samples_with_means_of_their_own_the_same_is_asked_for(tmp_path: Path) -> None:
    """Whose mean is nothing."""
    base = np.array([[288], [-288], [288], [-288]], np.float32)
    (told,) = _fix_warming(tmp_path / "told", base).warnings
    needed = float(told.split("ask for ")[1].split(" dB")[0])
    assert needed == pytest.approx(30 + 20 * math.log10(288 / 0.0994), abs=1)


def test_what_varies_beside_a_mean_is_told_and_can_be_asked_for(tmp_path: Path) -> None:
    report = _fix_warming(tmp_path / "told", scalar(288))
    assert report.passed
    (told,) = report.warnings
    assert told.startswith(
        "Output y passes as a whole, but within each sample it varies by 0.0994 (root mean square) beside values of 288.005, "
    )
    needed = float(told.split("ask for ")[1].split(" dB")[0])
    written = json.loads((tmp_path / "told" / "out" / "report.json").read_text())["verification"]["fixed"]
    assert written["hidden_variations"][0]["snr_db"] < 10
    asked = _fix_warming(tmp_path / "asked", scalar(288), min_snr_db=needed)
    assert (asked.passed, asked.warnings) == (True, ())
    assert asked.fixed.outputs[0].error.snr_db > needed
    assert (
        list(
            say_varying(
                report.fixed, load_graph(tmp_path / "told" / "model.onnx"), Tolerance(max_abs_error=1)
            )
        )
        == []
    )


@pytest.mark.parametrize("kind", ["varying", "far off", "zero"])
def test_the_flag_that_counts_for_all_outputs_is_named_where_there_is_one_alone(
    kind: str, tmp_path: Path
) -> None:
    made = {
        "varying": lambda folder: _fix_warming(folder, scalar(288)),
        "far off": _fix_distances,
        "zero": lambda folder: _fix_variances(folder, "Sqrt"),
    }
    say = {"varying": say_varying, "far off": say_far_off, "zero": say_sign_changes}[kind]
    fixed = made[kind](tmp_path / "m").fixed
    graph = load_graph(tmp_path / "m" / "model.onnx")
    (alone,) = say(fixed, graph, Tolerance())
    assert "--min-snr-db" in alone
    assert 'or "y"' in alone
    beside = replace(fixed, outputs=(*fixed.outputs, OutputVerdict(make_error("z"), True, "")))
    for told in (*say(beside, graph, Tolerance()), *say(fixed, graph, Tolerance(per_output={"y": 30.0}))):
        assert "--min-snr-db" not in told
        assert "in the table [verify.per_output]" in told
    assert len([*say(beside, graph, Tolerance())]) == 1


def test_a_name_is_advised_as_toml_spells_it(tmp_path: Path) -> None:
    fixed = _fix_warming(tmp_path / "m", scalar(288)).fixed
    assert _ask('a"\\ü', fixed, Tolerance(), 40).startswith('"a\\"\\\\ü" = 40 in the table')


def test_of_probabilities_small_ones_are_not_told(tmp_path: Path) -> None:
    report = fix(_two_scales(tmp_path, "Softmax"))
    assert report.passed
    assert report.fixed.hidden
    assert report.warnings == ()


def test_an_output_that_is_zero_in_every_batch_is_told_to_prove_nothing(tmp_path: Path) -> None:
    """A Relu closes it in all batches; beside it a mask of 0 and -inf, a count of 0, and an output in order."""
    nodes = [
        node("Relu", "x", "y"),
        node("Neg", "x", "z"),
        node("Where", "none low y", "mask"),
        node("Cast", "y", "count", to=TensorProto.INT64),
    ]
    constants = {"none": np.array([True, False]), "low": scalar(-np.inf)}
    model = make_model(
        nodes, {"x": ["n", 2]}, "y z mask count", constants, output_types={"count": TensorProto.INT64}
    )
    save(model, tmp_path)
    np.savez(tmp_path / "data.npz", x=np.array([[-1, -2], [-3, -5]], np.float32))
    report = fix(FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "data.npz", out=tmp_path / "out"))
    assert report.passed
    assert [warning for warning in report.warnings if "zero" in warning] == [
        "Output y: zero in every batch, in FP32 and in what was built. Nothing can be concluded of it from these data, an SNR of inf dB "
        "neither. Verify on data that give something else."
    ]


ZERO = {"snr_db": math.inf, "max_abs_error": 0.0, "max_abs_reference": 0.0}


@pytest.mark.parametrize(
    ("changes", "is_said"),
    [
        ({}, True),
        ({"max_abs_reference": 1e-30}, False),
        ({"snr_db": -math.inf, "max_abs_error": 1e-9}, False),
        ({"element_count": 0, "compared": 0, "max_abs_reference": math.nan}, False),
        ({"compared": 2999, "reference_inf": 1, "candidate_inf": 1}, False),
        ({"is_float": False}, False),
    ],
)
def test_zero_is_said_of_what_is_zero_on_both_sides(changes: dict[str, Any], is_said: bool) -> None:
    errors = make_error("y"), make_error("z", **{**ZERO, **changes}), make_error("w", part="[:, 1]", **ZERO)
    found = list(
        say_zero(Verification(tuple(OutputVerdict(error, True, "") for error in errors), 3), Tolerance())
    )
    (said,) = found
    assert said.startswith("Outputs z, w[:, 1]: zero in every batch" if is_said else "Output w[:, 1]: zero")


def test_where_the_absolute_error_is_allowed_nothing_is_hidden(tmp_path: Path) -> None:
    config = _two_scales(tmp_path, "Mul").model_copy(update={"verify": VerifyOptions(max_abs_error=1.0)})
    report = fix(config)
    assert report.fixed.hidden
    assert report.warnings == ()


@pytest.mark.parametrize("part", ["y[:, 1]", "y[:,1]"])
def test_a_channel_that_is_judged_by_itself_is_repaired_and_not_told(part: str, tmp_path: Path) -> None:
    """Nor is it where it fails: the table says so."""
    verify = VerifyOptions(parts=(part,))
    report = fix(_two_scales(tmp_path, "Mul").model_copy(update={"verify": verify}))
    assert (report.passed, report.plan.pinned, report.warnings) == (True, {"Mul_y"}, ())
    assert report.naive is not None
    assert report.naive.hidden
    assert list(say_hidden(report.naive, load_graph(tmp_path / "model.onnx"), verify.tolerance())) == []
    assert [(one.error.name, one.passed) for one in report.naive.outputs] == [("y", True), (part, False)]
    (finding,) = report.plan.pins[0].findings
    assert f"the error that {part} may have" in finding.reason
    told = " ".join(render_text(report).split())
    assert "FIXED and verified: 1 output and 1 part within tolerance of FP32 on 1 batch." in told


def test_a_filled_output_of_nothing_else_is_told_as_such() -> None:
    verdict = OutputVerdict(make_error("y", **ZERO), True, "")
    (said,) = say_zero(Verification((verdict,), 3), Tolerance(fills={"y": (-1e9,)}))
    assert said.startswith("Output y: zero or a constant that fills it in every batch")


def _fix_weather(folder: Path, **verify: Any) -> FixReport:
    """A temperature around 288 and a pressure around 1013, whose change FP16 has not got."""
    folder.mkdir()
    nodes = [node("Mul", "x deviations", "a"), node("Add", "a means", "y")]
    constants = {"deviations": np.float32([0.1, 0.5]), "means": np.float32([288, 1013])}
    save(make_model(nodes, {"x": [4, 64, 2]}, "y", constants), folder)
    np.savez(folder / "data.npz", x=np.random.default_rng(6).normal(size=(4, 64, 2)).astype(np.float32))
    config = FixConfig(
        model=folder / "model.onnx",
        calib=folder / "data.npz",
        out=folder / "out",
        build=BuildOptions.model_validate({"backend": "onnx"}),
        verify=VerifyOptions.model_validate(verify),
    )
    return fix(config)


def test_what_varies_in_a_channel_is_told_and_can_be_asked_for(tmp_path: Path) -> None:
    report = _fix_weather(tmp_path / "told")
    assert report.passed
    (told,) = report.warnings
    assert told.startswith(
        "Output y passes as a whole, but in the channel y[..., 0] (and 1 more like it) within each sample it varies by 0.1"
    )
    part, needed = told.split('this channel: "')[1].split(" in the table")[0].split('" = ')
    written = json.loads((tmp_path / "told" / "out" / "report.json").read_text())["verification"]["fixed"]
    (one,) = written["hidden_variations"]
    assert (one["axis"], one["index"], one["count"]) == (2, 0, 2)
    asked = _fix_weather(tmp_path / "asked", per_output={part: float(needed)})
    assert (asked.passed, asked.warnings) == (True, ())


def _fix_distances(folder: Path, **verify: Any) -> FixReport:
    """u - v, by rows: half of them near (0.02 at 40), half far."""
    folder.mkdir()
    nodes = [node("Sub", "u v", "d"), node("Abs", "d", "y")]
    save(make_model(nodes, {"u": ["N", 1], "v": ["N", 1]}, "y"), folder)
    rng = np.random.default_rng(8)
    u = rng.uniform(30, 60, (400, 1))
    v = np.where(np.arange(400)[:, None] % 2, u + rng.normal(size=u.shape) * 0.02, 60 - u)
    np.savez(folder / "data.npz", u=u.astype(np.float32), v=v.astype(np.float32))
    config = FixConfig(
        model=folder / "model.onnx",
        calib=folder / "data.npz",
        out=folder / "out",
        build=BuildOptions.model_validate({"backend": "onnx"}),
        plan=PlanOptions.model_validate({"exclude_nodes": [".*"]}),
        verify=VerifyOptions.model_validate(verify),
    )
    return fix(config)


def test_rows_that_are_wrong_beside_larger_ones_are_told(tmp_path: Path) -> None:
    report = _fix_distances(tmp_path / "told")
    assert report.passed
    (verdict,) = report.fixed.outputs
    counts = verdict.error.far_off_count, verdict.error.sizable_count
    told = f"Output y passes, but {counts[0]} of its {counts[1]} values of 2^-14 and more are off by more than a tenth"
    assert [text for text in report.warnings if text.startswith(told)]
    (written,) = json.loads((tmp_path / "told" / "out" / "report.json").read_text())["verification"]["fixed"][
        "outputs"
    ]
    assert (written["error"]["far_off_count"], written["error"]["sizable_count"]) == counts
    allowed = _fix_distances(tmp_path / "allowed", max_abs_error=1.0)
    assert not [text for text in allowed.warnings if "off by more than a tenth" in text]


def _fix_variances(folder: Path, last: str, excluded: tuple[str, ...] = (".*",), **verify: Any) -> FixReport:
    """E[x^2] - E[x]^2 of rows around 6, or its root: the 30 rows at the end vary by 0.1, the others by 3."""
    folder.mkdir()
    nodes = [
        node("Mul", "x x", "squares"),
        node("ReduceMean", "squares", "e", axes=[1], keepdims=0),
        node("ReduceMean", "x", "m", axes=[1], keepdims=0),
        node("Mul", "m m", "mm"),
        node("Sub", "e mm", "y" if last == "Sub" else "v"),
    ]
    nodes += [] if last == "Sub" else [node("Relu", "v", "r"), node(last, "r", "y")]
    save(make_model(nodes, {"x": [100, 200]}, "y"), folder)
    rng = np.random.default_rng(3)
    deviations = np.where(np.arange(100) < 70, 3, 0.1)[:, None]
    np.savez(folder / "a.npz", x=(rng.normal(size=(100, 200)) * deviations + 6).astype(np.float32))
    plan = PlanOptions.model_validate({"exclude_nodes": excluded})
    options = VerifyOptions.model_validate(verify)
    config = {"model": folder / "model.onnx", "calib": folder / "a.npz", "out": folder / "out"}
    return fix(FixConfig(**config, plan=plan, verify=options))


@pytest.mark.parametrize(
    ("last", "becomes", "uncounted", "worst"),
    [
        ("Sub", "negative", "of what FP32 has under 2^-14, or 2^-20 of", "-0.0"),
        ("Sqrt", "zero", "not counting those that FP32 has under 2^-14, or 2^-11 of", "0 in place of 0.1"),
    ],
)
def test_variances_that_become_negative_or_zero_are_told(
    last: str, becomes: str, uncounted: str, worst: str, tmp_path: Path
) -> None:
    report = _fix_variances(tmp_path / "told", last)
    assert report.passed
    (found,) = (found for found in report.fixed.sign_changes if found.becomes == becomes)
    start = f"Output y passes, but {found.count} of its 100 elements are {becomes}, as none is in FP32 ({uncounted}"
    (warning,) = (text for text in report.warnings if text.startswith(start))
    assert f"): the worst is {worst}" in warning
    assert f"in {found.batch}. The SNR of {report.fixed.outputs[0].error.snr_db:.1f} dB is" in warning
    assert "ask for more of it: --min-snr-db" in render_text(report)
    document = json.loads((tmp_path / "told" / "out" / "report.json").read_text())["verification"]
    written = [one for one in document["fixed"]["sign_changes"] if one["becomes"] == becomes]
    assert written == [
        {
            "output": "y",
            "part": "",
            "becomes": becomes,
            "count": found.count,
            "elements": 100,
            "reference": found.reference,
            "candidate": found.candidate,
            "batch": found.batch,
        }
    ]
    assert document["naive"]["sign_changes"] == document["fixed"]["sign_changes"]
    allowed = _fix_variances(tmp_path / "allowed", last, max_abs_error=1.0)
    assert allowed.fixed.sign_changes
    assert not [text for text in allowed.warnings if "as none is in FP32" in text]


def test_asked_for_more_the_signs_stay(tmp_path: Path) -> None:
    report = _fix_variances(tmp_path / "asked", "Sub", (), min_snr_db=90)
    assert report.passed
    assert report.fixed.sign_changes == ()
    assert not [text for text in report.warnings if "as none is in FP32" in text]


def test_of_an_output_that_fails_or_holds_probabilities_no_sign_is_told(tmp_path: Path) -> None:
    change = SignChange("y", "", "zero", 1, 9, 0.5, 0.0, "b0")
    for op_type, passed, is_told in (("Neg", True, True), ("Neg", False, False), ("Softmax", True, False)):
        graph = save(make_model([node(op_type, "x", "y")], {"x": [1]}, "y"), tmp_path)
        verdict = OutputVerdict(make_error("y"), passed, "")
        found = Verification((verdict,), 3, sign_changes=(change,))
        assert bool(list(say_sign_changes(found, graph, Tolerance()))) == is_told


@pytest.mark.parametrize(
    ("sizable", "far_off", "min_snr_db", "is_told"),
    [
        (1000, 250, 30, True),
        (1000, 249, 30, False),
        (1000, 499, 20, False),
        (1000, 500, 20, True),
        (1000, 250, 60, True),
        (1000, 250, 9999, True),
        (8, 2, 30, True),
        (7, 7, 30, False),
        (0, 0, 30, False),
    ],
)
def test_a_quarter_is_more_than_30_db_allow(
    sizable: int, far_off: int, min_snr_db: float, is_told: bool, tmp_path: Path
) -> None:
    graph = save(make_model([node("Neg", "x", "y")], {"x": [1]}, "y"), tmp_path)
    error = make_error("y", sizable_count=sizable, far_off_count=far_off)
    tolerance = Tolerance(min_snr_db=min_snr_db)
    fixed = Verification((OutputVerdict(error, True, ""),), 3)
    assert bool(list(say_far_off(fixed, graph, tolerance))) == is_told
    failing = Verification((OutputVerdict(error, False, ""),), 3)
    assert not list(say_far_off(failing, graph, tolerance))
