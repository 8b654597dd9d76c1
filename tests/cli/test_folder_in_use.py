"""Every verb that writes into OUT is alone in it; those that only read do not ask."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from overflow_fixer import locks
from overflow_fixer.cli import main
from overflow_fixer.locks import hold_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="flock")

SAMPLE = Path(__file__).parents[2] / "calib_data" / "conv_chain"
MODEL, DATA = str(SAMPLE / "model.onnx"), ["--calib", str(SAMPLE / "data")]
WRITERS = {
    "fix": [MODEL, *DATA],
    "fix, fusing": [MODEL, *DATA, "--refuse-layernorm"],
    "scan": ["scan", MODEL, *DATA],
    "merge": ["scan", "--merge", "a.h5", "b.h5"],
    "plan": ["plan", MODEL],
    "build": ["build", MODEL],
    "verify": ["verify", MODEL, *DATA],
}


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "out"
    assert _run(MODEL, *DATA, "--out", out, "-q") == 0
    return out


@pytest.mark.parametrize("verb", WRITERS)
def test_a_folder_in_use_is_refused_and_stays_as_it_is(
    verb: str,
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(locks, "_GRACE_SECONDS", 0.1)
    out = shutil.copytree(finished, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))}
    with hold_folder(out):
        assert _run(*WRITERS[verb], "--out", out, "-q") == 2
    said = capsys.readouterr().err.strip()
    assert f"{out} is in use by " in said
    assert len(said.splitlines()) == 1
    assert {path: path.stat().st_mtime_ns for path in (out, *out.rglob("*"))} == before


def test_what_only_reads_is_not_refused(finished: Path) -> None:
    with hold_folder(finished):
        assert _run("report", finished, "-q") == 0
        assert _run("verify", MODEL, *DATA, "--artifact", finished / "model.fp16.onnx", "-q") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="a command that dies with its guard")
def test_a_run_that_was_killed_can_be_run_again_at_once(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "overflow_fixer", MODEL, *DATA, "--out", str(out), "-q"]
    process = subprocess.Popen(command)
    while not out.exists():
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert subprocess.run(command, check=False).returncode == 0
