"""`fix-fp16 report`: its exit codes, what no longer fits it, and where its page cannot be written."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from in_memory_calibration import make_model, node
from zoo_models import make_entry, write_model

from overflow_fixer.cli import main
from overflow_fixer.config import FixConfig
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


def test_what_was_not_verified_is_exit_code_1(tmp_path: Path) -> None:
    config = make_entry(write_model(tmp_path, "m")).config
    asked = {"verify": {"min_snr_db": 200.0}, "repair": {"max_rounds": 0}}
    assert not fix(FixConfig.model_validate({**config.model_dump(), **asked})).passed
    assert _report(config.folder, "-q") == 1


def test_weights_that_were_cut_off_do_not_fit_the_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model([node("MatMul", "x w", "y")], {"x": [2, 32]}, "y", {"w": np.eye(32, dtype=np.float32)})
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    np.savez(tmp_path / "x.npz", x=np.ones((2, 32), np.float32))
    out = tmp_path / "out"
    assert fix(FixConfig(model=tmp_path / "m.onnx", calib=tmp_path / "x.npz", out=out)).passed
    assert _report(out, "-q") == 0
    os.truncate(out / "m.fp16.onnx.data", 100)
    assert _report(out, "-q") == 6
    assert "m.fp16.onnx.data has another size. Expected" in capsys.readouterr().err


def _rename_batch(document: Any) -> None:
    document["calibration"]["batch_names"][0] += "?"


def _count_more(document: Any) -> None:
    document["ranges"]["tensor_count"] += 1


def _grow(document: Any) -> None:
    document["confidence"]["nearest"][0]["max_abs"] *= 2


@pytest.mark.parametrize("change", [_rename_batch, _count_more, _grow])
def test_ranges_are_known_by_batches_by_what_was_seen_and_by_each_value_that_is_told(
    change: Callable[[Any], None], finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished / "report.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    assert _report(finished, "-q") == 5
    assert "ranges.h5 is of another scan than the one that is reported" in capsys.readouterr().err
