"""What stderr does not take is dropped: a command ends as it would, with the same code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")

SAMPLE = Path(__file__).parents[2] / "calib_data" / "conv_chain"


def _run(arguments: list[str], stderr: str) -> subprocess.CompletedProcess[str]:
    with open(stderr, "w") as told:
        command = [sys.executable, "-m", "overflow_fixer", *arguments]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=told, text=True)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["nowhere.onnx", "--calib", "random"], 3), (["--no-such-flag"], 2), ([], 2), (["scan", "--debug"], 2)],
)
def test_an_error_that_cannot_be_told_keeps_its_code(arguments: list[str], code: int) -> None:
    assert _run(arguments, "/dev/full").returncode == code


def test_progress_that_cannot_be_told_ends_no_scan(tmp_path: Path) -> None:
    model, data = str(SAMPLE / "model.onnx"), str(SAMPLE / "data")
    assert _run(["scan", model, "--calib", data, "--out", str(tmp_path)], "/dev/full").returncode == 0


def test_what_can_be_told_is(tmp_path: Path) -> None:
    done = _run(["nowhere.onnx", "--calib", "random"], str(tmp_path / "told"))
    assert done.returncode == 3
    told = (tmp_path / "told").read_text()
    assert told.startswith("fix-fp16: nowhere.onnx cannot be read: No such file or directory.")
    assert told.count("\n") == 1
