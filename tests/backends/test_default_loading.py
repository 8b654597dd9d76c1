"""Typed models that ONNX Runtime does not load optimised are told of, with what they load with."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import pytest
from gpu_networks import make_opset18_block, write_network
from in_memory_calibration import make_model, node, save

from overflow_fixer.backends.mixed_onnx import default_loading, emit, warn_of_default_loading
from overflow_fixer.config import BuildOptions, FixConfig
from overflow_fixer.pipeline import fix
from overflow_fixer.records import Artifact, PrecisionPlan

SEEN = (1, 32)
"""The newest ONNX Runtime in which LayerNormFusion was seen to fail."""
VERSION = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
REFUSE = "sys.stderr.write('Type Error: no.'); sys.exit(3)"
CRASH = "import os; os.abort()"
BOTH = "LayerNormFusionL1;NchwcTransformer"


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
        ([("", CRASH)], "optimised: it crashes (SIGABRT). It loads with {option} set to LayerNormFusionL1."),
        ([("", CRASH), ("LayerNormFusionL1", REFUSE)], "It loads with {option} set to NchwcTransformer."),
        (
            [(name, CRASH) for name in ("", "LayerNormFusionL1", "NchwcTransformer")],
            "It loads with {option} set to LayerNormFusionL1;NchwcTransformer.",
        ),
        (
            [(name, REFUSE) for name in ("", "LayerNormFusionL1", "NchwcTransformer", BOTH)],
            "It loads with optimisation off.",
        ),
    ],
)
def test_what_happens_is_told_with_the_least_that_helps(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, cases: list[tuple[str, str]], words: str
) -> None:
    _fail(monkeypatch, *cases)
    (said,) = warn_of_default_loading(artifact, ())
    assert words.format(option="optimization.disable_specified_optimizers") in said


@pytest.mark.parametrize(
    "then",
    ["sys.exit(1)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "import time; time.sleep(60)"],
)
def test_what_is_no_fault_of_the_model_is_not_told(
    artifact: Artifact, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Python that fails, memory that runs out, time that runs out."""
    _fail(monkeypatch, ("", then))
    monkeypatch.setattr(default_loading, "_TIMEOUT_SECONDS", 1)
    assert list(warn_of_default_loading(artifact, ())) == []


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
    monkeypatch.setattr(
        default_loading,
        "_LOAD",
        "import sys\nif not sys.argv[2]: sys.stderr.write(' '.join(sys.argv[4:])); sys.exit(3)",
    )
    (said,) = warn_of_default_loading(artifact, [tmp_path / "one.so", tmp_path / "two.so"])
    assert f"optimised: {tmp_path / 'one.so'} {tmp_path / 'two.so'}. It loads" in said


def test_a_norm_written_out_since_opset_17_is_told_of_by_the_main_job(tmp_path: Path) -> None:
    """ONNX Runtime fuses it across the Cast to FP32 into a LayerNormalization of two types."""
    model, data = write_network(make_opset18_block(2, 16, 64, 4), tmp_path)
    build = BuildOptions(backend="onnx")
    report = fix(FixConfig(model=model, calib=data, out=tmp_path / "out", build=build))
    said = [warning for warning in report.warnings if "as it does by default" in warning]
    if not said and VERSION > SEEN:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} loads it.")
    option, without = said[0].split("It loads with ")[1].split(". ")[0].split(" set to ")
    assert "LayerNormFusionL1" in without
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(option, without)
    onnxruntime.InferenceSession(report.artifact.path, options, providers=["CPUExecutionProvider"])
