"""`fix-fp16 scan`: goes on or says why not, merges, and ends with a sentence when memory does."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from in_memory_calibration import make_model, node, save

from overflow_fixer import FixConfig, fix, load_graph, open_calibration
from overflow_fixer.cli import main
from overflow_fixer.errors import PlanError
from overflow_fixer.pipeline import scan
from overflow_fixer.ranges import load_ranges
from overflow_fixer.ranges.store import load_recording, save_recording

pytestmark = pytest.mark.alone

SAMPLE = Path(__file__).parents[2] / "calib_data" / "conv_chain"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        return int(stop.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SAMPLE / "data", tmp_path / "data"))


def stop_scan(data: Path, out: Path) -> None:
    """Leave an unfinished scan of one of the three batches in `out`."""

    def stop(stage: str, done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    config = FixConfig(model=SAMPLE / "model.onnx", calib=data, out=out)
    graph = load_graph(config.model)
    with pytest.raises(KeyboardInterrupt):
        scan(config, graph, open_calibration(data, graph.inputs), stop)
    assert len(load_recording(out / "ranges.h5").batch_names) == 1


def test_options_that_the_data_do_not_heed_are_told_on_stderr(run: Run, data: Path, tmp_path: Path) -> None:
    command = ("scan", SAMPLE / "model.onnx", "--calib", data, "--out", tmp_path / "out")
    code, said, error = run(*command, "--batch-size", "1000")
    assert (code, "ranges.h5: " in said) == (0, True)
    assert error.startswith(f"calibration.batch_size has no effect on --calib {data}: ")
    assert run(*command, "--batch-size", "1000", "-q") == (0, "", "")
    code, said, told = run(*command, "--batch-size", "1000", "--json")
    assert (code, told, json.loads(said)["warnings"]) == (0, "", [error.strip()])


def test_a_stopped_scan_goes_on_or_says_why_not(run: Run, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("scan", SAMPLE / "model.onnx", "--calib", data, "--out", out)
    stop_scan(data, out)
    before = (out / "ranges.h5").read_bytes()
    code, said, error = run(*command, "--max-batches", "2")
    assert (code, said) == (5, "")
    assert error.startswith(
        f"fix-fp16: {out / 'ranges.h5'} holds an unfinished scan (1 of 3 batches), and this one"
    )
    assert "the number of batches (3 there, 2 now)" in error
    assert "--fresh" in error
    assert error.count("\n") == 1
    assert (out / "ranges.h5").read_bytes() == before
    assert run(*command)[0] == 0
    whole = load_ranges(out / "ranges.h5")
    assert len(whole.batch_names) == 3
    np.savez(data / "batch_3.npz", **np.load(data / "batch_0.npz"))
    code, _, error = run(*command)
    assert code == 5
    assert "holds a finished scan of 3 batches" in error
    assert run(*command, "--fresh")[0] == 0
    assert len(load_ranges(out / "ranges.h5").batch_names) == 4


def test_a_working_folder_that_is_not_utf8_is_no_matter(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranges do not say then where the model lies, and a plan asks for it."""
    try:
        (tmp_path / os.fsdecode(b"w\xff")).mkdir()
    except OSError:
        pytest.skip("this file system takes no such names")
    monkeypatch.chdir(tmp_path / os.fsdecode(b"w\xff"))
    shutil.copy(SAMPLE / "model.onnx", "m.onnx")
    shutil.copytree(data, "data")
    assert run("scan", "m.onnx", "--calib", "data", "--out", "out", "-q")[0] == 0
    assert run("plan", "m.onnx", "--out", "out", "-q")[0] == 0
    code, _, error = run("plan", "--ranges", "out/ranges.h5")
    assert (code, "do not say of which file they are" in error) == (5, True)


def test_the_main_job_renews_a_finished_scan_and_no_unfinished_one(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    config = FixConfig(model=SAMPLE / "model.onnx", calib=data, out=out, repair={"max_rounds": 0})
    assert fix(config).ranges.batch_names == ("batch_0.npz", "batch_1.npz", "batch_2.npz")
    (data / "batch_2.npz").unlink()
    assert fix(config).ranges.batch_names == ("batch_0.npz", "batch_1.npz")
    shutil.copy(SAMPLE / "data" / "batch_2.npz", data)
    (out / "ranges.h5").unlink()
    stop_scan(data, out)
    (data / "batch_2.npz").unlink()
    told: list[str] = []
    with pytest.raises(PlanError, match=r"an unfinished scan \(1 of 3 batches\)"):
        fix(config)
    report = fix(
        config, existing="overwrite", over=lambda ranges: told.extend(found.tensor for found in ranges)
    )
    assert report.ranges.batch_names == ("batch_0.npz", "batch_1.npz")
    over = {found.tensor for found in report.ranges.ranges if found.max_abs > 10000}
    assert set(told) == over
    assert over


@pytest.fixture
def parts(run: Run, tmp_path: Path) -> list[Path]:
    """The sample's three batches in two folders, scanned each for itself."""
    found = []
    for name, batches in (("left", (0, 1)), ("right", (2,))):
        (tmp_path / name).mkdir()
        for i in batches:
            shutil.copy(SAMPLE / "data" / f"batch_{i}.npz", tmp_path / name)
        out = tmp_path / f"out_{name}"
        assert run("scan", SAMPLE / "model.onnx", "--calib", tmp_path / name, "--out", out)[0] == 0
        found.append(out / "ranges.h5")
    return found


def test_a_merge_serves_every_later_stage(run: Run, data: Path, tmp_path: Path, parts: list[Path]) -> None:
    """And they come to what they come to with one scan of all the data."""
    merged, whole = tmp_path / "merged", tmp_path / "whole"
    code, said, error = run("scan", "--merge", *parts, "--out", merged)
    assert (code, error) == (0, "")
    assert said.startswith(f"{merged / 'ranges.h5'}: 34 tensors over 3 batches; 2 overflow in FP16")
    model = SAMPLE / "model.onnx"
    assert run("scan", model, "--calib", data, "--out", whole)[0] == 0
    one, other = load_ranges(merged / "ranges.h5"), load_ranges(whole / "ranges.h5")
    assert one.calibration == f"{tmp_path / 'left'}, {tmp_path / 'right'}"
    assert [repr(found) for found in one.ranges] == [repr(found) for found in other.ranges]
    assert one.batch_names == other.batch_names
    for out in (merged, whole):
        assert run("plan", model, "--out", out)[0] == 0
        assert run("build", model, "--out", out)[0] == 0
        assert run("verify", model, "--calib", data, "--out", out)[0] == 0
    assert (merged / "plan.json").read_bytes() == (whole / "plan.json").read_bytes()
    assert (merged / "model.fp16.onnx").read_bytes() == (whole / "model.fp16.onnx").read_bytes()
    code, _, error = run(model, "--calib", data, "--out", merged)
    assert code == 5
    assert "holds a merge of 2 scans (3 batches)" in error
    assert f"Go on from the merge: fix-fp16 MODEL --calib PATH --ranges {merged / 'ranges.h5'}" in error
    assert run(model, "--calib", data, "--ranges", merged / "ranges.h5", "--out", tmp_path / "job")[0] == 0
    assert (tmp_path / "job" / "plan.json").read_bytes() == (whole / "plan.json").read_bytes()
    assert (tmp_path / "job" / "model.fp16.onnx").read_bytes() == (whole / "model.fp16.onnx").read_bytes()


def test_a_merge_is_told_as_json(run: Run, tmp_path: Path, parts: list[Path]) -> None:
    code, said, _ = run("scan", "--merge", *parts, "--out", tmp_path / "m", "--json")
    assert code == 0
    assert json.loads(said)["batches"] == 3


def test_what_cannot_be_merged_is_refused(run: Run, tmp_path: Path, parts: list[Path]) -> None:
    out = tmp_path / "merged"
    other = load_recording(parts[1])
    save_recording(replace(other, key=replace(other.key, model_sha256="0" * 64)), parts[1])
    code, _, error = run("scan", "--merge", *parts, "--out", out)
    assert code == 5
    assert "cannot be merged: they differ in the model's sha256" in error
    code, _, error = run("scan", "--merge", parts[0], parts[0], "--out", out)
    assert code == 5
    assert "are scans of the same data" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--merge", "a.h5", "b.h5"), "no --out"),
        (("--merge", "a.h5", "b.h5", "--out", "o", "--max-batches", "3"), "--max-batches"),
        (("--merge", "a.h5", "b.h5", "--out", "o", "--config", "c.toml"), "--config"),
        (("a.h5", "b.h5", "--out", "o"), "2 models were named"),
        ((), "MODEL"),
    ],
)
def test_a_merge_takes_files_and_a_folder(run: Run, arguments: tuple[str, ...], words: str) -> None:
    code, _, error = run("scan", *arguments)
    assert code == 2
    assert words in error


def test_nan_is_told_as_what_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(make_model([node("Relu", "x", "y")], {"x": [2]}, "y"), tmp_path)
    np.savez(tmp_path / "data.npz", x=np.array([np.nan, 7], np.float32))
    options = ["--calib", str(tmp_path / "data.npz"), "--allow-nonfinite", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit):
        main(["scan", str(tmp_path / "model.onnx"), *options])
    said = capsys.readouterr().out
    assert said.endswith("2 tensors over 1 batch; none overflows in FP16; 2 hold NaN, the first x\n")


@pytest.mark.parametrize("command", ["scan", "fix"])
def test_memory_that_ends_in_python_is_told(
    run: Run, command: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("overflow_fixer.ranges.walk.Walk.observe", fail)
    code, _, error = run(command, SAMPLE / "model.onnx", "--calib", data, "--out", tmp_path / "out")
    assert code == 3
    assert error.startswith("fix-fp16: Memory ran out over batch 1 of 3. Expected")
    assert "Use a smaller batch" in error


@pytest.mark.parametrize(
    ("error", "begin"),
    [
        (MemoryError(), "memory ran out. Expected"),
        (RuntimeError("can't start new thread"), "memory ran out. Expected"),
        (OSError(errno.EMFILE, "Too many open files"), "no more files can be opened"),
    ],
)
def test_what_runs_out_anywhere_is_told_and_no_fault(
    error: Exception, begin: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("overflow_fixer.cli.scan.load_graph", fail)
    code, _, told = run("scan", SAMPLE / "model.onnx", "--calib", "random", "--out", tmp_path / "out")
    assert code == 3
    assert told.startswith(f"fix-fp16: {begin}")
    assert told.count("\n") == 1


GROWING = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1] x, int64[1] n) => (float[N] y) { a = Expand(x, n) b = Exp(a) y = Mul(a, b) }"""
LIMITED = """
import resource, sys
resource.setrlimit(resource.{limit}, (3 << 30, 3 << 30))
from overflow_fixer.cli import main
sys.argv = ["fix-fp16", "scan", "m.onnx", "--calib", "data", "--out", "out"]
main()
"""


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """A model whose second batch takes 4 GB a tensor."""
    onnx.save(onnx.parser.parse_model(GROWING), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    for i, n in enumerate((10, 10**9)):
        np.savez(tmp_path / "data" / f"{i}.npz", x=np.float32([2]), n=np.array([n]))
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory as Linux has them")
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_batch_that_memory_cannot_hold_is_named(growing: Path, limit: str) -> None:
    command = [sys.executable, "-c", LIMITED.format(limit=limit)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=growing, timeout=60)
    assert done.returncode == 3
    assert done.stderr.startswith("fix-fp16: The model could not be run on batch 1.npz: ")
    assert "use a smaller batch" in done.stderr
    assert done.stderr.count("\n") == 1
    assert load_recording(growing / "out" / "ranges.h5").batch_names == ("0.npz",)


@pytest.mark.skipif(sys.platform != "linux", reason="guarded on Linux alone")
def test_a_scan_that_the_kernel_kills_is_told_by_its_guard(tmp_path: Path) -> None:
    """As it does when memory runs out: the process is gone without a word, in the middle of a batch."""
    model = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x, int64 n) => (float[4] y) {
      c = Constant <value = bool {1}> ()
      y = Loop (n, c, x) <body = b (int64 i, bool go, float[4] s) => (bool on, float[4] t) {
        on = Identity (go) t = Tanh (s) }> }"""
    onnx.save(onnx.parser.parse_model(model), tmp_path / "m.onnx")
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "0.npz", x=np.zeros(4, np.float32), n=np.array(10**10))
    command = [sys.executable, "-m", "overflow_fixer", "scan", "m.onnx", "--calib", "data", "--out", "out"]
    guard = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    worker = _busy_child(guard.pid)
    os.kill(worker, signal.SIGKILL)
    _, error = guard.communicate(timeout=30)
    assert guard.returncode == 3
    assert error.startswith(
        "fix-fp16: It was killed (SIGKILL) during: scan (0 of 1 done); most likely by the kernel"
    )
    assert error.count("\n") == 1


def _busy_child(process: int) -> int:
    """The one child of a process, once it has computed for two seconds."""
    children = Path(f"/proc/{process}/task/{process}/children")
    while True:
        time.sleep(0.1)
        for child in children.read_text().split():
            ticks = Path(f"/proc/{child}/stat").read_text().rsplit(")", 1)[1].split()[11]
            if int(ticks) / os.sysconf("SC_CLK_TCK") > 4:
                return int(child)


FULL = """
import resource, signal, sys
from overflow_fixer.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
main(sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="file size limits are POSIX")
def test_a_full_disk_is_told_and_the_checkpoint_before_it_kept(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stop_scan(data, out)
    before = (out / "ranges.h5").read_bytes()
    arguments = ["scan", str(SAMPLE / "model.onnx"), "--calib", str(data), "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", FULL, *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "ranges.h5 could not be written: File too large" in done.stderr
    assert list(out.iterdir()) == [out / "ranges.h5"]
    assert (out / "ranges.h5").read_bytes() == before
