"""What a report warns of."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from in_memory_calibration import InMemoryCalibration, make_model, node, save, scalar
from onnx import TensorProto, helper
from report_factories import (
    make_error,
    make_failing,
    make_finding,
    make_passing,
    make_plan,
    make_table,
)

from overflow_fixer.calibration import CalibrationOptions
from overflow_fixer.config import BuildOptions, FixConfig, PlanOptions, RepairOptions
from overflow_fixer.graph.model import load_graph
from overflow_fixer.pipeline import fix, verify_built
from overflow_fixer.planning.plan import plan_precision
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
    Typing,
    Verification,
)
from overflow_fixer.repair.attempts import Attempt
from overflow_fixer.reports.caveats import (
    say_excluded,
    say_luck,
    say_spent,
    say_thin,
    say_unclamped,
    say_unsettled,
    say_without_effect,
)
from overflow_fixer.trials.bench import Bench

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
    assert report.rounds == ()
    told, warning = report.warnings
    assert told == (
        "No repair was tried: with all else in FP32, what is FP16 in the model itself makes y wrong. Give the model that this one was "
        "made from, before it was converted to FP16."
    )
    assert warning.startswith(
        "Tensor square is FP16 in the model itself, and holds 0 NaN and 1 infinite values there"
    )
    reasons = [finding.reason for finding in report.plan.considered if finding.rule == "non_finite"]
    assert len(reasons) == 5
    assert all("as the model stands; " in reason for reason in reasons)


def test_what_a_body_of_the_model_computes_in_fp16_is_told_as_not_simulated(tmp_path: Path) -> None:
    """300 squared overflows in the body's own FP16, on a GPU; here it is computed in FP32, and passes."""
    half = [
        node("Cast", "x", "h", to=TensorProto.FLOAT16),
        node("Mul", "h h", "s"),
        node("Cast", "s", "t", to=TensorProto.FLOAT),
    ]
    taken, other = (
        onnx.helper.make_graph(
            nodes, "body", [], [onnx.helper.make_tensor_value_info(out, TensorProto.FLOAT, [2])]
        )
        for nodes, out in ((half, "t"), ([node("Neg", "x", "e")], "e"))
    )
    nodes = [
        node("ReduceMax", "x", "m", keepdims=0),
        node("Greater", "m zero", "c"),
        node("If", "c", "z", then_branch=taken, else_branch=other),
        node("Tanh", "z", "y"),
    ]
    model = make_model(nodes, {"x": [2]}, "y", {"zero": scalar(0)})
    report = _fix(model, tmp_path, x=np.array([300, 2], np.float32))
    assert report.passed
    (warning,) = [text for text in report.warnings if "not simulated" in text]
    assert warning.startswith("1 node computes in FP16 in the model itself, where rounding is not simulated")
    assert "other domains: If_z. Of" in warning


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
    ("typing", "naive_passes", "is_told"),
    [("weak", True, True), ("weak", False, False), ("strong", True, False), (None, True, False)],
)
def test_that_plain_fp16_passes_in_one_build_is_told_as_luck(
    tmp_path: Path, typing: Typing | None, naive_passes: bool, is_told: bool
) -> None:
    """By strong typing every build of plain FP16 runs the pinned nodes in FP16."""
    report = fix(_config(tmp_path))
    assert report.naive is not None
    engine = None if typing is None else Engine("8.6.0", "GPU", (9, 0), typing, "obey", 1, 1, 0, 0, 0)
    best = Attempt(report.plan, replace(report.artifact, engine=engine), report.fixed)
    told = list(say_luck(best, report.fixed if naive_passes else report.naive))
    assert (len(told) == 1) is is_told
    assert all(text.startswith("Plain FP16 passes in this build.") for text in told)
    assert list(say_luck(replace(best, plan=replace(best.plan, pins=())), report.fixed)) == []


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
@pytest.mark.parametrize("fractional", [{"x"}, ()])
def test_what_passes_by_little_is_told(
    snr_db: float, changes: dict[str, Any], told: str, fractional: Collection[str]
) -> None:
    """Copies are advised where anything in them can change."""
    error = make_error("logits", max(snr_db, 60), worst_batch_snr_db=snr_db)
    beside = make_error("boxes", 99.0, worst_batch_snr_db=99.0)
    verdicts = tuple(OutputVerdict(one, True, "") for one in (error, beside))
    ranges = replace(make_table(), fractional=frozenset(fractional))
    said = list(say_thin(replace(Verification(verdicts, 2), **changes), None, ranges, Tolerance()))
    assert len(said) == bool(told)
    assert all(told in one and ("--jitter" in one) == bool(fractional) for one in said)


@pytest.mark.parametrize(
    ("mismatched", "min_agreement", "told"),
    [
        (8, 0.99, "Output rank differs in 0.80% of its values, of 1.00% that may, on these batches"),
        (5, 0.99, ""),
        (0, 1.0, ""),
        (40, 0.9, ""),
    ],
)
def test_what_agrees_by_little_is_told(mismatched: int, min_agreement: float, told: str) -> None:
    errors = [
        make_error(name, math.nan, is_float=False, element_count=1000, mismatched=count)
        for name, count in (("kept", 0), ("rank", mismatched))
    ]
    fixed = Verification(tuple(OutputVerdict(one, True, "") for one in errors), 2)
    said = list(say_thin(fixed, None, make_table(), Tolerance(min_agreement=min_agreement)))
    assert [one[: len(told)] for one in said] == ([told] if told else [])


@pytest.mark.parametrize(
    ("passes", "spent", "told"),
    [
        (
            False,
            "max_minutes",
            "its limit of 3 minutes (max_minutes), after 1 round: what would help may not",
        ),
        (
            True,
            "max_builds",
            "its limit of 7 builds (max_builds), after 1 round: pins may be left that are not needed",
        ),
        (False, "max_rounds", "its limit of 1 round (max_rounds): what would help may not"),
        (False, "", ""),
    ],
)
def test_a_repair_that_its_budget_ended_says_so(passes: bool, spent: str, told: str) -> None:
    fixed = Verification((OutputVerdict(make_error("y"), passes, ""),), 1)
    rounds = [RepairRound(1, "pinned", (), 1.0, False, 1.0, 0, False)]
    said = list(say_spent(fixed, rounds, Budget(max_rounds=1, max_builds=7, max_minutes=3), spent))
    assert [told in text for text in said] == ([True] if told else [])


def test_what_fails_or_errs_as_little_as_is_allowed_has_no_margin() -> None:
    ranges = make_table()
    error = make_error("y", worst_batch_snr_db=31.0, max_abs_error=0.01)
    assert not list(say_thin(Verification((OutputVerdict(error, False, ""),), 1), None, ranges, Tolerance()))
    passing = Verification((OutputVerdict(error, True, ""),), 1)
    assert not list(say_thin(passing, None, ranges, Tolerance(max_abs_error=0.01)))
    assert list(say_thin(passing, None, ranges, Tolerance(max_abs_error=0.001)))


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
    assert said.endswith("To have such verified and repaired, too, give more batches.")


HALF, SINGLE = TensorProto.FLOAT16, TensorProto.FLOAT
INSIDE = [node("Cast", "x", "a", to=HALF), node("Neg", "a", "b"), node("Cast", "b", "y", to=SINGLE)]


@pytest.mark.parametrize(
    ("kind", "nodes", "is_told"),
    [
        (HALF, [node("Neg", "x", "a"), node("Abs", "a", "y")], True),
        (SINGLE, INSIDE, True),
        (SINGLE, [*INSIDE[:-1], node("Cast", "b", "c", to=SINGLE), node("Neg", "c", "y")], False),
        (SINGLE, [node("Neg", "x", "a"), node("Abs", "a", "y")], False),
        (TensorProto.INT64, [node("Neg", "x", "a"), node("Abs", "a", "y")], False),
    ],
)
def test_a_model_that_is_in_fp16_already_is_told(
    kind: int, nodes: list[onnx.NodeProto], is_told: bool, tmp_path: Path
) -> None:
    told = [one for one in _tell_of(kind, nodes, tmp_path) if " FP16 already: nothing was converted" in one]
    assert len(told) == is_told


@pytest.mark.parametrize(
    ("kind", "operator"), [(TensorProto.DOUBLE, "Neg"), (TensorProto.BFLOAT16, "Identity")]
)
def test_a_model_in_floats_that_are_not_converted_is_told(kind: int, operator: str, tmp_path: Path) -> None:
    told = _tell_of(kind, [node(operator, "x", "a"), node(operator, "a", "y")], tmp_path)
    assert any(
        "3 tensors are FP64 or BF16, which stay as they are: nothing was converted" in one for one in told
    )
    mixed = [node("Cast", "x", "a", to=SINGLE), node("Neg", "a", "b"), node("Cast", "b", "y", to=kind)]
    assert not any("nothing was converted" in one for one in _tell_of(kind, mixed, tmp_path))


def _tell_of(kind: int, nodes: list[onnx.NodeProto], folder: Path) -> Sequence[str]:
    """The warnings of a model whose input and output are of a kind."""
    save(make_model(nodes, {"x": (kind, [2])}, "y", output_types={"y": kind}), folder)
    np.savez(folder / "data.npz", x=np.array([3, 5], helper.tensor_dtype_to_np_dtype(kind)))
    config = FixConfig(model=folder / "model.onnx", calib=folder / "data.npz", out=folder / "out")
    report = fix(config.model_copy(update={"build": BuildOptions(backend="onnx")}))
    assert report.passed
    return report.warnings


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ({}, None),
        ({"io_types": "fp16", "compare": False}, None),
        ({"plugins": ["p.so"]}, "build.plugins has no effect on a typed ONNX model"),
        ({"typing": "weak", "workspace_gib": 1.0}, "build.typing, build.workspace_gib have no effect"),
        ({"plugins": ["p.so"], "exports": ["polygraphy-npps"]}, None),
        ({"tf32": False, "profile": {"x": [[1], [2], [3]]}, "exports": ["polygraphy-loader"]}, None),
        (
            {"plugins": ["p.so"], "optimization_level": 3, "exports": ["polygraphy-loader"]},
            "build.optimization_level has no effect on a typed ONNX model, which is what was built, nor on what was exported:",
        ),
    ],
)
def test_settings_of_engines_that_do_nothing_are_told(build: dict[str, Any], said: str | None) -> None:
    told = list(say_without_effect(BuildOptions.model_validate(build), is_engine=False))
    assert len(told) == (said is not None)
    assert said is None or told[0].startswith(said)
    assert not list(say_without_effect(BuildOptions.model_validate(build), is_engine=True))


def test_a_report_tells_of_settings_that_do_nothing(tmp_path: Path) -> None:
    config = _config(tmp_path, optimization_level=3).model_copy(
        update={"calibration": CalibrationOptions(seed=3)}
    )
    for report in (fix(config), verify_built(config)):
        for name in ("build.optimization_level", "calibration.seed"):
            assert any(warning.startswith(f"{name} has no effect") for warning in report.warnings)


@pytest.mark.parametrize("fixed", [make_failing("y"), make_passing("y")])
def test_excluded_nodes_are_named_where_the_verification_fails(fixed: Verification) -> None:
    reason = "writes a, whose max |x| is large"
    findings = (
        make_finding("c", action="none", reason=f"{reason}; left in FP16 because you excluded it"),
        make_finding("c", action="none", reason="reads b; left in FP16 because you excluded it"),
        make_finding("d", action="none", reason="writes d; not pinned: a constant is typed by its readers"),
    )
    told = list(say_excluded(make_plan(considered=findings), fixed))
    assert len(told) == (not fixed.passed)
    for one in told:
        assert one.startswith("1 node that would be pinned is left in FP16, since --exclude-nodes or")
        assert f": c. c {reason}; left in FP16 because you excluded it. Take out of these" in one


def test_a_model_that_fails_for_what_was_excluded_says_so(tmp_path: Path) -> None:
    sample = Path(__file__).parents[2] / "calib_data" / "conv_chain"
    config = FixConfig(
        model=sample / "model.onnx",
        calib=sample / "data",
        out=tmp_path,
        plan=PlanOptions(exclude_nodes=("conv4",)),
        build=BuildOptions(backend="onnx"),
        repair=RepairOptions(max_rounds=0),
    )
    report = fix(config)
    assert not report.passed
    assert any("--exclude-nodes or --exclude-ops says so: /conv4/Conv." in one for one in report.warnings)
