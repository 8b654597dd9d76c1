"""What a report warns of."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, make_model, node, save, scalar
from onnx import TensorProto
from report_factories import make_error

from overflow_fixer.attempts import Attempt
from overflow_fixer.config import BuildOptions, FixConfig, PlanOptions, VerifyOptions
from overflow_fixer.graph import load_graph
from overflow_fixer.pipeline import fix
from overflow_fixer.planning import plan_precision
from overflow_fixer.progress import silent
from overflow_fixer.ranges import collect_ranges
from overflow_fixer.records import (
    Budget,
    Engine,
    FixReport,
    OutputVerdict,
    PlanPolicy,
    RepairRound,
    Tolerance,
    Verification,
)
from overflow_fixer.reports import render_text
from overflow_fixer.reports.caveats import (
    _warn_of_quiet,
    say_hidden,
    say_luck,
    say_spent,
    say_thin,
    say_unclamped,
    say_unsettled,
    say_varying,
    say_zero,
)
from overflow_fixer.trials import Bench

SAMPLE = Path(__file__).parents[2] / "calib_data" / "conv_chain"
WIDE = np.array([[1, 1e5, 3, 4], [2, -7, 1e5, 5]], np.float32)


def _config(folder: Path, **build: object) -> FixConfig:
    options = BuildOptions.model_validate({"backend": "onnx", **build})
    return FixConfig(model=SAMPLE / "model.onnx", calib=SAMPLE / "data", out=folder / "out", build=options)


def test_what_overflows_in_the_models_own_fp16_is_named_and_never_passes(tmp_path: Path) -> None:
    nodes = [
        node("Cast", "x", "half", to=TensorProto.FLOAT16),
        node("Mul", "half half", "square"),
        node("Cast", "square", "wide", to=TensorProto.FLOAT),
        node("Add", "wide x", "y"),
    ]
    save(make_model(nodes, {"x": [2]}, "y"), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.array([300, 2], np.float32))
    config = FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "data.npz", out=tmp_path / "out")
    report = fix(config.model_copy(update={"build": BuildOptions(backend="onnx")}))
    assert not report.passed
    (warning,) = report.warnings
    assert warning.startswith(
        "Tensor square is FP16 in the model itself, and holds 0 NaN and 1 infinite values there"
    )
    reasons = [finding.reason for finding in report.plan.considered if finding.rule == "non_finite"]
    assert len(reasons) == 5
    assert all("as the model stands; " in reason for reason in reasons)


def test_nan_of_the_models_own_fp16_is_not_said_to_be_that_of_fp32(tmp_path: Path) -> None:
    """x - mean(x) of what a Cast made infinite: inf - inf. The logarithm beside it is FP32's."""
    nodes = [
        node("Mul", "x x", "square"),
        node("Cast", "square", "half", to=TensorProto.FLOAT16),
        node("Cast", "half", "wide", to=TensorProto.FLOAT),
        node("ReduceMean", "wide", "mean"),
        node("Sub", "wide mean", "y"),
        node("Neg", "square", "low"),
        node("Log", "low", "z"),
    ]
    report = _fix(make_model(nodes, {"x": [2]}, "y z"), tmp_path, x=np.array([300, 2], np.float32))
    assert [warning.partition(" in ")[::2] for warning in report.warnings[:2]] == [
        ("The model as it stands, with its own FP16, gives NaN", "y."),
        ("FP32 itself gives NaN", "z: no precision can mend that."),
    ]
    assert report.warnings[2].startswith("Tensor half is FP16 in the model itself, and holds 0 NaN and 1 inf")
    assert not {"ReduceMean_mean", "Sub_y"} & report.plan.pinned
    assert "Log_z" in report.plan.pinned


def _fix(
    model: onnx.ModelProto, folder: Path, io_types: Literal["keep", "fp16"] = "keep", **feeds: Any
) -> FixReport:
    save(model, folder)
    np.savez(folder / "data.npz", **feeds)
    config = FixConfig(model=folder / "model.onnx", calib=folder / "data.npz", out=folder / "out")
    return fix(config.model_copy(update={"build": BuildOptions(backend="onnx", io_types=io_types)}))


def test_an_input_that_fp16_does_not_hold_is_named_and_nothing_is_repaired(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    nodes = [node("Mul", "x small", "a"), node("MatMul", "a w", "y")]
    model = make_model(nodes, {"x": [2, 4]}, "y", {"small": scalar(1e-5), "w": weights})
    report = _fix(model, tmp_path, "fp16", x=WIDE)
    assert not report.passed
    assert report.rounds == ()
    for found in (report.naive, report.fixed):
        assert found is not None
        assert found.first_wrong is not None
        assert (found.first_wrong.tensor, found.first_wrong.candidate_inf) == ("x", 2)
    (warning,) = report.warnings
    assert warning == (
        "Input x, which --io-types fp16 makes FP16, has max |x| of 100000 [data.npz[0:2]], over FP16's 65504: no plan mends "
        "that, --io-types keep does. No repair was tried: with FP16 inputs and outputs alone, FP32 in between, y is wrong."
    )
    kept = _fix(model, tmp_path, x=WIDE)
    assert kept.passed
    assert kept.warnings == ()


def test_an_output_that_fp16_does_not_hold_is_named_and_nothing_is_repaired(tmp_path: Path) -> None:
    model = make_model([node("Relu", "x", "a"), node("Mul", "a a", "y")], {"x": [2]}, "y")
    report = _fix(model, tmp_path, "fp16", x=np.array([300, 2], np.float32))
    assert (report.passed, report.rounds) == (False, ())
    assert report.fixed.first_wrong is not None
    assert report.fixed.first_wrong.tensor == "y"
    assert [text[:50] for text in report.warnings] == ["Output y, which --io-types fp16 makes FP16, has ma"]


def test_digits_that_an_fp16_input_loses_are_no_matter_of_repair(tmp_path: Path) -> None:
    """20000.3 is 20000 in FP16, before anything is computed."""
    model = make_model([node("Sub", "x far", "y")], {"x": [2]}, "y", {"far": scalar(20000)})
    report = _fix(model, tmp_path, "fp16", x=np.array([20000.3, 20005], np.float32))
    assert (report.passed, report.rounds) == (False, ())
    assert report.warnings == (
        "No repair was tried: with FP16 inputs and outputs alone, FP32 in between, y is wrong: use --io-types keep.",
    )


def test_an_input_over_the_range_that_does_no_harm_is_said_and_passes(tmp_path: Path) -> None:
    model = make_model([node("Min", "x ten", "y")], {"x": [2, 4]}, "y", {"ten": scalar(10)})
    report = _fix(model, tmp_path, "fp16", x=WIDE)
    assert report.passed
    assert [text[:30] for text in report.warnings] == ["Input x, which --io-types fp16"]
    assert "No repair" not in report.warnings[0]


def test_what_goes_wrong_in_between_is_not_laid_to_fp16_inputs_and_outputs(tmp_path: Path) -> None:
    model = make_model(
        [node("Mul", "x big", "a"), node("Div", "a big", "y")], {"x": [2]}, "y", {"big": scalar(1e5)}
    )
    save(model, tmp_path)
    np.savez(tmp_path / "data.npz", x=np.array([3, 5], np.float32))
    config = FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "data.npz", out=tmp_path / "out")
    build = BuildOptions(backend="onnx", io_types="fp16")
    graph = load_graph(config.model)
    calibration = InMemoryCalibration([{"x": np.array([3, 5], np.float32)}])
    config = config.model_copy(update={"build": build})
    with Bench(config, graph, calibration, collect_ranges(graph, calibration), "onnx", silent) as bench:
        _, found = bench.try_naive()
        assert bench.find_lost_outputs() == ()
    assert found.first_wrong is not None
    assert found.first_wrong.tensor == "a"


@pytest.mark.parametrize(("x", "is_told"), [(0.5001, True), (0.75, False)])
def test_steps_of_a_quantized_model_are_named_where_nodes_are_pinned_for_them(
    x: float, is_told: bool, tmp_path: Path
) -> None:
    """0.5001 becomes 1, and in FP16 0."""
    nodes = [
        node("Mul", "x one", "a"),
        node("QuantizeLinear", "a one zero", "q"),
        node("DequantizeLinear", "q one zero", "b"),
        node("Neg", "b", "y"),
    ]
    constants = {"one": scalar(1), "zero": np.asarray(0, np.int8)}
    model = make_model(nodes, {"x": [2]}, "y", constants)
    report = _fix(model, tmp_path, x=np.array([x, 3], np.float32))
    assert report.passed
    told = [warning for warning in report.warnings if warning.startswith("The model quantizes at 1 place. ")]
    assert len(told) == is_told
    pinned = sum(any(found.rule == "repair" for found in pin.findings) for pin in report.plan.pins)
    assert bool(pinned) == is_told
    assert all(f"a whole step, and {pinned} node" in warning for warning in told)


def test_what_draws_random_numbers_is_named_where_it_fails(tmp_path: Path) -> None:
    """A dropout that was exported for training."""
    constants = {"ratio": scalar(0.5), "training": np.asarray(True)}
    model = make_model([node("Dropout", "x ratio training", "y")], {"x": [4096]}, "y", constants)
    report = _fix(model, tmp_path, x=np.ones(4096, np.float32))
    assert not report.passed
    assert [w[:55] for w in report.warnings] == ["Dropout Dropout_y may give other values each time it ru"]


def test_what_draws_random_numbers_is_named_where_it_has_nodes_pinned(tmp_path: Path) -> None:
    """Of four numbers, with which a repair may have luck; never pinned without a word."""
    nodes = [node("Relu", "x", "a"), node("RandomNormalLike", "a", "noise"), node("Mul", "a noise", "y")]
    model = make_model(nodes, {"x": [4]}, "y")
    report = _fix(model, tmp_path, x=np.ones(4, np.float32))
    is_told = any(warning.startswith("RandomNormalLike") for warning in report.warnings)
    assert is_told == (not report.passed or bool(report.plan.pins))


@pytest.mark.parametrize("ir_version", [3, 8])
def test_defaults_that_become_constants_are_named(ir_version: int, tmp_path: Path) -> None:
    """Before IR version 4 every initializer has to be an input, and none can be fed."""
    model = make_model([node("Mul", "x w", "y")], {"x": [4], "w": []}, "y", {"w": scalar(2)})
    model.ir_version = ir_version
    report = _fix(model, tmp_path, x=np.ones(4, np.float32))
    told = [warning for warning in report.warnings if warning.startswith("The model has defaults")]
    assert len(told) == (ir_version == 8)
    assert all("for 1 input: w. They are constants of what was built" in warning for warning in told)


@pytest.mark.parametrize(
    ("is_engine", "naive_passes", "is_told"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_that_plain_fp16_passes_in_one_build_is_told_as_luck(
    tmp_path: Path, is_engine: bool, naive_passes: bool, is_told: bool
) -> None:
    report = fix(_config(tmp_path))
    assert report.naive is not None
    engine = Engine("8.6.0", "GPU", (9, 0), "weak", "obey", 1, 1, 0, 0, 0) if is_engine else None
    best = Attempt(report.plan, replace(report.artifact, engine=engine), report.fixed)
    told = list(say_luck(best, report.fixed if naive_passes else report.naive))
    assert (len(told) == 1) is is_told
    assert all(text.startswith("Plain FP16 passes in this build.") for text in told)


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
        verify=VerifyOptions.model_validate({"max_abs_error": max_abs_error}),
    )
    report = fix(config)
    assert report.passed
    (verdict,) = report.fixed.outputs
    assert verdict.error.quiet_batch_snr_db == 0.0  # nothing is left
    told = [warning for warning in report.warnings if "under 1 % of its mean energy" in warning]
    assert bool(told) == (max_abs_error == 0.0)
    failing = replace(verdict, passed=False)
    assert not list(_warn_of_quiet(failing, config.verify.tolerance()))
    for warning in told:
        assert f"Output y has under 1 % of its mean energy in {verdict.error.quiet_batch}" in warning
        assert "where its SNR is 0.0 dB: it passes there" in warning
    two = replace(verdict, error=replace(verdict.error, quiet_count=2))
    for warning in _warn_of_quiet(two, config.verify.tolerance()):
        assert "where its SNR is 0.0 dB (2 batches have as little, this is the worst): it" in warning


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
    assert ["in b077.npy only 0.00% are, under 99.00%. One value" in text for text in told] == [True]
    assert "leaves room" not in render_text(report)


def test_a_class_that_is_lost_beside_others_is_told(tmp_path: Path) -> None:
    """The index of the larger of x and 1 + 2^-11, which is 1 in FP16, as x is at 10 of 2,000 places."""
    nodes = [node("Concat", "x above", "a", axis=0), node("ArgMax", "a", "y", axis=0, keepdims=0)]
    x = np.full((2, 1, 2000), 2, np.float32)
    x[:, :, :10] = 1
    above = np.full((1, 2000), 1 + 2**-11, np.float32)
    save(make_model(nodes, {"x": [1, 2000]}, "y", {"above": above}, output_types={"y": 7}), tmp_path)
    np.savez(tmp_path / "a.npz", x=x[0])
    plan = PlanOptions.model_validate({"exclude_nodes": [".*"]})
    report = fix(
        FixConfig(model=tmp_path / "model.onnx", calib=tmp_path / "a.npz", out=tmp_path / "out", plan=plan)
    )
    assert report.passed
    told = "of the 10 elements that are 1 in FP32, over all batches, 0 are. If it holds classes"
    assert [text for text in report.warnings if told in text]
    written = json.loads((tmp_path / "out" / "report.json").read_text())["verification"]["fixed"]
    assert written["hidden_classes"] == [{"output": "y", "value": 1, "count": 1, "elements": 10, "equal": 0}]


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
    report = _fix(model, tmp_path, x=np.array([[-1, -2], [-3, -5]], np.float32))
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


@pytest.mark.parametrize(
    ("snr_db", "changes", "told"),
    [
        (31.25, {}, "Output logits is 1.2 dB over its limit"),
        (35.9, {}, "Output logits is 5.9 dB over its limit"),
        (36.0, {}, ""),
        (31.25, {"changed_count": 3}, ""),
        (math.inf, {}, ""),
        (math.nan, {}, ""),
    ],
)
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT64])
def test_what_passes_by_little_is_told(
    snr_db: float, changes: dict[str, Any], told: str, kind: int, tmp_path: Path
) -> None:
    graph = save(
        make_model([node("Cast", "x", "y", to=TensorProto.FLOAT)], {"x": (kind, [2])}, "y"), tmp_path
    )
    error = make_error("logits", max(snr_db, 60), worst_batch_snr_db=snr_db)
    beside = make_error("boxes", 99.0, worst_batch_snr_db=99.0)
    verdicts = tuple(OutputVerdict(one, True, "") for one in (error, beside))
    said = list(say_thin(replace(Verification(verdicts, 2), **changes), None, graph, Tolerance()))
    assert len(said) == bool(told)
    assert all(told in one and ("--jitter" in one) == (kind == TensorProto.FLOAT) for one in said)


@pytest.mark.parametrize(
    ("passes", "spent", "told"),
    [
        (
            False,
            "max_minutes",
            "its limit of 3 minutes (max_minutes), after 1 round: pins that would help may not",
        ),
        (
            True,
            "max_builds",
            "its limit of 7 builds (max_builds), after 1 round: pins may be left that are not needed",
        ),
        (False, "", ""),
    ],
)
def test_a_repair_that_its_budget_ended_says_so(passes: bool, spent: str, told: str) -> None:
    fixed = Verification((OutputVerdict(make_error("y"), passes, ""),), 1)
    rounds = [RepairRound(1, "pinned", (), 1.0, False, 1.0, 0, False)]
    said = list(say_spent(fixed, rounds, Budget(max_builds=7, max_minutes=3), spent))
    assert [told in text for text in said] == ([True] if told else [])


def test_what_fails_or_errs_as_little_as_is_allowed_has_no_margin(tmp_path: Path) -> None:
    graph = save(make_model([node("Neg", "x", "y")], {"x": [2]}, "y"), tmp_path)
    error = make_error("y", worst_batch_snr_db=31.0, max_abs_error=0.01)
    assert not list(say_thin(Verification((OutputVerdict(error, False, ""),), 1), None, graph, Tolerance()))
    passing = Verification((OutputVerdict(error, True, ""),), 1)
    assert not list(say_thin(passing, None, graph, Tolerance(max_abs_error=0.01)))
    assert list(say_thin(passing, None, graph, Tolerance(max_abs_error=0.001)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"worst_batch_snr_db": 27.31}, "against itself has an SNR of 27.3 dB, at worst in frames/0003.npz."),
        (
            {"is_float": False, "mismatched": 300},
            "against itself has 90.00% of its values equal, at worst in",
        ),
        (
            {"other_shape": "[5] instead of [7] on b", "compared": 0},
            "has another shape, [5] instead of [7] on b,",
        ),
    ],
)
def test_how_far_an_output_is_not_settled_is_told(changes: dict[str, Any], told: str) -> None:
    said = say_unsettled(make_error("boxes", part="[:, 4:]", **changes))
    assert said.startswith("FP32 itself does not settle output boxes[:, 4:]: ")
    assert told in said


@pytest.mark.parametrize(
    ("masks", "tail", "told"),
    [
        ("clamp", "Abs", True),
        ("auto", "Abs", False),
        ("pin", "Abs", False),
        ("clamp", "Softmax", False),
    ],
)
def test_a_mask_that_is_not_clamped_as_asked_is_told(
    masks: Literal["auto", "pin", "clamp"], tail: str, told: bool, tmp_path: Path
) -> None:
    """Abs shows what Softmax would hide."""
    nodes = [node("Where", "m low x", "a"), node(tail, "a", "y")]
    model = make_model(nodes, {"x": [2, 4], "m": (TensorProto.BOOL, [2, 4])}, "y", {"low": scalar(-1e9)})
    save(model, tmp_path)
    graph = load_graph(tmp_path / "model.onnx")
    feeds = {"x": np.ones((2, 4), np.float32), "m": np.array([[True, False, False, False]] * 2)}
    ranges = collect_ranges(graph, InMemoryCalibration((feeds,)))
    policy = PlanPolicy(masks=masks)
    said = list(say_unclamped(graph, ranges, plan_precision(graph, ranges, policy), policy))
    assert [
        text.startswith(
            "Although --masks clamp asks for it, 1 constant is not clamped: low. Of low, -1e+09: not "
        )
        for text in said
    ] == [True] * told


def test_a_margin_that_copies_do_not_use_up_asks_for_more_batches(tmp_path: Path) -> None:
    model = make_model([node("Cast", "x", "y", to=TensorProto.FLOAT)], {"x": (TensorProto.FLOAT, [2])}, "y")
    error = make_error("y", 60.0, worst_batch_snr_db=32.0)
    passing = Verification((OutputVerdict(error, True, ""),), 2)
    copies = replace(passing, batch_count=0, changed_count=6)
    (said,) = say_thin(passing, copies, save(model, tmp_path), Tolerance())
    assert "which is little (6 of their copies, changed by up to 2^-10, tried and passing): others" in said
    assert said.endswith("can be made for more than them with more batches.")


def test_a_filled_output_of_nothing_else_is_told_as_such() -> None:
    verdict = OutputVerdict(make_error("y", **ZERO), True, "")
    (said,) = say_zero(Verification((verdict,), 3), Tolerance(fills={"y": (-1e9,)}))
    assert said.startswith("Output y: zero or a constant that fills it in every batch")
