"""`fix-fp16 build`: what it says of what it built."""

import json
from pathlib import Path

import pytest

from overflow_fixer.cli import main

SAMPLE = Path(__file__).parents[2] / "calib_data" / "conv_chain"
MODEL = SAMPLE / "model.onnx"
OF_ENGINES = (
    "--timing-cache",
    "no.cache",
    "--tactic-source",
    "FOO",
    "--plugin",
    "no.so",
    "--typing",
    "strong",
)


def _run(*arguments: object) -> None:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    assert not stop.value.code


def test_settings_of_engines_that_a_typed_model_does_not_heed_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ("--out", tmp_path, "--backend", "onnx")
    _run("scan", MODEL, "--calib", SAMPLE / "data", "--out", tmp_path, "-q")
    _run("plan", MODEL, "--out", tmp_path, "-q")
    _run("build", MODEL, *out, *OF_ENGINES)
    told = capsys.readouterr().out.splitlines()[-1]
    assert told.startswith(
        "Warning: build.typing, build.tactic_sources, build.timing_cache and 1 more have no effect"
    )
    _run("build", MODEL, *out, *OF_ENGINES, "--json")
    assert json.loads(capsys.readouterr().out)["warnings"] == [told.removeprefix("Warning: ")]
    _run("build", MODEL, *out)
    assert "Warning" not in capsys.readouterr().out
    _run("build", MODEL, *out, "--json")
    assert json.loads(capsys.readouterr().out)["warnings"] == []
