"""The whole job with engines on every kind of TensorRT, over fakes whose engines compute."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from fake_tensorrt import Variant
from in_memory_calibration import make_model, node
from standin_gpu import use_standin_gpu
from typed_models import write_model
from working_tensorrt import working_tensorrt

from overflow_fixer.backends import tensorrt
from overflow_fixer.config import make_config
from overflow_fixer.errors import BackendError, ConfigError, FixError
from overflow_fixer.graph.model import load_graph
from overflow_fixer.pipeline import fix, verify_built
from overflow_fixer.records import BuildSettings, FixReport, PrecisionPlan, ShapeRange
from overflow_fixer.reports.plan_file import load_plan
from overflow_fixer.reports.verdict import judge
from overflow_fixer.trials.bench import Bench

SAMPLES = Path(__file__).parents[1] / "calib_data"
NAMES = sorted(path.parent.name for path in SAMPLES.glob("*/model.onnx"))
TYPING: dict[Variant, str] = {"8.6": "weak", "10.0": "weak", "10.12": "strong", "11": "strong"}


def _fix(name: str, out: Path, min_snr_db: float = 30, **build: object) -> FixReport:
    sample = SAMPLES / name
    flags = {"model": sample / "model.onnx", "calib": sample / "data", "out": out}
    flags |= {"verify": {"min_snr_db": min_snr_db}}
    return fix(make_config(None, {**flags, "build": {"backend": "tensorrt", **build}}))


@pytest.mark.parametrize("variant", list(TYPING))
@pytest.mark.parametrize("name", NAMES)
def test_every_sample_is_fixed_on_every_tensorrt(name: str, variant: Variant, tmp_path: Path) -> None:
    trt, out = working_tensorrt(variant, tmp_path / "works"), tmp_path / "out"
    with use_standin_gpu(trt) as driver, warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        driver.elapsed_ms = [500.0]  # a slow GPU gets few turns
        report = _fix(name, out)
        assert (trt.works.contexts, driver.allocated) == (0, {})
    assert report.passed
    assert report.naive is not None
    assert not report.naive.passed
    assert report.fp32_engine is not None
    assert report.fp32_engine.passed
    assert report.price is not None
    assert [latency.name for latency in report.price.latencies] == [
        tensorrt.FIXED,
        tensorrt.NAIVE,
        tensorrt.FP32_EXACT,
        tensorrt.FP32,
    ]
    assert trt.works.most_contexts == 4  # those that are timed in turns, and no other
    engine = report.artifact.engine
    assert engine is not None
    assert engine.typing == TYPING[variant]
    states = Counter(pin.state for pin in engine.pins)
    assert states["honoured"] + states["not visible"] == len(engine.pins) > 0
    assert (states["not visible"] > 0) == (engine.typing == "strong")
    typed = ["model.fp16.onnx"] if engine.typing == "strong" else []
    written = ["plan.json", "ranges.h5", "report.html", "report.json", "timing.cache"]
    assert sorted(path.name for path in out.iterdir() if path.suffix != ".lock") == sorted(
        ["model.engine", "model.engine.json", *typed, *written]
    )
    assert json.loads((out / "report.json").read_text())["verdict"]["passed"]


@pytest.mark.parametrize("variant", list(TYPING))
def test_inputs_and_outputs_in_fp16_on_every_tensorrt(variant: Variant, tmp_path: Path) -> None:
    trt = working_tensorrt(variant, tmp_path / "works")
    with use_standin_gpu(trt):
        report = _fix("needs_constraints", tmp_path / "out", io_types="fp16", compare=False)
        runner = tensorrt.open_runner(report.artifact, BuildSettings())
        names = (*runner.input_names, *runner.output_names)
        assert {runner.engine.get_tensor_dtype(name).name for name in names} == {"HALF"}
    assert report.passed


@pytest.mark.parametrize("variant", ["8.6", "11"])
def test_a_repair_keeps_few_of_its_engines(
    variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more at a time than the first, the best and the one just built."""
    trt, out = working_tensorrt(variant, tmp_path / "works"), tmp_path / "out"
    try_plan, kept = Bench.try_plan, []

    def count(bench: Bench, *arguments: Any) -> Any:
        found = try_plan(bench, *arguments)
        kept.append(len(list(out.glob(".trials-*/*/*.engine"))))
        return found

    monkeypatch.setattr(Bench, "try_plan", count)
    with use_standin_gpu(trt) as driver:
        report = _fix("conv_chain", out, min_snr_db=75, compare=False)
        assert (trt.works.contexts, driver.allocated) == (0, {})
    assert len(report.rounds) > 3
    assert max(kept) <= 4  # the FP32 engine besides
    assert report.artifact.path.is_file()
    assert not list(out.glob(".trials-*"))


@pytest.mark.parametrize("variant", list(TYPING))
def test_a_product_that_needs_more_than_the_bits_of_tf32_is_built_without_it(
    variant: Variant, tmp_path: Path
) -> None:
    """The plan has the pins that suffice, so nothing more is pinned; what was verified is what is built of plan.json."""
    weights = {"w": np.eye(16, dtype=np.float32) * np.float32(249.3), "b": np.full(16, 3000, np.float32)}
    nodes = [node("Gemm", "x w b", "phase"), node("Cos", "phase", "y")]
    onnx.save(make_model(nodes, {"x": [16, 16]}, "y", weights), tmp_path / "model.onnx")
    (tmp_path / "data").mkdir()
    for number in range(2):
        x = np.random.default_rng(number).uniform(-4, 4, (16, 16)).astype(np.float32)
        np.savez(tmp_path / f"data/{number}.npz", x=x)
    flags = {"model": tmp_path / "model.onnx", "calib": tmp_path / "data", "out": tmp_path / "out"}
    config = make_config(None, {**flags, "build": {"backend": "tensorrt"}})
    with use_standin_gpu(working_tensorrt(variant, tmp_path / "works", tf32=True)):
        report = fix(config)
        again = verify_built(config)
    assert report.passed
    (forbade,) = report.rounds
    assert (forbade.action, forbade.added, forbade.kept) == (
        "forbade TF32, of which products have as few bits as of FP16",
        (),
        True,
    )
    assert {pin.node for pin in report.plan.pins} == {"Gemm_phase", "Cos_y"}
    engine = report.artifact.engine
    assert engine is not None
    assert (engine.tf32, engine.tf32_layers) == (False, 0)
    assert not load_plan(tmp_path / "out/plan.json").tf32
    assert again.passed
    assert again.fixed.outputs == report.fixed.outputs


def test_nothing_is_repaired_where_tensorrt_is_wrong_in_fp32_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try_fp32 = Bench.try_fp32

    def spoil(bench: Bench) -> Any:
        artifact, found = try_fp32(bench)
        return artifact, replace(found, outputs=tuple(replace(one, passed=False) for one in found.outputs))

    monkeypatch.setattr(Bench, "try_fp32", spoil)
    trt = working_tensorrt("8.6", tmp_path / "works")
    with use_standin_gpu(trt):
        report = _fix("conv_chain", tmp_path / "out", min_snr_db=75, compare=False)
    assert not report.passed
    assert report.rounds == ()
    assert "TensorRT's own FP32 engine is wrong too" in judge(report).sentence


@pytest.mark.parametrize(("variant", "built"), [("8.6", "weak"), ("10.0", "strong"), ("11", "strong")])
def test_inner_tensors_come_from_an_engine_typed_like_the_one_that_was_built(
    variant: Variant, built: str, tmp_path: Path
) -> None:
    graph = load_graph(SAMPLES / "needs_constraints" / "model.onnx")
    plan, path = PrecisionPlan(graph.sha256, 1e4, ()), tmp_path / "model.engine"
    shapes = {
        spec.name: ShapeRange(*[tuple(d if isinstance(d, int) else 1 for d in spec.dims or ())] * 3)
        for spec in graph.inputs
    }
    trt = working_tensorrt(variant, tmp_path / "works")
    with use_standin_gpu(trt):
        settings = BuildSettings(typing=built, shapes=shapes)  # type: ignore[arg-type]
        artifact = tensorrt.emit(graph, plan, path, settings)
        inner = next(node.outputs[0] for node in graph.nodes if node.op_type == "MatMul")
        tracer = tensorrt.open_tracer(graph, plan, artifact, [inner], BuildSettings(shapes=shapes))
        assert inner in tracer.output_names
    assert ["FP16" in asked.flags for asked in trt.script.asked] == [built == "weak"] * 2


def test_plain_fp16_that_cannot_be_built_does_not_end_a_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def refuse(bench: Bench) -> None:
        raise BackendError("No kernel. Expected one. Do without.")

    trt, sample = working_tensorrt("8.6", tmp_path / "works"), SAMPLES / "needs_constraints"
    flags = {"model": sample / "model.onnx", "calib": sample / "data", "out": tmp_path / "out"}
    config = make_config(None, {**flags, "build": {"backend": "tensorrt"}})
    with use_standin_gpu(trt) as driver:
        driver.elapsed_ms = [500.0]
        fix(config)
        monkeypatch.setattr(Bench, "try_naive", refuse)
        report = verify_built(config)
    assert report.passed
    assert report.naive is None
    assert report.warnings == ("Plain FP16 was not compared: No kernel. Expected one. Do without.",)


@pytest.mark.parametrize(("threshold", "built"), [(1e4, 0), (1.0, 1)])
def test_an_engine_without_pins_is_plain_fp16_and_that_is_not_built_to_verify_it(
    tmp_path: Path, threshold: float, built: int
) -> None:
    """With pins it is built, for comparison."""
    write_model(tmp_path, "g (float[4] x) => (float[4] y) { a = Abs(x) y = Neg(a) }")
    np.savez(tmp_path / "batch.npz", x=np.array([1, -2, 3, 4], np.float32))
    flags = {"model": tmp_path / "model.onnx", "calib": tmp_path / "batch.npz", "out": tmp_path / "out"}
    plan = {"threshold": threshold}
    config = make_config(None, {**flags, "plan": plan, "build": {"backend": "tensorrt"}})
    trt = working_tensorrt("8.6", tmp_path / "works")
    with use_standin_gpu(trt) as driver:
        driver.elapsed_ms = [500.0]
        fix(config)
        before = len(trt.script.asked)
        report = verify_built(config)
    assert len(trt.script.asked) - before == built
    assert report.naive is not None
    assert report.naive.passed
    assert bool(report.plan.pins) == bool(built)


def test_what_an_engine_costs_is_told_again_as_it_is_verified(tmp_path: Path) -> None:
    write_model(tmp_path, "g (float[4] x) => (float[4] y) { a = Abs(x) y = Neg(a) }")
    for name in ("calib", "other"):
        np.savez(tmp_path / f"{name}.npz", x=np.array([1, -2, 3, 4], np.float32))
    flags = {"model": tmp_path / "model.onnx", "calib": tmp_path / "calib.npz", "out": tmp_path / "out"}
    config = make_config(None, {**flags, "build": {"backend": "tensorrt"}})
    with use_standin_gpu(working_tensorrt("8.6", tmp_path / "works")) as driver:
        driver.elapsed_ms = [500.0]
        price = fix(config).price
        again = verify_built(config.model_copy(update={"calib": tmp_path / "other.npz"}))
    assert price is not None
    assert again.price is not None
    assert again.price.batch == f"{price.batch} of {tmp_path / 'calib.npz'}, when it was built"
    assert (again.price.latencies, again.price.remarks) == (price.latencies, price.remarks)


@pytest.mark.parametrize(
    "build",
    [{"typing": "strong"}, {"tactic_sources": ["nonsense"]}, {"profile": {"nobody": [[1], [1], [1]]}}],
)
def test_what_cannot_be_had_is_told_before_the_scan(build: dict[str, object], tmp_path: Path) -> None:
    with use_standin_gpu(working_tensorrt("8.6", tmp_path / "works")), pytest.raises(FixError) as error:
        _fix("needs_constraints", tmp_path / "out", **build)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ConfigError) == ("typing" not in build)
    assert not (tmp_path / "out").exists()


def test_a_profile_that_does_not_take_the_data_is_told_before_the_scan(tmp_path: Path) -> None:
    """It was told after the scan, and after plain FP16 and the plan had been built."""
    most = [4, 3, 64, 64]
    with use_standin_gpu(working_tensorrt("8.6", tmp_path / "works")):
        with pytest.raises(
            ConfigError, match="takes 4x3x64x64 to 4x3x64x64, and the calibration data have 2x3x64x64"
        ):
            _fix("conv_chain", tmp_path / "out", profile={"image": [most, most, most]})
        assert not (tmp_path / "out").exists()
