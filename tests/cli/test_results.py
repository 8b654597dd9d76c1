"""Results on stdout, whoever reads them or not."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[2] / "calib_data" / "conv_chain"
COMMAND = [sys.executable, "-m", "overflow_fixer"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a job that ended well."""
    out = tmp_path_factory.mktemp("job") / "out"
    fix = [*COMMAND, SAMPLE / "model.onnx", "--calib", SAMPLE / "data", "--out", out, "-q"]
    subprocess.run(fix, check=True)
    return out


def _commands(done: Path) -> list[list[str]]:
    model = str(SAMPLE / "model.onnx")
    return [["report", str(done)], ["plan", model, "--out", str(done), "--json"]]


def test_that_nobody_reads_on_changes_no_exit_code(done: Path) -> None:
    for command in _commands(done):
        reading, writing = os.pipe()
        os.close(reading)
        ended = subprocess.run([*COMMAND, *command], stdout=writing, stderr=subprocess.PIPE)
        os.close(writing)
        assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full device is Linux's")
def test_a_stdout_that_cannot_be_written_is_told(done: Path) -> None:
    for command in _commands(done):
        with open("/dev/full", "wb") as full:
            ended = subprocess.run([*COMMAND, *command], stdout=full, stderr=subprocess.PIPE, text=True)
        assert ended.returncode == 2
        assert ended.stderr.startswith(
            "fix-fp16: The result cannot be written to standard output: No space left"
        )
        assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_change_no_exit_code(closed: str, done: Path) -> None:
    for command in _commands(done):
        script = f"{shlex.join([*COMMAND, *command])} {closed}"
        ended = subprocess.run(["sh", "-c", script], capture_output=True)
        assert (ended.returncode, ended.stderr) == (0, b"")
