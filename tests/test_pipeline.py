"""The main job's order of things, where one of its comparisons fails or is not wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from overflow_fixer.config import BuildOptions, FixConfig
from overflow_fixer.errors import BackendError
from overflow_fixer.pipeline import fix
from overflow_fixer.reports import render_text
from overflow_fixer.trials import Bench

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


def test_without_comparison_plain_fp16_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "try_naive", lambda bench: pytest.fail("it was built"))
    report = fix(_config(tmp_path, compare=False))
    assert report.passed
    assert report.naive is None
    assert report.warnings == ()


def test_the_plan_itself_that_cannot_be_built_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(bench: Bench, *_: object) -> None:
        raise BackendError("No kernel. Expected one. Do without.")

    monkeypatch.setattr(Bench, "try_plan", refuse)
    with pytest.raises(BackendError, match="No kernel"):
        fix(_config(tmp_path))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["ranges.h5"]
