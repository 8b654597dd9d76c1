"""`fix-fp16 zoo`: what it says, what it leaves, and its exit codes."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
import yaml
from in_process_host import InProcessHost
from zoo_models import ZOO_SCHEMA, write_model

from overflow_fixer.cli import main
from overflow_fixer.cli.zoo import zoo_command
from overflow_fixer.reports.numbers_json import parse_json
from overflow_fixer.reports.schemas import read_schema
from overflow_fixer.zoo.worker import read_progress

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["zoo", *map(str, arguments)])
        said = capsys.readouterr()
        return int(stop.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are fixed as they are started: for tests of what is said, and of which models are run."""
    monkeypatch.setattr("overflow_fixer.cli.zoo.describe_machine", lambda *shares: InProcessHost())


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        write_model(tmp_path / "zoo", name)
    return tmp_path / "zoo"


def test_a_zoo_is_fixed_and_told_model_by_model(run: Run, zoo: Path, tmp_path: Path) -> None:
    code, out, err = run(zoo, "--out", tmp_path / "out", "--workers", 2)
    assert code == 0
    lines = err.splitlines()
    assert [line[:6] for line in lines] == ["[1/2] ", "[2/2] "]
    assert all(": fixed, 2 pins, " in line for line in lines)
    assert out.startswith("2 fixed. Summary: ")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "one",
        "two",
        "zoo-report.json",
        "zoo-report.html",
        "zoo-report.csv",
        ".zoo-report.lock",
    }
    code, _, err = run(zoo, "--out", tmp_path / "out")
    assert (code, err.count("finished before")) == (0, 2)


def test_models_with_warnings_are_counted_at_the_end(run: Run, tmp_path: Path, in_process: None) -> None:
    model = write_model(tmp_path / "models", "one")
    zoo = tmp_path / "zoo.toml"
    zoo.write_text(f"[[model]]\npath = '{model}'\ncalib = 'random'\n")
    code, out, err = run(zoo, "--out", tmp_path / "out")
    assert code == 0
    assert "one: fixed" in err
    assert " warning" in err
    assert out.startswith("1 fixed; 1 with warnings. Summary: ")


def test_one_that_fails_is_exit_code_1_and_failed_runs_it_again(run: Run, tmp_path: Path) -> None:
    zoo = write_model(tmp_path / "zoo", "one").parent
    broken = write_model(zoo, "broken", lambda content: b"no model")
    code, _, err = run(zoo, "--out", tmp_path / "out")
    assert code == 1
    assert "broken: failed" in err
    document = parse_json((tmp_path / "out" / "zoo-report.json").read_text())
    jsonschema.validate(document, read_schema(ZOO_SCHEMA))
    assert [(found["report"], found["log"]) for found in document["models"]] == [
        (None, "broken/log.txt"),
        ("one/report.html", "one/log.txt"),
    ]
    assert "Expected" in (tmp_path / "out" / "broken" / "log.txt").read_text()
    code, _, err = run(zoo, "--out", tmp_path / "out", "--failed")
    assert (code, err.count("\n"), "finished before" in err) == (1, 1, False)
    write_model(zoo, "broken")
    write_model(zoo, "new")
    code, out, err = run(zoo, "--out", tmp_path / "out", "--failed")
    assert (code, err.count("\n")) == (0, 2)
    assert "broken: fixed" in err
    assert "new: fixed" in err
    assert out.startswith("3 fixed.")
    assert broken.is_file()


def test_results_among_the_data_of_a_model_are_refused(run: Run, tmp_path: Path) -> None:
    model = write_model(tmp_path / "models", "one")
    data = tmp_path / "data"
    data.mkdir()
    model.with_suffix(".npz").rename(data / "0.npz")
    zoo = tmp_path / "zoo.toml"
    zoo.write_text(f"[[model]]\npath = '{model}'\ncalib = '{data}'\n")
    code, _, err = run(zoo, "--out", data / "zoo")
    assert code == 2
    assert "lies in the folder of the calibration data" in err
    assert [path.name for path in data.iterdir()] == ["0.npz"]


def test_only_some(run: Run, zoo: Path, tmp_path: Path, in_process: None) -> None:
    arguments = (zoo, "--out", tmp_path / "out", "--only", "t*", "--compare", _earlier(run, tmp_path))
    code, out, _ = run(*arguments, "--json")
    document = json.loads(out)
    assert (code, [model["name"] for model in document["models"]]) == (0, ["two"])
    jsonschema.validate(document, read_schema(ZOO_SCHEMA))
    assert document["comparison"]["newly_passing"] == ["two"]
    assert document["comparison"]["removed"] == ["one"]
    lines = run(*arguments)[1].splitlines()
    assert lines[1].startswith("Since the earlier run (fix-fp16 ")
    assert lines[2:] == ["  newly passing (1): two", "  only in the earlier run (1): one"]


def test_a_name_with_brackets_is_taken_to_the_letter(run: Run, tmp_path: Path, in_process: None) -> None:
    for name in ("b+c [v1]", "b+c v", *(f"n{index}" for index in range(11))):
        write_model(tmp_path / "zoo", name)
    arguments = (tmp_path / "zoo", "--out", tmp_path / "out", "--json", "--only")
    code, out, _ = run(*arguments, "b+c [v1]")
    assert (code, [model["name"] for model in json.loads(out)["models"]]) == (0, ["b+c [v1]"])
    code, _, err = run(*arguments, "b+c [w]")
    assert code == 2
    assert "Expected one of its names: b+c [v1], b+c v, n0, n1, n10, n2, n3, n4, n5, n6, and 3 more. " in err


def _earlier(run: Run, tmp_path: Path) -> Path:
    """The summary of a run in which both failed."""
    for name in ("one", "two"):
        write_model(tmp_path / "spoilt", name, lambda content: b"no model")
    run(tmp_path / "spoilt", "--out", tmp_path / "earlier", "-q")
    return tmp_path / "earlier"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--only", "three"], "--only three matches no model"),
        (["--shard", "2/2"], "--shard 2/2 is no part of a whole"),
        (["--shard", "one"], "--shard one is no part of a whole"),
        (["--gpus", "one"], "--gpus one is no list of GPUs"),
        (["--gpus", "0", "--ray-address", "auto"], "--gpus and --ray-address were given"),
        (["--ray", "--ray-address", "auto"], "--ray and --ray-address were given"),
        (["--ray-address", "127.0.0.1:1"], "cannot be used at 127.0.0.1:1: Connection refused"),
        (["--ray-address", "nonsense"], "cannot be used at nonsense: "),
        (["--compare", "nowhere"], "nowhere is no summary of a zoo: No such file"),
    ],
)
def test_what_cannot_be_done_is_exit_code_2(
    run: Run, zoo: Path, tmp_path: Path, arguments: list[str], told: str
) -> None:
    code, _, err = run(zoo, "--out", tmp_path / "out", *arguments)
    assert code == 2
    assert told in err
    assert not (tmp_path / "out").exists()


def test_a_zoo_file_is_exit_code_2_where_it_is_wrong(run: Run, tmp_path: Path) -> None:
    (tmp_path / "zoo.toml").write_text("[[model]]\npath = 3\n")
    code, _, err = run(tmp_path / "zoo.toml")
    assert code == 2
    assert "line 2: path: input should be a valid string" in err
    assert "line 1: calib: field required" in err


CONFIGS = Path(__file__).parents[2] / "configs"


def _start_shard(
    zoo: Path, out: Path, arguments: list[str], prepare: Callable[[], object] | None = None
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "overflow_fixer", "zoo", str(zoo), "--out", str(out), "-q", *arguments]
    return subprocess.Popen(command, preexec_fn=prepare)


def _read_names(out: Path) -> list[tuple[str, str]]:
    models = parse_json((out / "zoo-report.json").read_text())["models"]
    return [(model["name"], model["outcome"]) for model in models]


def test_parts_of_a_zoo_side_by_side_leave_one_whole_summary(tmp_path: Path) -> None:
    """Two parts, and the whole beside them: each model is one's alone at a time, and the last one's summary is whole."""
    write_model(tmp_path / "zoo", "bad", lambda content: b"no model")
    zoo, out = write_model(tmp_path / "zoo", "one").parent, tmp_path / "out"
    runs = [_start_shard(zoo, out, arguments) for arguments in (["--shard", "0/2"], ["--shard", "1/2"], [])]
    assert {run.wait() for run in runs} <= {0, 1}
    assert _read_names(out) == [("bad", "failed"), ("one", "fixed")]
    assert not list(out.rglob("*.tmp"))


def test_the_slurm_script_runs_a_part_of_the_zoo(tmp_path: Path) -> None:
    """As Slurm calls it, srun being a stand-in that runs what it is given; the log says what it was asked for."""
    for name in ("a", "b", "c"):
        zoo = write_model(tmp_path / "zoo", name, lambda content: b"no model").parent
    srun = tmp_path / "bin" / "srun"
    srun.parent.mkdir()
    srun.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -m overflow_fixer "$@"\n')
    srun.chmod(0o755)
    slurm = {"CPUS_PER_TASK": "2", "ARRAY_TASK_ID": "11", "ARRAY_TASK_MIN": "10", "ARRAY_TASK_COUNT": "2"}
    environment = {**os.environ, **{f"SLURM_{key}": value for key, value in slurm.items()}}
    environment["PATH"] = f"{srun.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", CONFIGS / "zoo.sbatch", zoo, tmp_path / "out"], env=environment, check=False
    )
    assert done.returncode == 1
    assert _read_names(tmp_path / "out") == [("b", "failed")]


def test_the_kubernetes_job_asks_for_what_there_is() -> None:
    job = yaml.safe_load((CONFIGS / "zoo-job.yaml").read_text())["spec"]
    (container,) = job["template"]["spec"]["containers"]
    assert container["command"] == ["/bin/sh", "-c"]
    words = shlex.split(container["args"][0])
    assert words[:3] == ["exec", "fix-fp16", "zoo"]
    with zoo_command.make_context("zoo", words[3:]) as asked:
        assert asked.params["shard"] == f"$JOB_COMPLETION_INDEX/{job['completions']}"
        assert asked.params["out"].is_relative_to(container["volumeMounts"][0]["mountPath"])


@pytest.mark.alone
@pytest.mark.parametrize(
    ("on_ctrl_c", "number"),
    [(signal.SIG_DFL, signal.SIGTERM), (signal.SIG_IGN, signal.SIGTERM), (signal.SIG_DFL, signal.SIGHUP)],
)
def test_a_zoo_that_is_told_to_end_lets_its_scans_end_their_batch(
    on_ctrl_c: signal.Handlers, number: signal.Signals, tmp_path: Path
) -> None:
    """One that a script starts in the background, which ignores Ctrl-C, too."""
    zoo = write_model(tmp_path / "zoo", "m").parent
    loop = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n] x, int64 trips) => (float[n] y) <bool go = {1}> {
        y = Loop (trips, go, x) <
            body = b (int64 i, bool c, float[n] s) => (bool c2, float[n] t) { c2 = Identity (c) t = Tanh (s) }
        >
    }"""
    onnx.save(onnx.parser.parse_model(loop), zoo / "m.onnx")
    (zoo / "m.npz").unlink()
    (zoo / "m.calib").mkdir()
    for index in range(9):
        np.savez(zoo / "m.calib" / f"{index}.npz", x=np.ones(4, np.float32), trips=np.array(50_000))
    process = _start_shard(zoo, tmp_path / "out", [], lambda: signal.signal(signal.SIGINT, on_ctrl_c))
    while (read_progress(tmp_path / "out" / "m") or ("", 0, 0))[1] < 1:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait() == 130
    assert (tmp_path / "out" / "m" / "ranges.h5").is_file()
