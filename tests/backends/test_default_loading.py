"""Typed models that ONNX Runtime does not load optimised are told of, with what they load with."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
from gpu_networks import make_opset18_block, write_network
from in_memory_calibration import make_model, node, save

from overflow_fixer.backends.mixed_onnx import default_loading, emit, warn_of_default_loading
from overflow_fixer.backends.mixed_onnx.default_loading import _find_fault
from overflow_fixer.config import BuildOptions, FixConfig
from overflow_fixer.pipeline import fix
from overflow_fixer.records import Artifact, PrecisionPlan

SEEN = (1, 32)
"""The newest ONNX Runtime in which LayerNormFusion was seen to fail."""
VERSION = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
REFUSE = "print('chatter'); print('refused:Type Error: no.'); sys.exit(3)"
CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
UNKNOWN = [
    "sys.exit(1)",
    "sys.exit(3)",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "import time; time.sleep(60)",
]
"""Python that fails, and another library that does, memory that runs out, time that runs out."""


@pytest.fixture
def artifact(tmp_path: Path) -> Artifact:
    graph = save(make_model([node("Relu", "x", "y", name="relu")], {"x": [2, 3]}, "y"), tmp_path)
    return emit(graph, PrecisionPlan(graph.sha256, 10000.0, ()), tmp_path / "model.fp16.onnx")


def _fail(monkeypatch: pytest.MonkeyPatch, *cases: tuple[str, str]) -> None:
    """Of each case: without these optimisers ("" is none, "off" all), this happens. Without others, the model loads."""
    lines = [f"if sys.argv[2] == {without!r}: {then}" for without, then in cases]
    monkeypatch.setattr(default_loading, "_LOAD", "\n".join(["import sys", *lines]))


def test_a_model_that_loads_is_not_told_of(artifact: Artifact) -> None:
    assert list(warn_of_default_loading(artifact, ())) == []


@pytest.mark.parametrize(
    ("cases", "words"),
    [
        ([("", REFUSE)], "optimised: Type Error: no. It loads with {option} set to LayerNormFusionL1."),
        ([("", CRASH)], "optimised: it crashes (SIGSEGV). It loads with {option} set to LayerNormFusionL1."),
        ([("", CRASH), ("LayerNormFusionL1", REFUSE)], "It loads with {option} set to NchwcTransformer."),
        (
            [(name, REFUSE) for name in ("", "LayerNormFusionL1", "NchwcTransformer")],
            "It loads with {option} set to SimplifiedLayerNormFusion.",
        ),
        (
            [(name, CRASH) for name in ("", *default_loading._SEEN)],
            "It loads with {option} set to LayerNormFusionL1;NchwcTransformer.",
        ),
        (
            [(name, REFUSE) for name in ("", *default_loading._REMEDIES)],
            "It loads with optimisation off (docs",
        ),
    ],
)
def test_what_happens_is_told_with_the_least_that_helps(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, cases: list[tuple[str, str]], words: str
) -> None:
    _fail(monkeypatch, *cases)
    (said,) = warn_of_default_loading(artifact, ())
    assert words.format(option="optimization.disable_specified_optimizers") in said


@pytest.mark.parametrize("then", UNKNOWN)
def test_what_is_no_fault_of_the_model_is_not_told(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    _fail(monkeypatch, ("", then))
    monkeypatch.setattr(default_loading, "_TIMEOUT_SECONDS", 1)
    assert list(warn_of_default_loading(artifact, ())) == []


@pytest.mark.parametrize("then", UNKNOWN)
def test_what_was_not_seen_to_help_is_not_said_to(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    _fail(monkeypatch, ("", REFUSE), ("LayerNormFusionL1", then))
    monkeypatch.setattr(default_loading, "_TIMEOUT_SECONDS", 1)
    (said,) = warn_of_default_loading(artifact, ())
    assert "set to NchwcTransformer." in said


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL"])
def test_each_way_to_crash_is_told_and_leaves_no_file(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    crash = f"import os, signal; os.kill(os.getpid(), signal.{name})"
    plain = default_loading._LOAD.replace(
        "import onnxruntime", f"if not sys.argv[2]: {crash}\nimport onnxruntime"
    )
    monkeypatch.setattr(default_loading, "_LOAD", plain)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        (said,) = warn_of_default_loading(artifact, ())
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
    assert f"it crashes ({name})" in said
    assert list((tmp_path / "here").iterdir()) == []


@pytest.mark.parametrize("executable", [None, "", "/nowhere/python"])
def test_without_an_interpreter_nothing_is_told(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    _fail(monkeypatch, ("", REFUSE))
    monkeypatch.setattr(sys, "executable", executable)
    assert list(warn_of_default_loading(artifact, ())) == []


def test_paths_that_are_no_text_are_left_out(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    assert _find_fault(artifact.path, "", ()) == ""


def test_a_model_that_never_loads_is_not_told_of(artifact: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_loading, "_LOAD", f"import sys; {REFUSE}")
    assert list(warn_of_default_loading(artifact, ())) == []


@pytest.mark.parametrize("limit", ["_MOST_BYTES", "_MOST_NODES"])
def test_a_large_model_is_not_tried(artifact: Artifact, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    _fail(monkeypatch, ("", REFUSE))
    monkeypatch.setattr(default_loading, limit, 0)
    assert list(warn_of_default_loading(artifact, ())) == []


def test_the_working_folder_lends_no_modules(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime.py").write_text(f"import sys; {REFUSE}")
    monkeypatch.chdir(tmp_path)
    assert list(warn_of_default_loading(artifact, ())) == []


def test_libraries_of_custom_operators_reach_the_process(
    artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whole paths. One that does not load makes what happens unknown."""
    monkeypatch.chdir(tmp_path)
    assert _find_fault(artifact.path, "", [Path("one.so")]) is None
    monkeypatch.setattr(
        default_loading,
        "_LOAD",
        "import sys\nif not sys.argv[2]: print('refused:' + ' '.join(sys.argv[4:])); sys.exit(3)\nsys.exit(len(sys.argv) != 6)",
    )
    (said,) = warn_of_default_loading(artifact, [Path("one.so"), tmp_path / "two.so"])
    assert f"optimised: {tmp_path / 'one.so'} {tmp_path / 'two.so'}. It loads" in said


@pytest.fixture
def block(tmp_path: Path) -> FixConfig:
    model, data = write_network(make_opset18_block(2, 16, 64, 4), tmp_path)
    return FixConfig(model=model, calib=data, out=tmp_path / "out", build=BuildOptions(backend="onnx"))


def test_norms_written_out_since_opset_17_load_as_by_default(block: FixConfig) -> None:
    report = fix(block)
    assert report.warnings == ()
    onnxruntime.InferenceSession(report.artifact.path, providers=["CPUExecutionProvider"])


def test_a_norm_written_out_since_opset_17_whose_scale_is_no_initializer_is_told_of_by_the_main_job(
    block: FixConfig,
) -> None:
    """ONNX Runtime fuses it across the Cast to FP32 into a LayerNormalization of two types."""
    model = onnx.load(block.model)
    for scale in [tensor for tensor in model.graph.initializer if tensor.name.endswith(".weight")]:
        if len(scale.dims) == 1:
            model.graph.initializer.remove(scale)
            model.graph.node.insert(0, onnx.helper.make_node("Constant", [], [scale.name], value=scale))
    onnx.save(model, block.model)
    report = fix(block)
    said = [warning for warning in report.warnings if "as it does by default" in warning]
    if not said and VERSION > SEEN:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} loads it.")
    option, without = said[0].split("It loads with ")[1].split(". ")[0].split(" set to ")
    assert "LayerNormFusionL1" in without
    assert _find_fault(report.artifact.path, "off", ()) == ""
    assert len(said[0]) < 800
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(option, without)
    onnxruntime.InferenceSession(report.artifact.path, options, providers=["CPUExecutionProvider"])
