"""`fix-fp16 report` where its page cannot be written."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from zoo_models import make_entry, write_model

from overflow_fixer.cli import main
from overflow_fixer.pipeline import fix


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The results of a model that was fixed, with something in the way of the page."""
    config = make_entry(write_model(tmp_path, "m")).config
    fix(config)
    (config.folder / "report.html").unlink()
    (config.folder / "report.html" / "in the way").mkdir(parents=True)
    return config.folder


def _report(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["report", *map(str, arguments)])
    return int(stop.value.code or 0)


def test_the_table_is_told_all_the_same_with_the_usual_code(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _report(finished) == 0
    out, err = capsys.readouterr()
    assert "m.fp16.onnx" in out
    assert err.startswith(f"fix-fp16: {finished / 'report.html'} was not written: ")
    assert "Expected a folder" in err
    assert err.count("\n") == 1
    os.truncate(finished / "m.fp16.onnx", 100)
    assert _report(finished, "-q") == 6
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 2


def test_a_report_that_was_copied_alone_is_told_if_it_is_named_itself(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(finished / "report.json", alone)
    assert _report(alone / "report.json") == 0
    assert "no longer fits" not in capsys.readouterr().out
    assert _report(alone) == 6
    assert "m.fp16.onnx is not there" in " ".join(capsys.readouterr().out.split())
